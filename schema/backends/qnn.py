"""Support list of the backend `qnn`: operators and the operands they accept.

The backend computes in float16 with tensors that are float32 in the program. The list
has no operators for numbers that must be exact: indices, angles, and other numbers that
are computed from indices. The compiler selects nodes by this list; the runtime refuses
a block with any other node.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing

MAX_RANK: Final = 5
LARGEST: Final = 65504.0  # float16
LEAST: Final = 2.0**-14  # the least normal float16
CACHE_UPDATE, ATTENTION = "kvc::cache_update", "kvc::attention"
CHECKS: Final = frozenset({"kvc::check_index", "kvc::check_rows", "kvc::check_size"})


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    for kind in [*(each.type for each in operands_of(arguments)), *results]:
        if not 1 <= len(kind.dims) <= MAX_RANK:
            return f"it takes tensors of 1 to {MAX_RANK} dims, and no {kind}"
    if OPS[op].aliasing is Aliasing.VIEW or op in CHECKS:
        return ""
    rule = RULES.get(op)
    return f"it does not run {op}" if rule is None else rule(arguments, results)


def why_not_float32(types: Results) -> str:
    """Return a reason that names the dtypes other than float32 among `types`, or ""."""
    return unknown_dtypes(types, {DType.FLOAT32})


def _floats(arguments: Arguments, results: Results) -> str:
    """Return why tensors are not float32, or numbers not in float16's range, or ""."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    return why_not_float32(types) or _numbers(arguments)


def _numbers(arguments: Arguments) -> str:
    for number in arguments:
        if isinstance(number, int | float) and not isinstance(number, bool):
            size = abs(number)
            if not (size == 0 or LEAST <= size <= LARGEST):
                return f"{number} is no number of float16"
    return ""


def _sum(arguments: Arguments, results: Results) -> str:
    alpha = arguments[2]
    return f"alpha {alpha}" if alpha != 1 else _floats(arguments, results)


def _square(arguments: Arguments, results: Results) -> str:
    exponent = arguments[1]
    return _floats(arguments, results) if exponent == 2 else f"exponent {exponent}"


def _linear(arguments: Arguments, results: Results) -> str:
    weight = operand(arguments[1])
    if not weight.constant or len(weight.type.dims) != 2:
        return f"a weight {weight.type} that is no matrix of the model"
    return _floats(arguments, results)


def _product(arguments: Arguments, results: Results) -> str:
    one, other = (operand(each).type for each in arguments)
    if min(len(one.dims), len(other.dims)) < 2:
        return f"the product of {one} and {other}"
    return _floats(arguments, results)


def _added_product(arguments: Arguments, results: Results) -> str:
    *tensors, beta, alpha = arguments
    if (beta, alpha) != (1, 1):
        return f"beta {beta}, alpha {alpha}"
    return _floats(tensors, results)


def _normed(arguments: Arguments, results: Results) -> str:
    """Return why a norm is not supported, or "".

    A supported norm is over one axis, with a weight that is a constant of the model.
    """
    _, axes, weight, *_ = arguments
    if not isinstance(axes, tuple) or len(axes) != 1:
        return f"it normalises one axis, not {axes}"
    if not isinstance(weight, Operand) or not weight.constant:
        return "there is no weight of the model's"
    return why_not_float32([*(each.type for each in operands_of(arguments)), *results])


def _last_axis(arguments: Arguments, results: Results) -> str:
    x, axis = arguments
    rank = len(operand(x).type.dims)
    if axis not in (-1, rank - 1):
        return f"axis {axis} of {rank}"
    return why_not_float32([operand(x).type, *results])


def _moved(arguments: Arguments, results: Results) -> str:
    return why_not_float32([*(each.type for each in operands_of(arguments)), *results])


def _written(arguments: Arguments, results: Results) -> str:
    """Return why a write to a cache is not supported, or "".

    A supported write puts float32 rows into a float32 or float16 cache of four axes,
    along the third axis.
    """
    cache, update, _, axis, *_ = arguments
    held, new = operand(cache).type, operand(update).type
    if held.dtype not in (DType.FLOAT32, DType.FLOAT16) or new.dtype is not (
        DType.FLOAT32
    ):
        return f"it takes no cache {held} of {new}"
    if len(held.dims) != 4 or axis not in (2, -2):
        return f"axis {axis} of {held}"
    return ""


