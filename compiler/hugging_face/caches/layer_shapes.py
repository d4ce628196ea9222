"""Shapes of the layers' caches: keys and values of each token, and states.

In: the shapes that `NotingCache` recorded. Out: the shapes of the buffers of
`LayerBuffers`, with the lengths of the buffers. A state is of all tokens together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from kvc.compiler.hugging_face.reading.settings import Sizes
from kvc.schema.rings import Window

CONV: Final = "conv"  # with a number: the name of a state of a layer's convolution
RECURRENT: Final = "recurrent"
LATENTS: Final = "latents"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shapes of a layer's keys and values.

    Attributes:
        heads: the number of key and value heads.
        key_dim, value_dim: width of a key head and of a value head.
        dtype: dtype of keys and values.
        window: the positions that a query sees, None for all positions.
        latent: whether keys are latents, and values are the keys that all heads share;
            if so, keys and values are concatenated in one buffer.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: Window | None = None
    latent: bool = False

    def widths(self) -> dict[str, int]:
        """Return the names of the layer's buffers, with the width of a head in each."""
        if self.latent:
            return {LATENTS: self.key_dim + self.value_dim}
        return {"keys": self.key_dim, "values": self.value_dim}

    def ring_slots(self, sizes: Sizes) -> int | None:
        """Return the number of slots of the layer's ring, None if there is no ring.

        There is no ring if queries see all positions, if a ring would be as long as the
        longest text, or if the layer caches latents. All positions are then stored. A
        cache that keeps first positions has to be a ring, unless all positions of the
        longest text are seen.
        """
        if self.window is None or self.latent:  # attention reads parts of latents
            return None
        seen = self.window.size + self.window.keep
        needed = seen if self.window.keep else seen + sizes.spare
        return None if needed >= sizes.length else seen + sizes.spare


@dataclass(frozen=True, slots=True)
class StateShape:
    """A state of all tokens together, zero before the first token.

    Attributes:
        dims: the shape of the state of one row.
        dtype: the dtype of the state.
    """

    dims: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """The cached tensors of a layer.

    Attributes:
        attention: the shapes of keys and values; None if the layer does not attend.
        states: the shapes of states by name; empty if the layer neither is recurrent
            nor convolves.
    """

    attention: LayerShape | None = None
    states: Mapping[str, StateShape] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the names of the layer's buffers."""
        attention = () if self.attention is None else self.attention.widths()
        return (*attention, *self.states)
