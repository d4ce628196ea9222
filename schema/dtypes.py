"""Element types of tensors: item size, numpy dtype, and whether they are floats.

The value of an enum member is the type's number in files, and never changes its
meaning.
"""

from enum import IntEnum
from functools import cache

import numpy as np


class DType(IntEnum):
    """An element type; the member's value is the type's number in files."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    BOOL = 9

    @property
    def label(self) -> str:
        """Return the name of the element type, as messages show it."""
        return self.name.lower()

    @property
    def itemsize(self) -> int:
        """Return the size of one element in bytes."""
        # Without the package that brings numpy's dtype of bfloat16.
        return 2 if self is DType.BFLOAT16 else self.numpy.itemsize

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """Return the numpy dtype; for bfloat16, import ml_dtypes on first use."""
        return _bfloat16() if self is DType.BFLOAT16 else _NUMPY[self]

    @property
    def is_floating(self) -> bool:
        """Tell whether elements are floating-point numbers."""
        return self <= DType.BFLOAT16

    @classmethod
    def from_numpy(cls, dtype: "np.dtype[np.generic]") -> "DType | None":
        """Return the element type of a numpy dtype; None if kvc has no such type."""
        found = np.dtype(dtype)
        if found.kind == "V":  # no other dtype of kvc has this kind
            return cls.BFLOAT16 if found == _bfloat16() else None
        return _BY_NUMPY.get(found)


_NUMPY: dict[DType, "np.dtype[np.generic]"] = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT16: np.dtype(np.float16),
    DType.INT8: np.dtype(np.int8),
    DType.INT16: np.dtype(np.int16),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
    DType.UINT8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}
_BY_NUMPY = {dtype: member for member, dtype in _NUMPY.items()}


@cache
def _bfloat16() -> "np.dtype[np.generic]":
    import ml_dtypes

    found: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
    return found