def _attention(arguments: Arguments, results: Results) -> str:
    q, k, v = (operand(each).type for each in arguments[:3])
    softcap, mask, slopes, sinks = arguments[8:12]
    held = {k.dtype, v.dtype}
    if q.dtype is not DType.FLOAT32 or len(held) > 1:
        return f"attention of {q} to {k}"
    if not held <= {DType.FLOAT32, DType.FLOAT16} or arguments[13] is not None:
        return f"attention of {q} to {k}"
    if sinks is not None:
        return "attention with sinks"
    if isinstance(softcap, float) and not LEAST <= softcap <= LARGEST:
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
    if isinstance(scale, float) and not LEAST <= abs(scale) <= LARGEST:
        return f"scale {scale}"
    return ""


def _attention_product(arguments: Arguments, results: Results) -> str:
    """Return why attention without a cache is not supported, or "".

    Supported attention is not causal, and has a float32 mask or no mask.
    """
    q, k, v, mask, causal, scale, _ = arguments
    if any(len(operand(each).type.dims) != 4 for each in (q, k, v)):
        return f"attention of {operand(q).type}"
    heads, groups, others = (operand(each).type.dims[1] for each in (q, k, v))
    if groups != others or not _shared(heads, groups):
        return f"attention of {operand(q).type} to {operand(k).type}"
    if causal:
        return "causal attention without a cache"
    if isinstance(mask, Operand) and mask.type.dtype is not DType.FLOAT32:
        return f"a mask {mask.type}"
    return _moved(arguments[:4], results) or _scale(scale)


def _shared(heads: object, groups: object) -> bool:
    """Tell whether the number of query heads is a multiple of the number of key heads.

    Numbers that are not both fixed must be equal.
    """
    if not (isinstance(heads, int) and isinstance(groups, int) and groups):
        return heads == groups
    return heads >= groups and heads % groups == 0


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Final[Mapping[str, Rule]] = {
    **_table(_sum, "aten::add.Tensor aten::sub.Tensor aten::add.Scalar"),
    **_table(_sum, "aten::sub.Scalar"),
    **_table(
        _floats,
        "aten::mul.Tensor aten::mul.Scalar aten::div.Tensor aten::div.Scalar "
        "aten::maximum aten::minimum",
    ),
    **_table(
        _moved,
        "aten::neg aten::abs aten::exp aten::sqrt aten::relu aten::sigmoid aten::silu "
        "aten::tanh aten::gelu",
    ),
    **_table(_moved, "aten::clone aten::reshape aten::cat kvc::rotary_embedding"),
    **_table(_product, "aten::matmul aten::mm aten::bmm"),
    **_table(_normed, "aten::rms_norm aten::layer_norm"),
    "aten::pow.Tensor_Scalar": _square,
    "aten::softmax.int": _last_axis,
    "aten::linear": _linear,
    "aten::addmm": _added_product,
    "aten::scaled_dot_product_attention": _attention_product,
    "kvc::glu": _moved,
    CACHE_UPDATE: _written,
    ATTENTION: _attention,
}
# Products and attention. A graph without one of these is not worth moving to the
# backend; computation on their results may be float16.
ANCHORS: Final = frozenset(
    {
        "aten::linear",
        "aten::addmm",
        "aten::scaled_dot_product_attention",
        "aten::rms_norm",
        "aten::layer_norm",
        "kvc::linear_w8",
        ATTENTION,
    }
)


def why_apart(op: str) -> str:
    """Return why the compiler leaves a node that `qnn` supports in no partition."""
    if op in (CACHE_UPDATE, ATTENTION):
        return (
            "not exactly one attention reads the updated cache, or a product feeds the "
            "old content of the cache or the mask"
        )
    return "no product feeds it, so it is kept exact"
