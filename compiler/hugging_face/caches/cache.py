"""Caches for transformers: `KvCache` writes to kvc's states, `NotingCache` records.

In: each layer's cached tensors: keys and values of each token, or states of all tokens
together (the last inputs of a convolution, the state of a recurrence). Out:
`LayerBuffers`, which a model registers, and a `KvCache` for each call, which writes
keys and values with `kvc::cache_update`, overwrites states, and returns whole caches to
layers. A `NotingCache` stores nothing: it returns the tensors that layers pass to it,
as an empty cache does, and records their shapes.
"""

from typing import Final

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    LinearAttentionCacheLayerMixin,
)

from kvc.compiler.hugging_face.caches.layer_shapes import (
    CONV,
    RECURRENT,
    CachedLayer,
    LayerShape,
    StateShape,
)
from kvc.compiler.hugging_face.reading.calls import Kept, ModelCall
from kvc.compiler.hugging_face.reading.settings import Sizes
from kvc.compiler.hugging_face.reading.unread import NoLayers, Unread
from kvc.schema.errors import UnsupportedModel

AXIS: Final = 2  # of positions, in [batch, kv_heads, capacity, head_dim]


class LayerBuffers(nn.Module):
    """The buffers of one layer.

    Keys and values are [batch, heads, slots, dim]; each state has a shape of its own.
    Latents and their shared keys are concatenated in one buffer.

    Attributes:
        window: for a ring, the positions that a query sees; None: no ring.
        asked: the window that the caller asked for; None: that of the model.
        attends: whether the layer caches keys and values.
        is_latent: whether keys and values are latents.
        states: the names of the layer's states.
    """

    keys: Tensor
    values: Tensor
    latents: Tensor

    def __init__(
        self, layer: CachedLayer, batch: int, sizes: Sizes, only: int | None = None
    ) -> None:
        """Create buffers of zeros for a layer.

        `sizes` are the maximum sizes; `only` is the number of slots if it is fixed.
        """
        super().__init__()
        shape, self.window = layer.attention, None
        self.asked = sizes.asked
        self.attends, self.states = shape is not None, tuple(layer.states)
        self.is_latent = shape is not None and shape.latent
        for name, state in layer.states.items():
            self._register(name, (batch, *state.dims), state.dtype)
        if shape is None:
            return
        slots = shape.ring_slots(sizes)
        self.window = None if slots is None else shape.window
        capacity = only or slots or sizes.example_slots()
        for name, dim in shape.widths().items():
            self._register(name, (batch, shape.heads, capacity, dim), shape.dtype)

    def _register(self, name: str, dims: tuple[int, ...], dtype: torch.dtype) -> None:
        self.register_buffer(name, torch.zeros(dims, dtype=dtype), persistent=False)


class KvLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook has no types
    """A layer of `KvCache`."""

    is_sliding = False
    is_croppable = False

    def __init__(self, layer: int, buffers: LayerBuffers, call: ModelCall) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer, self._buffers, self._call = layer, buffers, call
        self.is_initialized = True
        self.keys = self.values = Unread()  # type: ignore[assignment]  # not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the buffers exist already."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [batch, heads, seq, dim]; return all cached ones."""
        kept = self._buffers
        if kept.is_latent:
            found = self._update_latents(kept.latents, key_states, value_states)
        else:
            for cache, update in ((kept.keys, key_states), (kept.values, value_states)):
                cache.copy_(self._updated(cache, update))
            found = Kept(
                self._layer, kept.keys, kept.values, kept.window, asked=kept.asked
            )
        self._call.kept.append(found)
        return found.keys, found.values

    @property
    def _start(self) -> Tensor:
        """Return the position of this call's first token, int64 [batch]."""
        return self._call.start

    def _update_latents(self, cache: Tensor, latent: Tensor, shared: Tensor) -> Kept:
        """Write latents and shared keys, concatenated, to the layer's cache."""
        cache.copy_(self._updated(cache, torch.cat([latent, shared], dim=-1)))
        width = latent.shape[-1]
        parts = cache[..., :width], cache[..., width:]
        return Kept(self._layer, *parts, self._buffers.window, latents=cache)

    def _updated(self, cache: Tensor, update: Tensor) -> Tensor:
        window, lengths = self._buffers.window, self._call.row_lengths
        mode, keep = ("linear", 0) if window is None else ("circular", window.keep)
        written: Tensor = torch.ops.kvc.cache_update(
            cache, update, self._start, AXIS, mode, lengths, keep
        )
        return written

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the sizes that transformers asks for to make a mask; none is made."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of cached tokens as a tensor, as static caches do."""
        return self._call.held  # type: ignore[return-value]

    def get_max_length(self) -> int:
        """Return -1, which means that the length is unlimited."""
        return -1


