"""Support list of the backend `qnn`: operators and the operands they accept.

The backend computes in float16 with tensors that are float32 in the program. The list
has no operators for numbers that must be exact: indices, angles, and other numbers that
are computed from indices. The compiler selects nodes by this list; the runtime refuses
a block with any other node.
"""

from typing import Final

from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
    STORED,
    attention_product,
    normed,
    shares_heads,
    written,
)
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.ops import CACHE_UPDATE

LARGEST: Final = 65504.0  # the greatest float16
LEAST: Final = 2.0**-14  # the least normal float16
PRODUCT: Final = "aten::scaled_dot_product_attention"
_P = Primitive
PRIMITIVES: Final = frozenset(
    {
        *(_P.ADD, _P.SUB, _P.MUL, _P.DIVIDE, _P.MAXIMUM, _P.MINIMUM, _P.NEG, _P.ABS),
        *(_P.EXP, _P.SQRT, _P.RELU, _P.SIGMOID, _P.TANH, _P.SILU, _P.GELU),
        *(_P.MATMUL, _P.SOFTMAX, _P.RESHAPE, _P.TRANSPOSE, _P.SLICE, _P.CONCAT),
        _P.BROADCAST,
    }
)


def why_not_float32(types: Results) -> str:
    """Return why tensors of some types are not float32, or ""."""
    return unknown_dtypes(types, {DType.FLOAT32})


def _in_range(arguments: Arguments, results: Results) -> str:
    """Return why a number is neither 0 nor in the range of normal float16, or ""."""
    for number in arguments:
        size = abs(number) if isinstance(number, int | float) else 0
        if size and not LEAST <= size <= LARGEST:
            return f"{number} is no number of float16"
    return ""


def _normed(arguments: Arguments, results: Results) -> str:
    """Return why a norm has several axes, or no constant weight, or ""."""
    weight = arguments[2]
    if not isinstance(weight, Operand) or not weight.constant:
        return normed(arguments, results) or "there is no weight of the model's"
    types = [*(each.type for each in operands_of(arguments)), *results]
    return normed(arguments, results) or why_not_float32(types)


def _square(arguments: Arguments, results: Results) -> str:
    exponent = arguments[1]
    return "" if exponent == 2 else f"exponent {exponent}"


def _last_axis(arguments: Arguments, results: Results) -> str:
    x, axis = arguments
    rank = len(operand(x).type.dims)
    return "" if axis in (-1, rank - 1) else f"axis {axis} of {rank}"


def _written(arguments: Arguments, results: Results) -> str:
    new = operand(arguments[1]).type
    if new.dtype is not DType.FLOAT32:
        return f"it takes no cache {operand(arguments[0]).type} of {new}"
    return written(arguments, results)


def _attention(arguments: Arguments, results: Results) -> str:
    """Return what of an attention the device or the host's part lacks, or ""."""
    q, k, v = (operand(each).type for each in arguments[:3])
    softcap, mask, slopes, sinks = arguments[8:12]
    held = {k.dtype, v.dtype}
    plain = q.dtype is DType.FLOAT32 and len(held) == 1 and held <= STORED
    if not plain or arguments[13] is not None:
        return f"attention of {q} to {k}"
    if sinks is not None:
        return "attention with sinks"
    if isinstance(softcap, float) and _in_range((softcap,), ()):
        return f"softcap {softcap}"
    if isinstance(mask, Operand) and mask.type.dtype not in (
        DType.BOOL,
        DType.FLOAT32,
    ):
        return f"a mask {mask.type}"
    if isinstance(slopes, Operand) and slopes.type.dtype is not DType.FLOAT32:
        return f"slopes {slopes.type}"
    return _scale(arguments[4])


def _scale(scale: object) -> str:
    return f"scale {scale}" if scale is not None and _in_range((scale,), ()) else ""


def _attention_product(arguments: Arguments, results: Results) -> str:
    """Return why the device cannot run attention without a cache, or ""."""
    mask, causal, scale = arguments[3:6]
    if refused := attention_product(arguments, results):
        return refused
    if not shares_heads(*(operand(each).type.dims[1] for each in arguments[:3])):
        return f"attention of {operand(arguments[0]).type}"
    if causal:
        return "causal attention without a cache"
    if isinstance(mask, Operand) and mask.type.dtype is not DType.FLOAT32:
        return f"a mask {mask.type}"
    types = [each.type for each in operands_of(arguments[:4])]
    return why_not_float32([*types, *results]) or _scale(scale)


_ARITHMETIC: Final = ("add", "sub", "mul", "div")
LIST: Final = LoweredList(
    PRIMITIVES,
    integers=False,
    without=frozenset(
        {
            *("aten::arange.start_step", "aten::full", "aten::copy", "kvc::after"),
            "aten::reciprocal",
        }
    ),
    forms={
        "aten::rms_norm": _normed,
        "aten::layer_norm": _normed,
        PRODUCT: _attention_product,
        CACHE_UPDATE: _written,
        ATTENTION: _attention,
    },
    limits={
        "aten::softmax.int": _last_axis,
        "aten::pow.Tensor_Scalar": _square,
        "aten::rsub.Scalar": _in_range,
        "aten::clamp": _in_range,
        **{f"aten::{op}.Scalar": _in_range for op in _ARITHMETIC},
    },
)
why_not = LIST.why_not
# Products, norms and attention. A graph without one of these is not worth moving to the
# backend; computation on their results may be float16.
ANCHORS: Final = frozenset(
    {
        *("aten::linear", "aten::addmm", "kvc::linear_w8"),
        *("aten::rms_norm", "aten::layer_norm", PRODUCT, ATTENTION),
    }
)


def why_apart(op: str) -> str:
    """Return why the compiler puts a supported node in no partition."""
    if op in (CACHE_UPDATE, ATTENTION):
        return (
            "not exactly one attention reads the updated cache, or a product feeds the "
            "old content of the cache or the mask"
        )
    return "no product feeds it, so it is kept exact"
