"""`MaskStandIn`: what stands in the place of a mask, which keys a query sees.

In: what `windows.py` finds of a mask function. Out: a value that a model hands on to
attention as it would a mask: it may be cut to the keys that there are, expanded over
rows and heads, and made another kind of float. A model that computes with its numbers,
or takes some queries of it, is refused, with the line that does: kvc makes none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import torch

from kvc.compiler.hugging_face.reading.model_lines import running_line
from kvc.schema.errors import UnsupportedModel

# What makes the same mask of a mask, as to which keys a query sees.
_KEEPING: Final = frozenset(
    {
        "to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "clone",
        "detach", "expand", "expand_as", "cpu",
    }
)  # fmt: skip
_DIMS: Final = 4  # [batch, heads, queries, keys]
_KEYS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class MaskStandIn:
    """What stands in the place of a mask: which keys a query sees.

    Attributes:
        window: how many keys, its own among them; None: all up to its own.
        chunk: the length of parts of the text, of which it sees none before its own
            (Llama 4); None: there are no parts.
        whole: whether it sees all keys, later ones too, or as many after its own as a
            window has before it.
        joined: whether the places of a picture see each other, later ones too.
    """

    window: int | None
    chunk: int | None = None
    whole: bool = False
    joined: bool = False

    @property
    def ahead(self) -> int | None:
        """How many keys it sees after its own, None: all."""
        if not self.whole:
            return 0
        return None if self.window is None else self.window - 1

    @property
    def device(self) -> torch.device:
        """Where masks are."""
        return torch.device("cpu")

    @property
    def ndim(self) -> int:
        """How many dimensions a mask has."""
        return _DIMS

    def dim(self) -> int:
        """Return how many dimensions a mask has."""
        return _DIMS

    def first(self, query: int) -> int:
        """Return the first position that the query at a position sees."""
        if self.chunk is not None:
            return query // self.chunk * self.chunk
        return 0 if self.window is None else max(0, query - self.window + 1)

    def __eq__(self, other: object) -> bool:
        """Tell whether another sees the same; a mask is compared with nothing else."""
        if other is None or isinstance(other, MaskStandIn):
            return other is not None and self._seen() == other._seen()
        raise _refused("==")

    def __hash__(self) -> int:
        """Return the hash of what it sees."""
        return hash(self._seen())

    def __getitem__(self, index: object) -> "MaskStandIn":
        """Return the mask of all rows, heads and queries, and of the keys there are."""
        asked = list(index) if isinstance(index, tuple) else [index]
        if any(part is Ellipsis for part in asked):
            place = next(i for i, part in enumerate(asked) if part is Ellipsis)
            missing = _DIMS - len(asked) + 1
            asked[place : place + 1] = [slice(None)] * missing
        if len(asked) > _DIMS or not all(map(_keeps, asked, range(_DIMS))):
            raise _refused("[...]")
        return self

    def __getattr__(self, name: str) -> Callable[..., "MaskStandIn"]:
        """Return a method of tensors that keeps what is seen; refuse any other name."""
        if name in _KEEPING:
            return partial(self._itself, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused(f".{name}")

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Refuse what torch would compute with it, wherever it stands."""
        raise _refused(f"{getattr(function, '__name__', function)}()")

    def __bool__(self) -> bool:
        """Refuse to be true or false, as a tensor of several numbers does."""
        raise _refused("bool()")

    def _seen(self) -> tuple[object, ...]:
        return self.window, self.chunk, self.whole, self.joined

    def _itself(self, name: str, *given: object, **named: object) -> "MaskStandIn":
        """Refuse true and false, and whole numbers: in a mask of floats 0 is seen."""
        for one in (*given, *named.values()):
            kind = one if isinstance(one, torch.dtype) else getattr(one, "dtype", None)
            if isinstance(kind, torch.dtype) and not kind.is_floating_point:
                raise _refused(f".{name}({kind})")
        return self


def _keeps(part: object, dim: int) -> bool:
    """Tell whether an index leaves all of a dimension, or of keys those that there are.

    One key alone would stand for all of them.
    """
    if not isinstance(part, slice) or part.step not in (None, 1):
        return False
    if part.start not in (None, 0):
        return False
    stop: object = part.stop
    return stop is None or (dim == _KEYS and not (isinstance(stop, int) and stop <= 1))


def _refused(what: str) -> UnsupportedModel:
    """Return the error for a line that computes with a mask."""
    reason = (
        f"{running_line()} computes with an attention mask ({what}), and kvc makes "
        "none: the model's own code says which tokens see each other, such as all of a "
        "prompt (prefix)"
    )
    return UnsupportedModel(model="the model", reason=reason)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: MaskStandIn, *_: object) -> NoReturn:
        raise _refused(name)

    return refuse


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "and", "rand",
    "or", "ror", "xor", "rxor", "invert", "neg", "lt", "le", "gt", "ge", "len", "iter",
    "setitem", "matmul", "rmatmul", "float", "int", "abs", "pow", "rpow", "floordiv",
    "rfloordiv", "mod", "rmod", "array",
):  # fmt: skip
    setattr(MaskStandIn, f"__{_name}__", _refusing(_name))
