"""Support list of the backend `coreai`: operators and the operands they accept.

The backend computes in float32 or float16, as the recipe selects, and stores int64 as
int32. Caches are float32 or float16. The compiler selects nodes by this list; the
runtime refuses a block with any other node.
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
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

MAX_RANK: Final = 5
LARGEST_INTEGER: Final = 2**31 - 1
ATTENTION: Final = "kvc::attention"
_P = Primitive
PRIMITIVES: Final = frozenset(_P) - {
    *(_P.POWER, _P.GREATER_EQUAL, _P.LESS, _P.LESS_EQUAL, _P.XOR),
    *(_P.NEG, _P.CEIL, _P.FLOOR, _P.RECIPROCAL),
}
CHECKS: Final = frozenset({"kvc::check_index", "kvc::check_rows", "kvc::check_size"})
# Exponents that can be computed with products and square roots.
POWERS: Final = (2, 3, 0.5, -0.5, -1)
_INTEGERS: Final = frozenset({DType.INT64, DType.INT32})
_FLOATS: Final = frozenset({DType.FLOAT32})
_KNOWN: Final = _INTEGERS | _FLOATS | {DType.BOOL}
_HALF: Final = frozenset({DType.FLOAT32, DType.FLOAT16})


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    for kind in types:
        if not 1 <= len(kind.dims) <= MAX_RANK:
            return f"it takes tensors of 1 to {MAX_RANK} dims, and no {kind}"
        if 0 in kind.dims:
            return f"{kind} has no elements"
    is_view = OPS[op].aliasing is Aliasing.VIEW
    holds_caches = is_view or op in (CACHE_UPDATE, ATTENTION)
    known = _KNOWN | _HALF if holds_caches else _KNOWN
    refused = unknown_dtypes(types, known) or _large_number(arguments)
    if refused or is_view or op in CHECKS:
        return refused
    rule = RULES.get(op)
    return f"it does not run {op}" if rule is None else rule(arguments, results)


def _large_number(arguments: Arguments) -> str:
    """Return why a number among the arguments exceeds int32 or float32, or ""."""
    for number in arguments:
        if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
            return f"{number} is no number of 32 bits"
        if isinstance(number, float) and not abs(number) <= _LARGEST_FLOAT:
            return f"{number} is no finite number of float32"
    return ""


_LARGEST_FLOAT: Final = 3.4028234663852886e38


def _dtypes(arguments: Arguments, results: Results) -> frozenset[DType]:
    found = {each.type.dtype for each in operands_of(arguments)}
    return frozenset(found | {each.dtype for each in results})


def _any(arguments: Arguments, results: Results) -> str:
    return ""


def _floats(arguments: Arguments, results: Results) -> str:
    """Return "" if all tensors are float32, else why the backend refuses them."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    return unknown_dtypes(types, _FLOATS)


def _numbers(arguments: Arguments, results: Results) -> str:
    """Return "" if all tensors are floats, or all integers, else why not."""
    found = _dtypes(arguments, results)
    if found <= _FLOATS or found <= _INTEGERS:
        return ""
    labels = ", ".join(sorted(each.label for each in found))
    return f"numbers of several kinds: {labels}"


def _sum(arguments: Arguments, results: Results) -> str:
    alpha = arguments[2]
    return f"alpha {alpha}" if alpha != 1 else _scalar(arguments, results)


def _scalar(arguments: Arguments, results: Results) -> str:
    """Return "" if all tensors are floats, or all are integers, else why not.

    A float number with an integer tensor is refused too.
    """
    is_float = any(isinstance(each, float) for each in arguments)
    if is_float and _dtypes(arguments, results) & _INTEGERS:
        return "an integer tensor and a float"
    return _numbers(arguments, results)


def _compared(arguments: Arguments, results: Results) -> str:
    return _scalar(arguments, ())


def _truths(arguments: Arguments, results: Results) -> str:
    others = _dtypes(arguments, results) - {DType.BOOL}
    labels = ", ".join(sorted(each.label for each in others))
    return f"it takes bool, not {labels}" if others else ""


