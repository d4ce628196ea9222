"""`BatchedDecoder`: rows of different lengths, each at a position of its own.

In: what `CachedDecoder` takes, and the row lengths of each call. Rows are padded on the
right; the content of the padding never matters. Out: the same methods with that one
argument more, and the logits after the last real token of each row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.decoder import CachedDecoder
from kvc.compiler.hugging_face.inputs import takes_positions
from kvc.schema.errors import UnsupportedModel

# These know of positions by the distances that kvc's attention sees alone (ALiBi).
_WITHOUT_POSITIONS: Final = frozenset({"bloom", "mpt"})


class BatchedDecoder(CachedDecoder):
    """A `CachedDecoder` whose methods take row lengths."""

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append tokens int64 [batch, seq], lengths int64 [batch]; return last logits.

        Those of a row without tokens mean nothing.
        """
        return self._append_last(lengths, input_ids=_filled(tokens, lengths))

    def decode(self, token: Tensor, active: Tensor) -> Tensor:  # type: ignore[override]
        """Append token int64 [batch, 1] to rows that are active, bool [batch]."""
        row_lengths = active.to(torch.int64)
        return self._append(1, row_lengths, input_ids=_filled(token, row_lengths))[
            :, -1
        ]

    def prefill_all(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append tokens; return the logits of all, float32 [batch, seq, vocab]."""
        return self._append(0, lengths, input_ids=_filled(tokens, lengths))

    def prefill_embeds(self, inputs_embeds: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append embeddings [batch, seq, hidden]; return the last ones' logits."""
        return self._append_last(lengths, inputs_embeds=inputs_embeds)

    def _append_last(self, row_lengths: Tensor, **inputs: Tensor) -> Tensor:
        (decoder,) = self._decoder
        with _last_alone(decoder, row_lengths) as head:
            logits = self._append(0, row_lengths, **inputs)
        last = logits if head.reached else _last_of(logits, row_lengths)
        return last[:, 0]


def check_positions(decoder: PreTrainedModel) -> None:
    """Check that rows of a model can be at positions of their own.

    Raises:
        UnsupportedModel: it counts positions by itself, for all rows at once.
    """
    kind = decoder.config.model_type
    if not takes_positions(decoder) and kind not in _WITHOUT_POSITIONS:
        reason = (
            "it takes no position_ids, so rows cannot be at positions of their own; "
            "compile it for one row, with CacheConfig(batch=1)"
        )
        raise UnsupportedModel(model=type(decoder).__name__, reason=reason)


@dataclass(slots=True)
class _Head:
    """Whether the layer that makes logits has been given last positions alone."""

    reached: bool = False


@contextmanager
def _last_alone(decoder: PreTrainedModel, row_lengths: Tensor) -> Iterator[_Head]:
    """Make logits of last positions alone: of a long prompt they are most of the work.

    The head of a model computes each position by itself, so its input may be less.
    """
    head = _Head()
    module = decoder.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep_last(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        head.reached = True
        return (_last_of(given[0], row_lengths), *given[1:])

    if not isinstance(module, nn.Module):
        yield head
        return
    hook = module.register_forward_pre_hook(keep_last)
    try:
        yield head
    finally:
        hook.remove()


def _last_of(states: Tensor, row_lengths: Tensor) -> Tensor:
    """Return [batch, 1, width]: of states [batch, seq, width] the last real one."""
    last = (row_lengths - 1).clamp(min=0)[:, None, None]
    return states.gather(1, last.expand(-1, 1, states.shape[2]))


def _filled(tokens: Tensor, row_lengths: Tensor) -> Tensor:
    """Return tokens with 0 in the place of padding, which may be no token at all."""
    padding = torch.arange(tokens.shape[1]) >= row_lengths[:, None]
    return tokens.masked_fill(padding, 0)
