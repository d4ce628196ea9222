"""Sources that are computed of other tensors, by values that say how."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from kvc.compiler.constants import Source

ROTATED: Final = ".rotated"  # ends the name of a constant that is another one, rotated


class Make(Protocol):
    """A value that makes a float tensor of others; equal ones make equal tensors."""

    @property
    def by_rows(self) -> bool:
        """Tell whether rows of the first tensor make rows of the result."""
        ...

    def __call__(self, first: Tensor, /, *rest: Tensor) -> Tensor:
        """Return the result, contiguous."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor of a shape that is made of others; of the first, perhaps in rows."""

    make: Make
    bases: tuple["Source", ...]
    shape: tuple[int, ...]
