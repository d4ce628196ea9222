"""Make many frozen dataclasses at once.

The constructor of a frozen dataclass sets each field through `object.__setattr__`,
which takes most of the time of decoding tens of thousands of values and instructions.
Setting the slots column by column is four times as fast (measured 2026-11-21 on 10,000
instructions).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from itertools import repeat
from typing import TypeVar

T = TypeVar("T")


def build(kind: type[T], *columns: Sequence[object]) -> list[T]:
    """Return a `kind` for each row of `columns`, one column a field, in order.

    Args:
        kind: a dataclass with slots and without `__post_init__`.
        columns: of equal length.
    """
    made: list[T] = list(map(object.__new__, repeat(kind, len(columns[0]))))
    for put, column in zip(_setters(kind), columns, strict=True):  # type: ignore[arg-type]
        deque(map(put, made, column), maxlen=0)
    return made


@cache
def _setters(kind: type) -> tuple[Callable[[object, object], None], ...]:
    """Return for each field of a dataclass what sets its slot."""
    return tuple(getattr(kind, field.name).__set__ for field in fields(kind))