class RecurrentLayer(LinearAttentionCacheLayerMixin):
    """A layer of `KvCache` with states, which are zeros before the first token."""

    is_compileable = False

    def __init__(self, buffers: LayerBuffers, call: ModelCall) -> None:
        count = 1 + max(int(name.rpartition("_")[2]) for name in buffers.states)
        super().__init__(number_of_states=count)
        self._call = call
        for name in buffers.states:
            kind, _, number = name.rpartition("_")
            states = self.conv_states if kind == CONV else self.recurrent_states
            states[int(number)] = getattr(buffers, name)
        self.has_previous_state = dict.fromkeys(range(count), True)

    def lazy_initialization(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the buffers exist already."""

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Store a convolution's last inputs; return the old ones, then the new ones.

        Args:
            conv_states: the new inputs, [batch, channels, seq].
            state_idx: index of the state in the layer.
            kwargs: arguments that the state's shape already implies.
        """
        kept = self.conv_states[state_idx]
        assert kept is not None
        whole = torch.cat([kept, conv_states], dim=-1)
        kept.copy_(self._last(whole, kept.shape[-1]))
        self._call.inputs = whole
        return whole

    def _last(self, whole: Tensor, count: int) -> Tensor:
        """Return the last `count` inputs of each row that are not padding.

        The result is [batch, channels, count].
        """
        row_lengths = self._call.row_lengths
        if row_lengths is None:
            return whole[..., -count:]
        places = row_lengths[:, None, None] + torch.arange(count)
        return whole.gather(2, places.expand(-1, whole.shape[1], -1))

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Store a state, which has the shape of its buffer."""
        kept = self.recurrent_states[state_idx]
        assert kept is not None
        kept.copy_(recurrent_states)
        return kept


class HybridLayer(RecurrentLayer, KvLayer):  # type: ignore[no-untyped-call, override]
    """A layer that attends and also has states."""

    def __init__(self, number: int, buffers: LayerBuffers, call: ModelCall) -> None:
        KvLayer.__init__(self, number, buffers, call)
        RecurrentLayer.__init__(self, buffers, call)


class OneLength(Cache):
    """A cache whose layers all hold the same number of tokens."""

    _call: ModelCall

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of cached tokens as a tensor, as static caches do."""
        return self._call.held  # type: ignore[return-value]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the sizes that transformers asks for to make a mask; none is made."""
        return query_length, 0


class KvCache(OneLength):
    """The caches of all layers during one call.

    A layer gets its states, which it overwrites, only in a call of a single token. In a
    longer call, a layer that has a state would ask for the number of cached tokens. In
    longer calls kvc's replacements of the layer's functions therefore get the states
    themselves: from this cache (`update_conv_state`) or from the call
    (`recurrences.py`).
    """

    def __init__(self, buffers: nn.ModuleDict, call: ModelCall, single: bool) -> None:
        count = 1 + max(map(int, buffers))
        super().__init__(layers=[_layer(buffers, i, call) for i in range(count)])
        self._call, self._single = call, single

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the last inputs of a convolution, or None.

        The inputs are returned only in calls of a single token without row lengths.
        After None, a layer calls `update_conv_state` to get the inputs. Calls with row
        lengths need this, since only `update_conv_state` knows which rows have a real
        token.
        """
        self.check_taken()
        if not self._single or self._call.row_lengths is not None:
            return None
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return a layer's recurrent state in a call of a single token, else None.

        The state is also recorded in the call, from which kvc's functions take it.
        """
        self.check_taken()
        self._call.recurrent = super().get_recurrent_state(layer_idx, state_idx)
        return self._call.recurrent if self._single else None

    def check_taken(self) -> None:
        """Check that kvc's functions have used the states that layers requested.

        A layer's own functions might ignore the state from before a prompt, or treat
        padding as real tokens.

        Raises:
            UnsupportedModel: a state was left unused.
        """
        alone = self._single and self._call.row_lengths is None
        left = self._call.take_recurrent() is not None and not alone
        if self._call.take_inputs() is not None or left:
            reason = (
                "a recurrent or convolving layer computes by code of its own, which "
                "may not go on from its states"
            )
            raise UnsupportedModel(model="the model", reason=reason)


def _layer(
    buffers: nn.ModuleDict, number: int, call: ModelCall
) -> CacheLayerMixin | LinearAttentionCacheLayerMixin:
    """Return the cache of a layer.

    A layer that shares the cache of another layer gets a cache that stays empty.
    """
    name = str(number)
    if name not in buffers:
        return DynamicLayer()  # type: ignore[no-untyped-call]
    own = buffers[name]
    assert isinstance(own, LayerBuffers)
    if not own.states:
        return KvLayer(number, own, call)
    return HybridLayer(number, own, call) if own.attends else RecurrentLayer(own, call)


class NotingCache(OneLength):
    """A cache for one call that stores nothing and records shapes.

    Attributes:
        noted: shapes of the keys and values of each layer.
        states: shapes of the layers' states, by layer number and name of the state.
        cross: whether the recorded keys and values are computed from an encoder's
            result.
    """

    def __init__(self, call: ModelCall, cross: bool = False) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.cross = cross
        self.noted: dict[int, LayerShape] = {}
        self.states: dict[int, dict[str, StateShape]] = {}
        self._call = call
        self.layers = NoLayers()  # type: ignore[assignment]  # lists are of one type

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Record the shapes of keys and values [batch, heads, seq, dim]."""
        heads, key_dim = key_states.shape[1], key_states.shape[3]
        shape = LayerShape(heads, key_dim, value_states.shape[3], key_states.dtype)
        self.noted[layer_idx] = shape
        kept = Kept(
            layer_idx, key_states, value_states, earlier=False, cross=self.cross
        )
        self._call.kept.append(kept)
        return key_states, value_states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Return None: nothing is stored."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Return None: nothing is stored."""

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Record how many last inputs a convolution caches.

        Return as many zeros, followed by the new inputs `conv_states` [batch, channels,
        seq].
        """
        count = conv_kernel_size or conv_states.shape[-1]
        dims = (*conv_states.shape[1:-1], count)
        self._note(layer_idx, f"{CONV}_{state_idx}", dims, conv_states)
        before = conv_states.new_zeros(conv_states.shape[0], *dims)
        return torch.cat([before, conv_states], dim=-1)

    def update_recurrent_state(
        self,
        recurrent_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        **kwargs: object,
    ) -> Tensor:
        """Record the shape of a state [batch, ...]."""
        dims = tuple(recurrent_states.shape[1:])
        self._note(layer_idx, f"{RECURRENT}_{state_idx}", dims, recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: nothing is stored."""
        return False

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Return False: nothing is stored."""
        return False

    def _note(self, layer: int, name: str, dims: tuple[int, ...], like: Tensor) -> None:
        self.states.setdefault(layer, {})[name] = StateShape(dims, like.dtype)
