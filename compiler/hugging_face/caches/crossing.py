"""Cross caches: keys and values of an encoder's result, which a decoder attends to.

In: the buffers of each layer, and the call. Out: `Caches`, which a model of
transformers accepts as the caches of a decoder: the caches of the decoder's tokens, and
the cross caches. The call that runs the encoder writes the cross caches. In later
calls, `is_updated` tells the decoder to read the cross caches instead of computing the
keys and values again.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from kvc.compiler.hugging_face.caches.cache import KvLayer, LayerBuffers, OneLength
from kvc.compiler.hugging_face.reading.calls import Kept, ModelCall


class CrossLayer(KvLayer):  # type: ignore[no-untyped-call]  # its hook has no types
    """A layer of `CrossCache`; a decoder reads its `keys` and `values`."""

    def __init__(self, layer: int, buffers: LayerBuffers, call: ModelCall) -> None:
        super().__init__(layer, buffers, call)
        self.keys, self.values = buffers.keys, buffers.values  # no longer None
        call.kept.append(Kept(layer, self.keys, self.values, cross=True))

    def kept(self) -> tuple[Tensor, Tensor]:
        """Return the cached keys and the cached values of all slots."""
        return self._buffers.keys, self._buffers.values

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [batch, heads, heard, dim]; return all cached ones.

        `heard` is the number of encoder positions.
        """
        kept = self.kept()
        for cache, update in zip(kept, (key_states, value_states), strict=True):
            cache.copy_(self._updated(cache, update))
        return kept

    @property
    def _start(self) -> Tensor:
        assert self._call.heard is not None
        return self._call.heard


class CrossCache(OneLength):
    """The cross caches of all layers during one call.

    Attributes:
        added: the number of encoder positions that the call has written for the longest
            row; 0 if the call has written no positions.
    """

    def __init__(self, buffers: nn.ModuleDict, call: ModelCall) -> None:
        self._kept = [
            CrossLayer(int(layer), own, call)
            for layer, own in buffers.items()
            if isinstance(own, LayerBuffers)
        ]
        super().__init__(layers=list(self._kept))
        self._call, self.added = call, 0

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values of the encoder's result.

        Both are [batch, heads, heard, dim], where `heard` is the number of encoder
        positions.
        """
        self.added = key_states.shape[2]
        return self._kept[layer_idx].update(key_states, value_states)


class Caches(EncoderDecoderCache):
    """The caches of a decoder's tokens, and the cross caches.

    Args:
        own: the caches of the decoder's tokens.
        cross: the caches of the encoder's result.
        made: numbers of the layers whose cross caches are already written.
    """

    def __init__(self, own: Cache, cross: Cache, made: Iterable[int] = ()) -> None:
        self.self_attention_cache = own  # type: ignore[assignment]
        self.cross_attention_cache = cross  # type: ignore[assignment]
        self.is_updated = dict.fromkeys(made, True)
