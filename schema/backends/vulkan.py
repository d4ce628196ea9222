"""Support list of the backend `vulkan`: operators and the dtypes they accept.

This list is a subset of the support list of the backend `cpu`: it has only float32 for
computation with floats. The compiler selects nodes by this list; the runtime refuses a
block with any other node.
"""

from typing import Final

from kvc.schema.backends import cpu
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    in_blocks,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing

MAX_WIDTH: Final = 1024  # of the values that attention mixes
MAX_INDICES: Final = 4
MAX_REPEATED: Final = 4  # dims of a repeated tensor

_DTYPES: Final = frozenset(
    {
        *(DType.FLOAT32, DType.FLOAT16, DType.INT64, DType.INT32),
        *(DType.INT8, DType.UINT8, DType.BOOL),
    }
)
_HALVES: Final = ("kvc::attention", "kvc::cache_update")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TAKEN: Final = _names(
    "kvc::quantize_rows kvc::quantize_cache kvc::linear_qd8 kvc::embedding_q8 "
    "aten::add.Tensor aten::sub.Tensor aten::add.Scalar aten::sub.Scalar "
    "aten::rsub.Scalar aten::mul.Tensor aten::mul.Scalar aten::div.Tensor "
    "aten::div.Scalar aten::maximum aten::minimum aten::clamp aten::clamp.Tensor "
    "aten::pow.Tensor_Scalar aten::pow.Scalar aten::neg aten::abs aten::ceil "
    "aten::floor aten::round aten::trunc aten::sqrt aten::rsqrt aten::reciprocal "
    "aten::exp aten::log aten::sin aten::cos aten::tanh aten::sigmoid aten::silu "
    "aten::relu aten::gelu aten::erf kvc::glu kvc::rotary_embedding aten::eq.Tensor "
    "aten::ne.Tensor aten::lt.Tensor aten::le.Tensor aten::gt.Tensor aten::ge.Tensor "
    "aten::eq.Scalar aten::ne.Scalar aten::lt.Scalar aten::le.Scalar aten::gt.Scalar "
    "aten::ge.Scalar aten::logical_and aten::logical_or aten::logical_xor "
    "aten::logical_not aten::bitwise_and.Tensor aten::bitwise_or.Tensor "
    "aten::bitwise_xor.Tensor aten::bitwise_not aten::where.self "
    "aten::masked_fill.Scalar aten::sum.dim_IntList aten::mean.dim aten::amax "
    "aten::amin aten::any aten::all aten::any.dim aten::all.dim aten::any.dims "
    "aten::all.dims aten::argmax aten::argmin aten::max.dim aten::min.dim "
    "aten::cumsum aten::rms_norm aten::layer_norm aten::softmax.int "
    "aten::log_softmax.int aten::linear aten::matmul aten::mm aten::bmm aten::addmm "
    "aten::clone aten::copy aten::reshape aten::repeat aten::cat aten::stack "
    "aten::tril aten::triu aten::full aten::arange.start_step aten::_to_copy "
    "aten::index_select aten::gather aten::embedding aten::index.Tensor "
    "aten::index_copy aten::index_put aten::index_add aten::scatter.src "
    "aten::scatter.value aten::scatter_add kvc::append kvc::replace kvc::cache_update "
    "kvc::after kvc::check_index kvc::check_rows kvc::check_size kvc::attention "
    "aten::scaled_dot_product_attention"
)


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    if OPS[op].aliasing is Aliasing.VIEW:
        return cpu.why_not(op, arguments, results)
    if op not in TAKEN:
        return f"it has no kernel of {op}"
    types = [*(each.type for each in operands_of(arguments)), *results]
    return (
        unknown_dtypes(types, _DTYPES if op in _HALVES else _DTYPES - {DType.FLOAT16})
        or _limits(op, arguments, results)
        or cpu.why_not(op, arguments, results)
    )


def _limits(op: str, arguments: Arguments, results: Results) -> str:
    """Return which limit of the shaders an instruction exceeds, or ""."""
    if op in ("kvc::attention", "aten::scaled_dot_product_attention"):
        width = results[0].dims[-1]
        wide = not isinstance(width, int) or width > MAX_WIDTH
        return f"values {width} wide" if wide else ""
    if op in ("aten::index.Tensor", "aten::index_put"):
        indices = arguments[1]
        assert isinstance(indices, tuple)
        given = sum(isinstance(index, Operand) for index in indices)
        return f"{given} indices" if given > MAX_INDICES else ""
    if op == "kvc::embedding_q8":
        return in_blocks(arguments[1])
    if op == "aten::repeat":
        rank = max(len(operand(arguments[0]).type.dims), len(results[0].dims))
        return f"{rank} dims to repeat" if rank > MAX_REPEATED else ""
    return ""
