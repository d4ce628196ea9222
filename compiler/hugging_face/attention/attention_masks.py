"""`MaskStandIn`: a placeholder for an attention mask that describes visible keys.

In: the visible keys that `windows.py` finds for a mask function. Out: a placeholder
that a model passes to attention in place of a mask. The model may cut the placeholder
to the existing keys, expand it over rows and heads, and cast it to another float dtype.
A model that computes with the mask's numbers, or selects some of its queries, is
refused, since kvc makes no mask; the error names the line of the model's code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import torch

from kvc.compiler.hugging_face.reading.model_lines import running_line
from kvc.schema.errors import UnsupportedModel

# Tensor methods after which a mask hides the same keys.
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
    """A placeholder for a mask: the keys that a query sees.

    Attributes:
        window: the number of visible keys, the query's own included; None: all keys up
            to the query's own.
        chunk: the length of the chunks of the text; a query sees no key before its own
            chunk (Llama 4); None: there are no chunks.
        whole: whether a query also sees later keys: without a window, all later keys;
            with a window, as many keys after its own as before its own.
        joined: whether the positions of a picture attend to each other in both
            directions.
    """

    window: int | None
    chunk: int | None = None
    whole: bool = False
    joined: bool = False

    @property
    def ahead(self) -> int | None:
        """Return the number of visible keys after the query's own; None: all."""
        if not self.whole:
            return 0
        return None if self.window is None else self.window - 1

    @property
    def device(self) -> torch.device:
        """Return the device of masks, since a model may ask a mask for it."""
        return torch.device("cpu")

    @property
    def ndim(self) -> int:
        """Return the number of dimensions of a mask."""
        return _DIMS

    def dim(self) -> int:
        """Return the number of dimensions of a mask."""
        return _DIMS

    def first(self, query: int) -> int:
        """Return the position of the first key that a query sees."""
        if self.chunk is not None:
            return query // self.chunk * self.chunk
        return 0 if self.window is None else max(0, query - self.window + 1)

    def __eq__(self, other: object) -> bool:
        """Tell whether two masks show the same keys; refuse any other operand."""
        if other is None or isinstance(other, MaskStandIn):
            return other is not None and self._seen() == other._seen()
        raise _refused("==")

    def __hash__(self) -> int:
        """Return the hash of the visible keys."""
        return hash(self._seen())

    def __getitem__(self, index: object) -> "MaskStandIn":
        """Return the mask itself; the index must keep all rows, heads and queries."""
        asked = list(index) if isinstance(index, tuple) else [index]
        if any(part is Ellipsis for part in asked):
            place = next(i for i, part in enumerate(asked) if part is Ellipsis)
            missing = _DIMS - len(asked) + 1
            asked[place : place + 1] = [slice(None)] * missing
        if len(asked) > _DIMS or not all(map(_keeps, asked, range(_DIMS))):
            raise _refused("[...]")
        return self

    def __getattr__(self, name: str) -> Callable[..., "MaskStandIn"]:
        """Return a method that returns the mask itself.

        Only names of tensor methods that leave the visible keys unchanged are allowed;
        any other name is refused.
        """
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
        """Refuse every torch function that is called with a mask."""
        raise _refused(f"{getattr(function, '__name__', function)}()")

    def __bool__(self) -> bool:
        """Refuse a conversion to bool, as a tensor of several numbers does."""
        raise _refused("bool()")

    def _seen(self) -> tuple[object, ...]:
        return self.window, self.chunk, self.whole, self.joined

    def _itself(self, name: str, *given: object, **named: object) -> "MaskStandIn":
        """Return the mask; refuse casts to bool or integers.

        In a float mask 0 means visible, so the cast would reverse its meaning.
        """
        for one in (*given, *named.values()):
            kind = one if isinstance(one, torch.dtype) else getattr(one, "dtype", None)
            if isinstance(kind, torch.dtype) and not kind.is_floating_point:
                raise _refused(f".{name}({kind})")
        return self


def _keeps(part: object, dim: int) -> bool:
    """Tell whether a part of an index keeps all of a dimension, or all existing keys.

    An index that keeps a single key is refused: the key would be broadcast to all keys.
    """
    if not isinstance(part, slice) or part.step not in (None, 1):
        return False
    if part.start not in (None, 0):
        return False
    stop: object = part.stop
    return stop is None or (dim == _KEYS and not (isinstance(stop, int) and stop <= 1))


def _refused(what: str) -> UnsupportedModel:
    """Return the error for the running line of a model, which computes with a mask."""
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
