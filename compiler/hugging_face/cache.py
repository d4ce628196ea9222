"""A transformers `Cache` over kvc's states: `kvc::cache_update` into buffers.

In: the shapes of each layer's keys and values. Out: `LayerBuffers`, which a model
registers, and `KvCache`, which is made for one call and hands whole caches on.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from kvc.compiler.hugging_face.attention import Call

AXIS: Final = 2  # of positions, in [batch, kv_heads, capacity, head_dim]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer caches for each token.

    Attributes:
        heads: key and value heads.
        key_dim, value_dim: widths of one.
        dtype: of both.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype


class LayerBuffers(nn.Module):
    """The buffers of one layer, [batch, heads, capacity, dim]."""

    keys: Tensor
    values: Tensor

    def __init__(self, shape: LayerShape, batch: int, capacity: int) -> None:
        super().__init__()
        for name, dim in (("keys", shape.key_dim), ("values", shape.value_dim)):
            sizes = (batch, shape.heads, capacity, dim)
            buffer = torch.zeros(sizes, dtype=shape.dtype)
            self.register_buffer(name, buffer, persistent=False)


class KvLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook has no types
    """A layer of `KvCache`."""

    is_sliding = False
    is_croppable = False

    def __init__(self, buffers: LayerBuffers, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers, self._call = buffers, call
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the buffers are there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [batch, heads, seq, dim]; return the whole caches."""
        kept = self._buffers
        for cache, update in ((kept.keys, key_states), (kept.values, value_states)):
            cache.copy_(self._updated(cache, update))
        self._call.kept.append((kept.keys, kept.values))
        return kept.keys, kept.values

    def _updated(self, cache: Tensor, update: Tensor) -> Tensor:
        written: Tensor = torch.ops.kvc.cache_update(
            cache, update, self._call.start, counts=self._call.counts
        )
        return written

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return sizes that no mask is made of."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return how many tokens the first row has: a tensor, as static caches do."""
        return self._call.start[0]  # type: ignore[return-value]

    def get_max_length(self) -> int:
        """Return that there is no bound."""
        return -1


class KvCache(Cache):
    """The caches of all layers during one call."""

    def __init__(self, buffers: nn.ModuleDict, call: Call) -> None:
        count = 1 + max(map(int, buffers))
        super().__init__(layers=[_layer(buffers, i, call) for i in range(count)])


def _layer(buffers: nn.ModuleDict, number: int, call: Call) -> CacheLayerMixin:
    """Return a layer's cache; one that shares another layer's is given no buffers."""
    name = str(number)
    if name not in buffers:
        return DynamicLayer()  # type: ignore[no-untyped-call]
    own = buffers[name]
    assert isinstance(own, LayerBuffers)
    return KvLayer(own, call)
