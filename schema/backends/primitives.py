"""Primitives: the operations that the lowering for vendors' devices makes of a graph.

In: the primitives that a device has. Out: the primitives that the lowering can use on
the device. These include shortcuts: a shortcut is a primitive that the lowering
computes by other primitives if the device lacks the shortcut.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Final


class Primitive(StrEnum):
    """An operation on tensors of fixed shape; elementwise operations broadcast.

    Comparisons and AND, OR, XOR, NOT return bool. Reductions keep reduced axes with
    size 1. ROWS takes rows of a table [rows, ...] by indices in range. ALONG takes
    elements along an axis by an index of the result's shape. WRITE replaces a part of
    an axis from a start index on. The result of MODULO can have the sign of either
    operand; the lowering corrects the result.
    """

    CAST = "cast"
    RESHAPE = "reshape"
    TRANSPOSE = "transpose"
    SLICE = "slice"
    BROADCAST = "broadcast"
    CONCAT = "concat"
    WHERE = "where"
    ROWS = "rows"
    ALONG = "along"
    WRITE = "write"
    MATMUL = "matmul"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIVIDE = "divide"
    POWER = "power"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    MODULO = "modulo"
    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    GREATER = "greater"
    GREATER_EQUAL = "greater_equal"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    NEG = "neg"
    ABS = "abs"
    CEIL = "ceil"
    FLOOR = "floor"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    SIN = "sin"
    COS = "cos"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    RELU = "relu"
    SILU = "silu"
    GELU = "gelu"
    SOFTMAX = "softmax"


_P = Primitive
# The primitives whose results are bool.
TRUTHS: Final = frozenset(
    {
        *(_P.EQUAL, _P.NOT_EQUAL, _P.GREATER, _P.GREATER_EQUAL, _P.LESS),
        *(_P.LESS_EQUAL, _P.AND, _P.OR, _P.XOR, _P.NOT),
    }
)
# The primitives by which the lowering computes each shortcut that a device lacks.
SHORTCUTS: Final[Mapping[Primitive, tuple[Primitive, ...]]] = {
    _P.WRITE: (_P.WHERE, _P.ALONG),
    _P.MEAN: (_P.SUM, _P.MUL),
    _P.MIN: (_P.MAX, _P.MUL),
    _P.SUB: (_P.ADD, _P.MUL),
    _P.DIVIDE: (_P.RECIPROCAL, _P.MUL),
    _P.MINIMUM: (_P.MAXIMUM, _P.MUL),
    _P.MODULO: (_P.FLOOR, _P.DIVIDE, _P.MUL, _P.SUB, _P.CAST),
    _P.NOT_EQUAL: (_P.EQUAL, _P.NOT),
    _P.GREATER_EQUAL: (_P.GREATER, _P.EQUAL, _P.OR),
    _P.LESS: (_P.GREATER,),
    _P.LESS_EQUAL: (_P.GREATER_EQUAL,),
    _P.XOR: (_P.NOT_EQUAL,),
    _P.NEG: (_P.MUL,),
    _P.ABS: (_P.MAXIMUM, _P.MUL),
    _P.CEIL: (_P.FLOOR, _P.MUL),
    _P.RSQRT: (_P.SQRT, _P.DIVIDE),
    _P.RECIPROCAL: (_P.DIVIDE,),
    _P.SIGMOID: (_P.EXP, _P.ADD, _P.DIVIDE, _P.MUL),
    _P.RELU: (_P.MAXIMUM,),
    _P.SILU: (_P.SIGMOID, _P.MUL),
    _P.GELU: (_P.ERF, _P.TANH, _P.ADD, _P.MUL, _P.DIVIDE),
    _P.SOFTMAX: (_P.MAX, _P.SUB, _P.EXP, _P.SUM, _P.DIVIDE),
}


@cache
def usable(own: frozenset[Primitive]) -> frozenset[Primitive]:
    """Return the primitives that the lowering can use on a device that has `own`.

    The result has `own`, and all shortcuts that these primitives can compute.
    """
    found = {*own}
    while True:
        more = {
            shortcut
            for shortcut, parts in SHORTCUTS.items()
            if shortcut not in found and found.issuperset(parts)
        }
        if not more:
            return frozenset(found)
        found |= more
