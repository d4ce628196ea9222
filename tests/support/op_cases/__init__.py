"""Calls of every op, for the tests of shape rules and of kernels."""

from op_cases import (
    computing,
    elementwise,
    indexing,
    linear_algebra,
    moving,
    reducing,
    spatial,
)
from op_cases.case import Case, kind_of, mapped, type_of

CASES = (
    *elementwise.CASES,
    *reducing.CASES,
    *computing.CASES,
    *linear_algebra.CASES,
    *moving.CASES,
    *indexing.CASES,
    *spatial.CASES,
)

__all__ = ["CASES", "Case", "kind_of", "mapped", "type_of"]
