"""`CachedDecoder`: a causal model of transformers with its cache in buffers.

In: the model and the shapes of its caches. Out: a module whose methods are compiled,
and whose buffers become states. A method takes tokens, writes the cache, and returns
logits. Modules keep their names, so that weights have the same names in a bundle as in
a checkpoint.

In a `BatchedDecoder` each row has a position of its own. The methods take one more
argument, the number of tokens that a call adds to each row, and return the logits after
the last real token of each row. Rows are padded on the right; the content of the
padding never matters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.caches.cache import KvCache, LayerBuffers
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.encoder.encoding_methods import call_of, picture_features
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.inputs import inputs_of, takes_positions
from kvc.compiler.hugging_face.reading.settings import Sizes
from kvc.schema.errors import UnsupportedModel

CACHE: Final = "kvc_cache"
POSITION: Final = "kvc_position"


class CachedDecoder(nn.Module):
    """A decoder with one cache; `kvc_position` int64 [batch] counts cached tokens."""

    kvc_position: Tensor
    kvc_cache: nn.ModuleDict
    _apart = False  # whether the model gets the number of tokens of each row

    def __init__(
        self,
        decoder: PreTrainedModel,
        layers: Mapping[int, CachedLayer],
        sizes: Sizes,
        prefill_sizes: Sequence[int] = (),
        first: int = 0,
    ) -> None:
        super().__init__()
        for name, child in decoder.named_children():
            self.add_module(name, child)
        for name, buffer in decoder._buffers.items():  # BART has a bias of its own
            self.register_buffer(name, buffer)
        if decoder._parameters:
            own = ", ".join(decoder._parameters)
            reason = f"it keeps parameters beside its modules: {own}"
            raise UnsupportedModel(model=type(decoder).__name__, reason=reason)
        self._decoder = (
            decoder,
        )  # in a tuple, so that its modules are not registered twice
        self._first = first  # the number of the first position
        self.kvc_cache = nn.ModuleDict(
            {str(i): LayerBuffers(layer, 1, sizes) for i, layer in layers.items()}
        )
        position = torch.zeros(1, dtype=torch.int64)
        self.register_buffer(POSITION, position, persistent=False)
        for size in prefill_sizes:
            vars(self)[f"prefill_{size}"] = self.prefill
        self.train(False)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [batch, seq]; return the last token's logits."""
        return self._append(1, input_ids=tokens)[:, -1]

    def decode(self, token: Tensor) -> Tensor:
        """Append a token int64 [batch, 1] to each row.

        Return the logits after these tokens, float32 [batch, vocab].
        """
        return self._append(1, input_ids=token)[:, -1]

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [batch, seq]; return the logits after every token.

        The logits are float32 [batch, seq, vocab].
        """
        return self._append(0, input_ids=tokens)

    def prefill_embeds(self, inputs_embeds: Tensor) -> Tensor:
        """Append embeddings [batch, seq, hidden]; return the last position's logits."""
        return self._append(1, inputs_embeds=inputs_embeds)[:, -1]

    def prefill_picture(self, inputs_embeds: Tensor) -> Tensor:
        """Append the embeddings [batch, places, hidden] of a bidirectional picture.

        Return the logits after the last embedding.
        """
        return self._append(1, together=True, inputs_embeds=inputs_embeds)[:, -1]

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Return embeddings [1, seq, hidden] of tokens int64 [1, seq]."""
        (decoder,) = self._decoder
        made: Tensor = decoder.get_input_embeddings()(tokens)
        return made

    def embed_image(self, pixels: Tensor) -> Tensor:
        """Return the embeddings of a picture, float32 [places, hidden].

        Args:
            pixels: float32 [1, channels, height, width].
        """
        (decoder,) = self._decoder
        return picture_features(decoder, call_of(None), pixels)

    def _append(
        self,
        keep: int,
        row_lengths: Tensor | None = None,
        together: bool = False,
        positions: Tensor | None = None,
        **inputs: Tensor,
    ) -> Tensor:
        """Run the model on inputs; return the logits of the last `keep` positions.

        If `keep` is 0, return the logits of all positions. `row_lengths` int64 [batch]
        is the number of real tokens of each row; None: all tokens are real. If
        `together`, the call's tokens attend to each other in both directions.
        `positions` is passed to `_place`.
        """
        (given,) = inputs.values()
        seq = given.shape[1]
        start, more = (
            self.kvc_position.clone(),
            seq if row_lengths is None else row_lengths,
        )
        call = ModelCall(start, start + more, row_lengths, self._first)
        call.apart, call.together = self._apart, together
        self._place(call, seq, positions)
        cache = KvCache(self.kvc_cache, call, single=type(seq) is int and seq == 1)
        logits = self._run(call, seq, cache, keep, inputs)
        cache.check_taken()
        self.kvc_position.add_(more)
        return logits.float()

    def _place(self, call: ModelCall, seq: int, positions: Tensor | None) -> None:
        """Set the positions of a call's tokens, if they are not plain token counts.

        This decoder's positions are plain counts, so nothing is set.
        """

    def _run(
        self,
        call: ModelCall,
        seq: int,
        cache: Cache,
        keep: int,
        inputs: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the model's logits of the last `keep` positions; 0 means all."""
        (decoder,) = self._decoder
        with attending(call):
            made = decoder(**inputs, **inputs_of(decoder, call, seq, cache, keep))
        logits: Tensor = made.logits
        return logits


