"""The dtypes that operands are cast to before a kernel computes with them.

In: an operator, and its operands. Out: a dtype for each, None for one that is not cast.
Comparisons are made in the dtype in which torch makes them.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final, TypeAlias

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.cpu import COMPARED, COMPUTED

Kind: TypeAlias = np.dtype[np.generic]
# Operands that are cast to the dtype of the result; those of COMPUTED all are.
_SUM: Final = "aten::sum.dim_IntList"
_CAST: Final = {"aten::ldexp.Tensor": (0,), "aten::where.self": (1, 2), _SUM: (0,)}
_RANKS: Final = {"b": 0, "i": 1, "u": 1, "f": 2}  # of kinds of dtypes


def cast_to(
    op: str,
    result: Array,
    operands: Sequence[Array | None],
    numbers: Sequence[float],
) -> list[Kind | None]:
    """Return the dtype of each operand; `numbers` are those among the arguments."""
    if op in COMPARED:
        given = [array for array in operands if array is not None]
        return [_compared_in(given, numbers)] * len(operands)
    if op == _SUM and result.dtype == np.int64:
        return [None]  # its kernel reads all integers
    places = range(len(operands)) if op in COMPUTED else _CAST.get(op, ())
    return [result.dtype if i in places else None for i in range(len(operands))]


def _compared_in(arrays: Sequence[Array], numbers: Iterable[float]) -> Kind:
    """Return a dtype; arrays with axes decide first, then others, then numbers."""
    with_axes = [array.dtype for array in arrays if array.ndim]
    single = [array.dtype for array in arrays if not array.ndim]
    given = [_of_number(number) for number in numbers]
    found = (reduce(_common, some) for some in (with_axes, single, given) if some)
    return reduce(_decided, found)


def _of_number(number: float) -> Kind:
    """Return the dtype of a number: bool, int64, or float32 for every float."""
    if isinstance(number, bool):
        return np.dtype(np.bool_)
    return np.dtype(np.int64 if isinstance(number, int) else np.float32)


def _decided(first: Kind, second: Kind) -> Kind:
    """Return a dtype, or that of both if the second is of a kind of higher rank."""
    higher = _RANKS[second.kind] > _RANKS[first.kind]
    return _common(first, second) if higher else first


def _common(one: Kind, other: Kind) -> Kind:
    """Return the dtype of both; of integers and floats, that of the floats."""
    ranks = {_RANKS[one.kind]: one, _RANKS[other.kind]: other}
    return ranks[max(ranks)] if len(ranks) == 2 else np.promote_types(one, other)
