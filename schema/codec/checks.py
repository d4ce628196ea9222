"""Checks on flat vectors of a verified buffer: ids in range, runs without gaps.

They run before any object is made, so an error names the vector with the bad index.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import le
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvc.schema.errors import BadProgram

T = TypeVar("T")
Numbers = NDArray[np.generic]


def check_ids(ids: Numbers, count: int, path: str, where: str) -> list[int]:
    """Return ids as a list when all lie in `range(count)`.

    Raises:
        BadProgram: one does not.
    """
    numbers: list[int] = ids.tolist()
    if numbers and not (min(numbers) >= 0 and max(numbers) < count):
        bad = next(number for number in numbers if not 0 <= number < count)
        raise BadProgram(
            path=path, where=where, what=f"id {bad}, but there are {count}"
        )
    return numbers


def check_lengths(path: str, where: str, *vectors: Sequence[object] | Numbers) -> None:
    """Check that parallel vectors are of one length."""
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        what = f"parallel vectors of {sorted(lengths)} entries"
        raise BadProgram(path=path, where=where, what=what)


def cut(
    items: Sequence[T], ends: Numbers, count: int, path: str, where: str
) -> list[tuple[T, ...]]:
    """Cut `items` into `count` runs that `ends` closes.

    Raises:
        BadProgram: the runs do not cover the items exactly.
    """
    bounds = [0, *ends.tolist()]
    ordered = all(map(le, bounds, bounds[1:]))
    if len(bounds) != count + 1 or not ordered or bounds[-1] != len(items):
        what = (
            f"{len(bounds) - 1} runs of {len(items)} items do not fit {count} entries"
        )
        raise BadProgram(path=path, where=where, what=what)
    whole = tuple(items)
    return [whole[a:b] for a, b in pairwise(bounds)]