# These models use positions only in kvc's attention, as distances (ALiBi).
_WITHOUT_POSITIONS: Final = frozenset({"bloom", "mpt"})


class BatchedDecoder(CachedDecoder):
    """A `CachedDecoder` whose methods take the number of real tokens of each row."""

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append tokens int64 [batch, seq]; return the logits of each row's last token.

        `lengths` int64 [batch] is the number of real tokens of each row. The logits of
        a row without tokens are meaningless.
        """
        return self._append_last(lengths, input_ids=filled(tokens, lengths))

    def decode(self, token: Tensor, active: Tensor) -> Tensor:  # type: ignore[override]
        """Append a token, of `token` int64 [batch, 1], to each row that is active.

        `active` is bool [batch]. Return the logits of each row.
        """
        row_lengths = active.to(torch.int64)
        return self._append(1, row_lengths, input_ids=filled(token, row_lengths))[:, -1]

    def prefill_all(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append tokens int64 [batch, seq]; return the logits after every token.

        The logits are float32 [batch, seq, vocab].
        """
        return self._append(0, lengths, input_ids=filled(tokens, lengths))

    def prefill_embeds(self, inputs_embeds: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append embeddings [batch, seq, hidden]; return each row's last logits.

        `lengths` int64 [batch] is the number of real embeddings of each row.
        """
        return self._append_last(lengths, inputs_embeds=filled(inputs_embeds, lengths))

    def prefill_picture(self, inputs_embeds: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Append the embeddings [batch, places, hidden] of bidirectional pictures.

        Return the logits after the last embedding of each row.
        """
        given = filled(inputs_embeds, lengths)
        return self._append_last(lengths, together=True, inputs_embeds=given)

    def _append_last(
        self,
        row_lengths: Tensor,
        together: bool = False,
        positions: Tensor | None = None,
        **inputs: Tensor,
    ) -> Tensor:
        (decoder,) = self._decoder
        with _last_alone(decoder, row_lengths) as head:
            logits = self._append(0, row_lengths, together, positions, **inputs)
        return (logits if head.reached else _last_of(logits, row_lengths))[:, 0]


def check_positions(
    decoder: PreTrainedModel, layers: Mapping[int, CachedLayer]
) -> None:
    """Check that the rows of a model can have different positions.

    In a model without attention, they always can, since such a model uses no positions.

    Raises:
        UnsupportedModel: the model itself counts positions, for all rows at once.
    """
    # Llama 4 scales queries by position in layers without rotation.
    for name, module in decoder.named_modules():
        tuned = getattr(module, "attn_temperature_tuning", False)
        if tuned and not getattr(module, "use_rope", True):
            reason = (
                f"{name} scales queries by how many tokens the cache holds, one number "
                "for all rows, so rows cannot be at positions of their own; compile it "
                "for one row, with CacheConfig(batch=1) or --max-batch 1"
            )
            raise UnsupportedModel(model=type(decoder).__name__, reason=reason)
    attends = any(layer.attention for layer in layers.values())
    known = decoder.config.model_type in _WITHOUT_POSITIONS or not attends
    if not takes_positions(decoder) and not known:
        reason = (
            "it takes no position_ids, so rows cannot be at positions of their own; "
            "compile it for one row, with CacheConfig(batch=1) or --max-batch 1"
        )
        raise UnsupportedModel(model=type(decoder).__name__, reason=reason)


@dataclass(slots=True)
class _Head:
    """A record of whether a model called the layer that computes logits."""

    reached: bool = False


@contextmanager
def _last_alone(decoder: PreTrainedModel, row_lengths: Tensor) -> Iterator[_Head]:
    """Let a model compute the logits of each row's last real position only.

    This saves most work of a long prompt. The head of a model computes each position
    independently, so the other positions can be left out of its input. The yielded
    record tells afterwards whether the head was called.
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
    """Select from [batch, seq, width] each row's last real state, [batch, 1, width]."""
    last = (row_lengths - 1).clamp(min=0)[:, None, None]
    return states.gather(1, last.expand(-1, 1, states.shape[2]))


def filled(tokens: Tensor, row_lengths: Tensor) -> Tensor:
    """Return tokens or embeddings with all padding set to 0."""
    padding = torch.arange(tokens.shape[1]) >= row_lengths[:, None]
    shape = (*padding.shape, *[1] * (tokens.dim() - 2))
    return tokens.masked_fill(padding.view(shape), 0)
