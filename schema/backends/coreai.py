"""Support list of the backend `coreai`: operators and the operands they accept.

The backend computes in float32 or float16, as the recipe selects, and stores int64 as
int32. Caches are float32 or float16. The compiler selects nodes by this list; the
runtime refuses a block with any other node.
"""

from typing import Final

from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
    CHECKS,
    beyond_32_bits,
    floats,
)
from kvc.schema.backends.operands import Arguments, Results, operand
from kvc.schema.backends.primitives import Primitive
from kvc.schema.ops import CACHE_UPDATE

_LARGEST_FLOAT: Final = 3.4028234663852886e38
_P = Primitive
PRIMITIVES: Final = frozenset(_P) - {
    *(_P.POWER, _P.GREATER_EQUAL, _P.LESS, _P.LESS_EQUAL, _P.XOR),
    *(_P.NEG, _P.CEIL, _P.FLOOR, _P.RECIPROCAL),
}


def _large(number: object) -> str:
    """Return why a number exceeds int32 or float32, or ""."""
    if isinstance(number, float) and not abs(number) <= _LARGEST_FLOAT:
        return f"{number} is no finite number of float32"
    return beyond_32_bits(number)


def _cast(arguments: Arguments, results: Results) -> str:
    before, after = operand(arguments[0]).type.dtype, results[0].dtype
    if before.is_floating and not after.is_floating:
        return f"{before.label} as {after.label}"
    return ""


LIST: Final = LoweredList(
    PRIMITIVES,
    limits={"aten::_to_copy": _cast, "aten::sum.dim_IntList": floats},
    number=_large,
)
why_not = LIST.why_not
# A method without one of these operators is not worth moving to the backend.
ANCHORS: Final = frozenset(
    {
        *("aten::linear", "aten::addmm", "aten::matmul", "aten::mm", "aten::bmm"),
        *("aten::scaled_dot_product_attention", ATTENTION),
    }
)


def why_apart(op: str) -> str:
    """Return why the compiler puts a supported node in no partition, or ""."""
    if op in (CACHE_UPDATE, ATTENTION) or op in CHECKS:
        return "the method computes the index or length that the operator has to check"
    return ""
