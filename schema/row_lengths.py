"""What an input must be that says how many tokens of each row count.

Both sides ask here: the compiler when it looks for one, the verifier when a file names
one. How such counts are given at a call is for the runtime.
"""

from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

_SAME: Final = frozenset({"aten::_to_copy", "aten::alias", "aten::clone"})


def may_be_row_lengths(kind: TensorType) -> bool:
    """Tell whether a type is that of counts: int64 [batch] or bool [batch]."""
    return kind.dtype in (DType.INT64, DType.BOOL) and len(kind.dims) == 1


def says_the_same(op: str, before: TensorType, after: TensorType) -> bool:
    """Tell whether an op makes counts of counts that are equal in each row."""
    kept = after.dtype is before.dtype or after.dtype is DType.INT64
    known = may_be_row_lengths(before) and before.dims == after.dims
    return op in _SAME and known and kept