def _power(arguments: Arguments, results: Results) -> str:
    exponent = arguments[1]
    if exponent not in POWERS:
        return f"exponent {exponent}"
    return _floats(arguments, results)


def _chosen(arguments: Arguments, results: Results) -> str:
    """Return "" if the condition is bool and the values are of one kind, else why not.

    The values are all floats, or all integers.
    """
    condition, *rest = arguments
    if operand(condition).type.dtype is not DType.BOOL:
        return f"a condition {operand(condition).type}"
    return _numbers(rest, results)


def _filled(arguments: Arguments, results: Results) -> str:
    x, mask, _ = arguments
    if operand(mask).type.dtype is not DType.BOOL:
        return f"a mask {operand(mask).type}"
    return _scalar((x, arguments[2]), results)


def _reduced(arguments: Arguments, results: Results) -> str:
    if not arguments[1]:
        return "it reduces axes that are named"
    return _floats(arguments, results)


def _normed(arguments: Arguments, results: Results) -> str:
    _, axes, *_ = arguments
    if not isinstance(axes, tuple) or len(axes) != 1:
        return f"it normalises one axis, not {axes}"
    return _floats(arguments, results)


def _product(arguments: Arguments, results: Results) -> str:
    one, other = (operand(each).type for each in arguments[:2])
    if min(len(one.dims), len(other.dims)) < 2:
        return f"the product of {one} and {other}"
    return _floats(arguments, results)


def _linear(arguments: Arguments, results: Results) -> str:
    weight = operand(arguments[1])
    if not weight.constant or len(weight.type.dims) != 2:
        return f"a weight {weight.type} that is no matrix of the model"
    if len(operand(arguments[0]).type.dims) < 2:
        return f"the product of {operand(arguments[0]).type} and a weight"
    return _floats(arguments, results)


def _added_product(arguments: Arguments, results: Results) -> str:
    *tensors, beta, alpha = arguments
    return (
        f"beta {beta}, alpha {alpha}"
        if (beta, alpha) != (1, 1)
        else _floats(tensors, results)
    )


def _of_table(arguments: Arguments, results: Results) -> str:
    """Return "" if the table is float32 and the indices are integers, else why not.

    The operator looks up rows of the table. The number of rows must be fixed, and the
    result must have at most 5 dims.
    """
    return _rows(operand(arguments[0]), operand(arguments[1]))


def _rows(table: Operand, index: Operand) -> str:
    if table.type.dtype not in _FLOATS or not isinstance(table.type.dims[0], int):
        return f"rows of {table.type}"
    if index.type.dtype not in _INTEGERS:
        return f"an index {index.type}"
    rank = len(table.type.dims) - 1 + len(index.type.dims)
    return f"a result of {rank} dims" if rank > MAX_RANK else ""


def _selected(arguments: Arguments, results: Results) -> str:
    x, axis, index = arguments
    if axis not in (0, -len(operand(x).type.dims)):
        return f"an index along axis {axis}"
    return _rows(operand(x), operand(index))


def _indexed(arguments: Arguments, results: Results) -> str:
    x, indices = arguments
    if not isinstance(indices, tuple) or not isinstance(indices[0], Operand):
        return "no index of the first axis"
    if any(each is not None for each in indices[1:]):
        return "indices of several axes"
    return _rows(operand(x), indices[0])


def _cast(arguments: Arguments, results: Results) -> str:
    before, after = operand(arguments[0]).type.dtype, results[0].dtype
    if before in _FLOATS and after not in _FLOATS:
        return f"{before.label} as {after.label}"
    return ""


def _written(arguments: Arguments, results: Results) -> str:
    """Return "" if the backend can write to the cache, else why not.

    The cache has four axes and is float32 or float16. The rows written are float32, and
    are written along the axis before the last.
    """
    cache, update, _, axis, *_ = arguments
    held, new = operand(cache).type, operand(update).type
    if held.dtype not in _HALF or new.dtype is not DType.FLOAT32:
        return f"it takes no cache {held} of {new}"
    return (
        f"axis {axis} of {held}" if len(held.dims) != 4 or axis not in (2, -2) else ""
    )


