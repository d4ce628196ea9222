"""`CachedDecoder`: a causal model of transformers with its cache in buffers.

In: the model and the shapes of its caches. Out: a module whose methods kvc compiles:
tokens in, logits out, the cache written. Modules keep their names, so that weights have
the same names in a bundle as in a checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.attention import Call, attending
from kvc.compiler.hugging_face.cache import KvCache, LayerBuffers, LayerShape
from kvc.compiler.hugging_face.inputs import inputs_of
from kvc.compiler.hugging_face.settings import Sizes
from kvc.schema.errors import UnsupportedModel

CACHE: Final = "kvc_cache"
POSITION: Final = "kvc_position"


class CachedDecoder(nn.Module):
    """Methods over one cache; `kvc_position` int64 [batch] counts its tokens."""

    kvc_position: Tensor
    kvc_cache: nn.ModuleDict

    def __init__(
        self,
        decoder: PreTrainedModel,
        shapes: Mapping[int, LayerShape],
        sizes: Sizes,
        prefill_sizes: Sequence[int] = (),
        first: int = 0,
    ) -> None:
        super().__init__()
        for name, child in decoder.named_children():
            self.add_module(name, child)
        _check_names(decoder, self)
        self._decoder = (decoder,)  # in a tuple, since its modules are here already
        self._first = first  # the number of the first position
        self.kvc_cache = nn.ModuleDict(
            {str(i): LayerBuffers(shape, 1, sizes) for i, shape in shapes.items()}
        )
        position = torch.zeros(1, dtype=torch.int64)
        self.register_buffer(POSITION, position, persistent=False)
        for size in prefill_sizes:
            vars(self)[f"prefill_{size}"] = self.prefill
        self.train(False)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [batch, seq]; return the last ones' logits."""
        return self._append(1, input_ids=tokens)[:, -1]

    def decode(self, token: Tensor) -> Tensor:
        """Append token int64 [batch, 1]; return its logits float32 [batch, vocab]."""
        return self._append(1, input_ids=token)[:, -1]

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Append tokens; return the logits of all, float32 [batch, seq, vocab]."""
        return self._append(0, input_ids=tokens)

    def prefill_embeds(self, inputs_embeds: Tensor) -> Tensor:
        """Append embeddings [batch, seq, hidden]; return the last ones' logits."""
        return self._append(1, inputs_embeds=inputs_embeds)[:, -1]

    def _append(
        self, keep: int, row_lengths: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        """Run the model; return the logits of the last `keep` positions, 0: of all.

        Of each row as many tokens count as `row_lengths` says, int64 [batch];
        None: all.
        """
        (given,) = inputs.values()
        seq = given.shape[1]
        start, more = (
            self.kvc_position.clone(),
            seq if row_lengths is None else row_lengths,
        )
        call = Call(start, start + more, row_lengths, self._first)
        cache = KvCache(self.kvc_cache, call)
        (decoder,) = self._decoder
        with attending(call):
            made = decoder(**inputs, **inputs_of(decoder, call, seq, cache, keep))
        self.kvc_position.add_(more)
        logits: Tensor = made.logits
        return logits.float()


def _check_names(decoder: PreTrainedModel, adopted: nn.Module) -> None:
    """Check that all tensors of a model are found under its children.

    Raises:
        UnsupportedModel: it has tensors of its own.
    """
    own = [*decoder._parameters, *decoder._buffers]
    if own:
        reason = f"it keeps tensors beside its modules: {', '.join(own)}"
        raise UnsupportedModel(model=type(decoder).__name__, reason=reason)
