"""What layers cache, told by shapes: keys and values of tokens, and whole states.

In: what `NotingCache` saw. Out: which buffers `LayerBuffers` makes of it, and how long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from kvc.compiler.hugging_face.reading.settings import Sizes

CONV: Final = "conv"  # with a number: the name of a state of a layer's convolution
RECURRENT: Final = "recurrent"
LATENTS: Final = "latents"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer caches for each token.

    Attributes:
        heads: key and value heads.
        key_dim, value_dim: widths of one.
        dtype: of both.
        window: how many positions its queries see, None for all.
        latent: whether keys are latents, and values the keys that all heads share:
            both lie side by side then.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: int | None = None
    latent: bool = False

    def widths(self) -> dict[str, int]:
        """Return the names of its buffers, and how much each holds of a head."""
        if self.latent:
            return {LATENTS: self.key_dim + self.value_dim}
        return {"keys": self.key_dim, "values": self.value_dim}

    def ring_slots(self, sizes: Sizes) -> int | None:
        """Return the slots of its ring, None where it has to keep all positions.

        A ring as long as the text would save nothing.
        """
        if self.window is None or self.window + sizes.spare >= sizes.length:
            return None
        if self.latent:  # whose rows attention sees in part
            return None
        return self.window + sizes.spare


@dataclass(frozen=True, slots=True)
class StateShape:
    """A state of all tokens together, zeros before the first.

    Attributes:
        dims: of one row.
        dtype: of its numbers.
    """

    dims: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """What a layer caches.

    Attributes:
        attention: keys and values of each token, if it attends.
        states: by name, if it is recurrent or convolves.
    """

    attention: LayerShape | None = None
    states: Mapping[str, StateShape] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the names of its buffers."""
        attention = () if self.attention is None else self.attention.widths()
        return (*attention, *self.states)
