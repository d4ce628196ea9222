"""Support list of the backend `mlx`: operators and the dtypes they accept.

Except for products with int8 weights, this list is a subset of the support list of the
backend `cpu`. The compiler selects nodes by this list; the runtime refuses a block with
any other node.
"""

from typing import Final

from kvc.schema.backends import cpu
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    beyond_plain_attention,
    in_blocks,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing

_DTYPES: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.INT64, DType.INT32, DType.BOOL}
)
_HALVES: Final = ("kvc::attention", "kvc::cache_update")
INT8_WEIGHTS: Final = ("kvc::linear_w8", "kvc::embedding_q8")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TAKEN: Final = _names(
    "aten::add.Tensor aten::sub.Tensor aten::add.Scalar aten::sub.Scalar "
    "aten::rsub.Scalar aten::mul.Tensor aten::mul.Scalar aten::div.Tensor "
    "aten::div.Scalar aten::maximum aten::minimum aten::pow.Tensor_Scalar "
    "aten::neg aten::abs aten::ceil aten::floor aten::sqrt aten::rsqrt "
    "aten::reciprocal aten::exp aten::log aten::sin aten::cos aten::tanh "
    "aten::sigmoid aten::silu aten::relu aten::gelu aten::erf aten::clamp "
    "aten::eq.Tensor aten::ne.Tensor aten::lt.Tensor aten::le.Tensor "
    "aten::gt.Tensor aten::ge.Tensor aten::eq.Scalar aten::ne.Scalar "
    "aten::lt.Scalar aten::le.Scalar aten::gt.Scalar aten::ge.Scalar "
    "aten::logical_and aten::logical_or aten::logical_not aten::where.self "
    "aten::masked_fill.Scalar aten::_to_copy aten::clone aten::copy aten::reshape "
    "aten::repeat aten::cat aten::stack aten::full aten::arange.start_step "
    "aten::sum.dim_IntList aten::mean.dim aten::amax aten::amin aten::softmax.int "
    "aten::rms_norm aten::layer_norm aten::linear aten::matmul aten::mm aten::bmm "
    "aten::addmm aten::embedding aten::gather aten::index_select "
    "aten::index.Tensor aten::scaled_dot_product_attention kvc::glu "
    "kvc::rotary_embedding kvc::after kvc::attention kvc::cache_update "
    "kvc::check_index kvc::check_rows kvc::check_size kvc::linear_w8 "
    "kvc::embedding_q8"
)


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    if OPS[op].aliasing is Aliasing.VIEW:
        return cpu.why_not(op, arguments, results)
    if op not in TAKEN:
        return f"it does not run {op}"
    if op in INT8_WEIGHTS:
        weights = arguments[1:3] if op == "kvc::linear_w8" else arguments[:2]
        if not all(operand(each).constant for each in weights):
            return "a weight that is not of the model"
        return in_blocks(weights[1])
    types = [*(each.type for each in operands_of(arguments)), *results]
    return (
        unknown_dtypes(types, _DTYPES if op in _HALVES else _DTYPES - {DType.FLOAT16})
        or _limits(op, arguments, results)
        or cpu.why_not(op, arguments, results)
    )


def _limits(op: str, arguments: Arguments, results: Results) -> str:
    """Return which limit of the backend an instruction exceeds, or ""."""
    if op == "kvc::attention":
        return beyond_plain_attention(arguments)
    if op == "kvc::cache_update":
        held = operand(arguments[0]).type
        other = arguments[3] not in (2, -2) or len(held.dims) != 4
        if other or arguments[6]:
            return f"a write along axis {arguments[3]} of {held}"
    if op in ("aten::rms_norm", "aten::layer_norm"):
        axes = arguments[1]
        if not isinstance(axes, tuple) or len(axes) != 1:
            return f"it normalises one axis, not {axes}"
    if op == "aten::index.Tensor":
        indices = arguments[1]
        assert isinstance(indices, tuple)
        first, *rest = indices
        integers = isinstance(first, Operand) and first.type.dtype is not DType.BOOL
        if not integers or any(each is not None for each in rest):
            return "other indices than integers of the first axis"
    if op == "aten::copy":
        one, other_type = (operand(each).type for each in arguments)
        return "" if one == other_type else f"a copy of {other_type} over {one}"
    return ""