def _attention(arguments: Arguments, results: Results) -> str:
    q, k, v = (operand(each).type for each in arguments[:3])
    if q.dtype is not DType.FLOAT32 or not {k.dtype, v.dtype} <= _HALF:
        return f"attention of {q} to {k}"
    if arguments[11] is not None:
        return "attention with sinks"
    mask, layout = arguments[9], arguments[12]
    if isinstance(mask, Operand):
        if layout != "linear":
            return "a mask over a ring"
        if mask.type.dtype not in (DType.BOOL, DType.FLOAT32):
            return f"a mask {mask.type}"
    return ""


def _attention_product(arguments: Arguments, results: Results) -> str:
    """Return "" if the backend can compute attention without a cache, else why not."""
    q, k, v, mask, _, _, _ = arguments
    if any(len(operand(each).type.dims) != 4 for each in (q, k, v)):
        return f"attention of {operand(q).type}"
    if isinstance(mask, Operand) and mask.type.dtype is DType.BOOL:
        return _floats((q, k, v), results)
    return _floats((q, k, v, mask), results)


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Final[Mapping[str, Rule]] = {
    **_table(_sum, "aten::add.Tensor aten::sub.Tensor aten::add.Scalar"),
    **_table(_sum, "aten::sub.Scalar aten::rsub.Scalar"),
    **_table(_scalar, "aten::mul.Tensor aten::mul.Scalar"),
    **_table(_numbers, "aten::maximum aten::minimum aten::neg aten::abs"),
    **_table(
        _floats,
        "aten::div.Tensor aten::div.Scalar aten::sqrt aten::rsqrt aten::reciprocal "
        "aten::exp aten::log aten::sin aten::cos aten::tanh aten::sigmoid aten::silu "
        "aten::relu aten::gelu aten::erf kvc::glu kvc::rotary_embedding "
        "aten::softmax.int",
    ),
    **_table(
        _compared,
        "aten::eq.Tensor aten::ne.Tensor aten::lt.Tensor aten::le.Tensor "
        "aten::gt.Tensor aten::ge.Tensor aten::eq.Scalar aten::ne.Scalar "
        "aten::lt.Scalar aten::le.Scalar aten::gt.Scalar aten::ge.Scalar",
    ),
    **_table(
        _truths,
        "aten::logical_and aten::logical_or aten::logical_not "
        "aten::bitwise_and.Tensor aten::bitwise_or.Tensor aten::bitwise_not",
    ),
    **_table(_reduced, "aten::sum.dim_IntList aten::mean.dim aten::amax aten::amin"),
    **_table(_normed, "aten::rms_norm aten::layer_norm"),
    **_table(_product, "aten::matmul aten::mm aten::bmm"),
    **_table(_any, "aten::clone aten::reshape aten::arange.start_step aten::full"),
    **_table(_numbers, "aten::cat aten::copy"),
    "aten::pow.Tensor_Scalar": _power,
    "aten::where.self": _chosen,
    "aten::masked_fill.Scalar": _filled,
    "aten::linear": _linear,
    "aten::addmm": _added_product,
    "aten::embedding": _of_table,
    "aten::index_select": _selected,
    "aten::index.Tensor": _indexed,
    "aten::_to_copy": _cast,
    "aten::scaled_dot_product_attention": _attention_product,
    CACHE_UPDATE: _written,
    ATTENTION: _attention,
}
# Operators that make it worth moving a method to the backend.
ANCHORS: Final = frozenset(
    {
        *("aten::linear", "aten::addmm", "aten::matmul", "aten::mm", "aten::bmm"),
        *("aten::scaled_dot_product_attention", ATTENTION),
    }
)


def why_apart(op: str) -> str:
    """Return why the compiler puts a supported operator in no partition, or ""."""
    if op in (CACHE_UPDATE, ATTENTION) or op in CHECKS:
        return "the method computes the index or length that the operator has to check"
    return ""
