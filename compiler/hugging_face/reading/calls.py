"""What functions that a model calls know of the call of kvc's method that is running.

In: a `ModelCall`, told by `attending`. Out: the same to whoever asks, `current_call`:
attention, recurrent layers, positions. It also notes what attention was over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """A layer's caches, as its `update` returned them.

    Attributes:
        layer: its number.
        keys, values: all slots, [batch, kv_heads, slots, dim].
        window: how many positions a query may see, of a ring; None: all lie there.
        latents: of both, side by side, which they are views of, where they are a
            latent and the key that all heads share.
        earlier: whether positions before this call's lie there, too.
        cross: whether they are of what an encoder made.
    """

    layer: int
    keys: Tensor
    values: Tensor
    window: int | None = None
    latents: Tensor | None = None
    earlier: bool = True
    cross: bool = False


@dataclass(slots=True)
class ModelCall:
    """One call of a method while it runs.

    Attributes:
        start: int64 [batch], how many tokens the caches hold before it.
        length: int64 [batch], how many they hold after it.
        row_lengths: int64 [batch], how many tokens of each row are real; None: all.
        first: the number that the model gives the first position of a text.
        kept: the caches that attention may be over.
        windows: (layer, how many keys a query sees) for each attention.
        recurrent: the recurrent state that a layer has asked for, until it is taken.
        inputs: what a convolution is given from the cache, until it is taken.
        heard: int64 [batch], how many positions the cross caches hold, before the call
            where it adds some; None: the model has no encoder.
        encodes: whether the encoder runs.
        crossed: how often a decoder has attended over a cross cache.
        uncached: whether there is no cache: tokens see those of the call alone.
        among: how often attention was among these.
        apart: whether a model is told how many tokens each row holds.
        together: whether its tokens see each other, later ones too.
        picture: which places a picture has, in a text that a model reads by itself.
        joined: for each attention in such a text, whether these see each other.
        places: int64 [batch, seq] or [axes, batch, seq], the number of each position;
            None: they count the tokens.
    """

    start: Tensor
    length: Tensor
    row_lengths: Tensor | None = None
    first: int = 0
    kept: list[Kept] = field(default_factory=list)
    windows: list[tuple[int, int | None]] = field(default_factory=list)
    recurrent: Tensor | None = None
    inputs: Tensor | None = None
    heard: Tensor | None = None
    encodes: bool = False
    crossed: int = 0
    uncached: bool = False
    among: int = 0
    apart: bool = False
    together: bool = False
    picture: range | None = None
    joined: list[bool] = field(default_factory=list)
    places: Tensor | None = None

    @property
    def held(self) -> Tensor:
        """How many tokens the caches hold, as a model is told it.

        Of the first row, or of all rows, [batch, 1], where they are apart.
        """
        return self.start[:, None] if self.apart else self.start[0]

    def within(self, places: Tensor, first: int = 0) -> Tensor:
        """Return places int64 [batch, seq], those of padding at their row's last.

        After that there may be none, where a table ends. `first`: of the first token.
        """
        if self.row_lengths is None:
            return places
        last = (self.length[:, None] - 1).clamp(min=0)
        return torch.minimum(places, last + first if first else last)

    def take_recurrent(self) -> Tensor | None:
        """Return the recurrent state that a layer has asked for, to compute with it."""
        state, self.recurrent = self.recurrent, None
        return state

    def take_inputs(self) -> Tensor | None:
        """Return what a convolution is given from the cache, to compute with it."""
        inputs, self.inputs = self.inputs, None
        return inputs


_call: ContextVar[ModelCall] = ContextVar("kvc_hugging_face_call")


@contextmanager
def attending(call: ModelCall) -> Iterator[None]:
    """Let the registered functions know of a call."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def current_call() -> ModelCall:
    """Return the call that `attending` told of."""
    return _call.get()


def any_call() -> ModelCall | None:
    """Return the same, None where none is running."""
    return _call.get(None)
