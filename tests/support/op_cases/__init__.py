"""Calls of every op, for the tests of shape rules and of kernels."""

from op_cases import (
    computing,
    convolving,
    elementwise,
    indexing,
    linear_algebra,
    moving,
    reducing,
    spatial,
)
from op_cases.case import Case, kind_of, mapped, type_of

from op_cases import adapting  # isort: skip  # draws after all others, which stay as they are

_FIRST = elementwise, reducing, computing, linear_algebra
_PARTS = *_FIRST, moving, indexing, spatial, convolving, adapting
CASES = tuple(case for part in _PARTS for case in part.CASES)

__all__ = ["CASES", "Case", "kind_of", "mapped", "type_of"]
