"""The state of the running call, for functions that a model calls.

In: a `ModelCall`, which `attending` makes the current call. Out: the same `ModelCall`,
which `current_call` returns to kvc's functions for attention, recurrent layers and
positions. These functions also record the caches and windows of attention in the
`ModelCall`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvc.schema.rings import Window


@dataclass(frozen=True, slots=True)
class Kept:
    """A layer's caches, as the layer's `update` returned them.

    Attributes:
        layer: number of the layer.
        keys, values: the keys and the values of all slots, [batch, kv_heads, slots,
            dim].
        window: for a ring, the positions that a query may see; None: no ring.
        latents: the latents and the shared keys in one tensor, of which `keys` and
            `values` are views; None for layers without latents.
        earlier: whether the caches also hold positions before this call.
        cross: whether keys and values are computed from an encoder's result.
        asked: the window that the caller asked for; None: that of the model.
    """

    layer: int
    keys: Tensor
    values: Tensor
    window: Window | None = None
    latents: Tensor | None = None
    earlier: bool = True
    cross: bool = False
    asked: Window | None = None


@dataclass(slots=True)
class ModelCall:
    """One call of a method while it runs.

    Attributes:
        start: int64 [batch], the number of cached tokens before the call.
        length: int64 [batch], the number of cached tokens after the call.
        row_lengths: int64 [batch], the number of real tokens of each row; None: all.
        first: the number that the model gives the first position of a text.
        kept: the caches over which attention can run.
        windows: (layer, number of visible keys) for each attention.
        recurrent: the recurrent state that a layer has requested; None after a function
            of kvc has taken it.
        inputs: a convolution's inputs, preceded by the inputs from the cache; None
            after a function of kvc has taken them.
        heard: int64 [batch], the number of positions in the cross caches (caches of an
            encoder's result) before the call; None: the model has no encoder.
        encodes: whether the encoder runs.
        crossed: the number of decoder attentions over a cross cache.
        uncached: whether there is no cache, so that tokens see only tokens of the call.
        among: the number of attentions among the tokens of the call.
        apart: whether the model is given a separate number of cached tokens per row.
        together: whether the call's tokens attend to each other in both directions.
        picture: the positions of a picture, in a text that the model reads without
            kvc's arguments.
        joined: for each attention in a text with a `picture`, whether the positions of
            the picture are bidirectional.
        places: int64 [batch, seq] or [axes, batch, seq], the number of each position;
            None: positions count the tokens.
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
        """Return the number of cached tokens in the form that the model expects.

        If `apart`, these are the numbers of all rows, [batch, 1]; if not, the number of
        the first row.
        """
        return self.start[:, None] if self.apart else self.start[0]

    def within(self, places: Tensor, first: int = 0) -> Tensor:
        """Return positions in which padding has the last position of its row.

        Positions after a row's last one may be missing in a position table. `places`
        and the result are int64 [batch, seq]. `first` is the position number of a
        text's first token.
        """
        if self.row_lengths is None:
            return places
        last = (self.length[:, None] - 1).clamp(min=0)
        return torch.minimum(places, last + first if first else last)

    def take_recurrent(self) -> Tensor | None:
        """Return and remove the recurrent state that a layer has requested."""
        state, self.recurrent = self.recurrent, None
        return state

    def take_inputs(self) -> Tensor | None:
        """Return a convolution's recorded inputs, and remove them from the call."""
        inputs, self.inputs = self.inputs, None
        return inputs


_call: ContextVar[ModelCall] = ContextVar("kvc_hugging_face_call")


@contextmanager
def attending(call: ModelCall) -> Iterator[None]:
    """Make a call current in this context, for kvc's functions that a model calls."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def current_call() -> ModelCall:
    """Return the current call, set by `attending`."""
    return _call.get()


def any_call() -> ModelCall | None:
    """Return the current call, None if none is running."""
    return _call.get(None)
