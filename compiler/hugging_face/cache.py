"""Caches for transformers: `KvCache` writes into kvc's states, `NotingCache` records.

In: the shapes of each layer's keys and values. Out: `LayerBuffers`, which a model
registers, and `KvCache`, which is made for one call, writes with `kvc::cache_update`
and returns whole caches to layers. A `NotingCache` returns what layers put into it, as
if it had been empty, and notes their shapes.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from kvc.compiler.hugging_face.attention import Call, Kept
from kvc.compiler.hugging_face.settings import Sizes

_EXAMPLE_LENGTH: Final = 64  # of caches in the trace that sessions have of any length
AXIS: Final = 2  # of positions, in [batch, kv_heads, capacity, head_dim]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer caches for each token.

    Attributes:
        heads: key and value heads.
        key_dim, value_dim: widths of one.
        dtype: of both.
        window: how many positions its queries see, None for all.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: int | None = None

    def ring_slots(self, sizes: Sizes) -> int | None:
        """Return the slots of its ring, None where it has to keep all positions.

        A ring as long as the text would save nothing.
        """
        if self.window is None or self.window + sizes.spare >= sizes.length:
            return None
        return self.window + sizes.spare


class LayerBuffers(nn.Module):
    """The buffers of one layer, [batch, heads, slots, dim].

    Attributes:
        window: of a ring, how many positions its queries see; None: it is no ring.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, shape: LayerShape, batch: int, sizes: Sizes) -> None:
        super().__init__()
        slots = shape.ring_slots(sizes)
        self.window = None if slots is None else shape.window
        capacity = slots or min(sizes.length, _EXAMPLE_LENGTH)
        for name, dim in (("keys", shape.key_dim), ("values", shape.value_dim)):
            places = (batch, shape.heads, capacity, dim)
            buffer = torch.zeros(places, dtype=shape.dtype)
            self.register_buffer(name, buffer, persistent=False)


class KvLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook has no types
    """A layer of `KvCache`."""

    is_sliding = False
    is_croppable = False

    def __init__(self, layer: int, buffers: LayerBuffers, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer, self._buffers, self._call = layer, buffers, call
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
        self._call.kept.append(Kept(self._layer, kept.keys, kept.values, kept.window))
        return kept.keys, kept.values

    def _updated(self, cache: Tensor, update: Tensor) -> Tensor:
        mode = "linear" if self._buffers.window is None else "circular"
        call = self._call
        written: Tensor = torch.ops.kvc.cache_update(
            cache, update, call.start, AXIS, mode, call.row_lengths
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
    return KvLayer(number, own, call)


class NotingCache(Cache):
    """A cache of one call, in which nothing is kept.

    Attributes:
        noted: what each layer put into it.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.noted: dict[int, LayerShape] = {}
        self._call = call

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes of keys and values [batch, heads, seq, dim]."""
        heads, key_dim = key_states.shape[1], key_states.shape[3]
        shape = LayerShape(heads, key_dim, value_states.shape[3], key_states.dtype)
        self.noted[layer_idx] = shape
        self._call.kept.append(Kept(layer_idx, key_states, value_states))
        return key_states, value_states
