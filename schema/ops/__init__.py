"""The operators of a program: signatures, aliasing and shape rules.

A program may use only the operators of this package's table. The compiler maps traced
operators to operators of the table, the verifier checks every instruction against the
table, and the runtime has one kernel for each operator.
"""

from kvc.schema.ops.spec import Aliasing, Keeps, OpSpec, Param, ParamKind
from kvc.schema.ops.table import (
    AFTER,
    APPEND,
    CACHE_UPDATE,
    COND,
    CONTROL_OPS,
    DELEGATE,
    OPS,
    PERMUTING,
    REPLACE,
    RESHAPING_VIEWS,
    SCAN,
    WHILE,
    ops_that_keep,
)

__all__ = [
    "AFTER",
    "APPEND",
    "CACHE_UPDATE",
    "COND",
    "CONTROL_OPS",
    "DELEGATE",
    "OPS",
    "PERMUTING",
    "REPLACE",
    "RESHAPING_VIEWS",
    "SCAN",
    "WHILE",
    "Aliasing",
    "Keeps",
    "OpSpec",
    "Param",
    "ParamKind",
    "ops_that_keep",
]
