"""Support list of XNNPACK: operators, each with a rule on its arguments.

The compiler selects nodes by this list; the runtime refuses a block with any other
node. All tensors are float32 except row-wise quantized tensors (`kvc::quantize_rows`),
which only quantized linears can read.
"""

import math
import operator
from collections.abc import Iterable
from typing import Final, TypeGuard

from kvc.schema.backends import xnnpack_layout as layout
from kvc.schema.backends import xnnpack_spatial as spatial
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
)
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

MAX_RANK: Final = 6  # XNN_MAX_TENSOR_DIMS
TAIL_NBYTES: Final = 16  # XNN_EXTRA_BYTES: read past the end of each input
QUANTIZE: Final = "kvc::quantize_rows"
QUANTIZED_LINEARS: Final = ("kvc::linear_qd8", "kvc::linear_qb4")
_TRANSPOSED: Final = ("aten::conv_transpose1d", "aten::conv_transpose2d.input")
CONVOLUTIONS: Final = ("aten::convolution", *_TRANSPOSED)
# Operators worth a call: a graph without one of these is not moved to XNNPACK.
PRODUCTS: Final = frozenset(
    [
        *QUANTIZED_LINEARS,
        *CONVOLUTIONS,
        "aten::linear",
        "aten::mm",
        "aten::bmm",
        "aten::matmul",
        "aten::addmm",
    ]
)
_GREATEST: Final = 3.4028234663852886e38  # of float32
_MAX_STEP: Final = 1 << 31  # of a convolution: stride or dilation


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why XNNPACK cannot run a node, or ""; this function is a `WhyNot`."""
    rule = RULES.get(op)
    if rule is None:
        return f"it has no kernel of {op}"
    made = results[:1] if op in spatial.INDEXED else results
    types = [*(each.type for each in operands_of(arguments)), *made]
    return _reason_of_types(op, types) or rule(arguments, results)


def why_not_outside(kind: TensorType) -> str:
    """Return why a tensor cannot be an input or output of a partition, or ""."""
    if kind.dtype is not DType.FLOAT32:
        return f"{kind} is not float32"
    return _reason_of_rank(kind)


def _reason_of_rank(kind: TensorType) -> str:
    many = len(kind.dims) > MAX_RANK
    return f"{kind} has more than {MAX_RANK} dims" if many else ""


def _reason_of_types(op: str, types: Iterable[TensorType]) -> str:
    quantized = op == QUANTIZE or op in QUANTIZED_LINEARS
    for kind in types:
        if kind.dtype is not DType.FLOAT32 and not quantized:
            return f"{kind} is not float32"
        if reason := _reason_of_rank(kind):
            return reason
        if 0 in kind.dims:
            return f"{kind} has no elements"
    return ""


def _is_number(argument: object) -> TypeGuard[int | float]:
    """Tell whether an argument is a finite number in the range of float32."""
    plain = isinstance(argument, int | float) and not isinstance(argument, bool)
    return plain and -_GREATEST <= argument <= _GREATEST  # type: ignore[operator]  # a number, if plain


def _scalars(arguments: Arguments, results: Results) -> str:
    """Return why an argument is neither a tensor nor a float32 number, or ""."""
    for argument in arguments:
        if not isinstance(argument, Operand) and not _is_number(argument):
            return f"the argument {argument}"
    return ""


def _clamp(arguments: Arguments, results: Results) -> str:
    """Return why the bounds of a clamp are not supported, or "".

    At least one bound must be given. An infinite bound is no bound.
    """
    _, least, greatest = arguments
    low = least in (None, -math.inf) or _is_number(least)
    high = greatest in (None, math.inf) or _is_number(greatest)
    known = low and high and not (least is None and greatest is None)
    if _is_number(least) and _is_number(greatest):
        known = known and least <= greatest
    return "" if known else f"bounds {(least, greatest)}"


def _gelu(arguments: Arguments, results: Results) -> str:
    known = arguments[1] in ("none", "tanh")
    return "" if known else f"gelu approximated by {arguments[1]}"


def _elu(arguments: Arguments, results: Results) -> str:
    _, alpha, scale, input_scale = arguments
    plain = scale == 1 and input_scale == 1 and _is_number(alpha) and alpha > 0
    return "" if plain else f"elu with {alpha}, {scale}, {input_scale}"


def _power(arguments: Arguments, results: Results) -> str:
    exponent = arguments[1]
    return "" if exponent in (-1, -0.5, 0.5, 2, 3) else f"the exponent {exponent}"


def _reduce(arguments: Arguments, results: Results) -> str:
    return "" if operand(arguments[0]).type.dims else "a reduction of a scalar"


def _softmax(arguments: Arguments, results: Results) -> str:
    axis, rank = arguments[1], len(operand(arguments[0]).type.dims)
    return "" if rank and axis in (-1, rank - 1) else f"softmax along axis {axis}"


def _norm(arguments: Arguments, results: Results) -> str:
    """Return why a norm is not supported, or "".

    The dims that are normalized must have fixed sizes; weight and bias must be
    constants.
    """
    shape = arguments[1]
    assert isinstance(shape, tuple)
    if not shape or not all(isinstance(size, int) for size in shape):
        return f"normalising over {shape}"
    return _reason_of_weights(arguments[2:])


def _reason_of_weights(arguments: Arguments) -> str:
    for each in operands_of(arguments):
        if not each.constant:
            return f"the weight {each.type} is not a constant"
    return ""


def _linear(arguments: Arguments, results: Results) -> str:
    return _reason_of_weights(arguments[1:])


def _quantize(arguments: Arguments, results: Results) -> str:
    x = operand(arguments[0]).type
    fixed = isinstance(x.dims[-1], int)
    return "" if fixed else f"quantized rows of {x.dims[-1]} elements"


def _quantized_linear(arguments: Arguments, results: Results) -> str:
    return _reason_of_weights(arguments[3:])


def _matmul(arguments: Arguments, results: Results) -> str:
    for each in operands_of(arguments):
        if len(each.type.dims) < 2:
            return f"a product with the vector {each.type}"
    return ""


def _addmm(arguments: Arguments, results: Results) -> str:
    beta, alpha = arguments[3:]
    return "" if beta == alpha == 1 else f"addmm with factors {beta} and {alpha}"


def _convolution(arguments: Arguments, results: Results) -> str:
    """Return why a convolution is not supported, or "".

    The convolution must be along one or two axes, and its weight must be a constant.
    """
    return _reason_of_steps(arguments, arguments[3:6])


def _transposed(arguments: Arguments, results: Results) -> str:
    """Return why a transposed convolution is not supported, or "".

    The output padding must be below the stride. All other rules are those of
    `_convolution`.
    """
    stride, padding, added, _, dilation = arguments[3:]
    if reason := _reason_of_steps(arguments, (stride, padding, dilation)):
        return reason
    assert isinstance(stride, tuple)
    assert isinstance(added, tuple)
    fits = all(map(operator.lt, added, stride))
    return "" if fits else f"{added} added to a convolution with stride {stride}"


def _reason_of_steps(arguments: Arguments, numbers: Arguments) -> str:
    """Return why the stride, padding and dilation of a convolution are bad, or "".

    Args:
        arguments: all arguments of the convolution; its input and weights are checked
            too.
        numbers: the arguments that are the stride, the padding and the dilation.
    """
    x = operand(arguments[0]).type
    if len(x.dims) > 4:
        return f"a convolution of {x}"
    for steps in numbers:
        assert isinstance(steps, tuple)
        if not all(isinstance(step, int) and step <= _MAX_STEP for step in steps):
            return f"a convolution with steps {steps}"
    return _reason_of_weights(arguments[1:3])


_ANY = (
    "abs", "batch_norm", "ceil", "clamp.Tensor", "exp", "floor", "log", "neg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "silu", "sqrt", "tanh",
    "trunc",
)  # fmt: skip
_SCALARS = (
    "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar",
    "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "maximum", "minimum",
    "leaky_relu",
)  # fmt: skip
_REDUCE = ("sum.dim_IntList", "mean.dim", "amax", "amin")
_RESHAPE = ("alias", "view", "reshape", "unsqueeze", "squeeze.dims")

RULES: Final[dict[str, Rule]] = {
    **{f"aten::{name}": layout.anything for name in _ANY},
    **{f"aten::{name}": _scalars for name in _SCALARS},
    **{f"aten::{name}": _reduce for name in _REDUCE},
    **{f"aten::{name}": layout.reshape for name in _RESHAPE},
    "aten::clamp": _clamp,
    "aten::hardtanh": _clamp,
    "aten::gelu": _gelu,
    "aten::elu": _elu,
    "aten::pow.Tensor_Scalar": _power,
    "aten::softmax.int": _softmax,
    "aten::rms_norm": _norm,
    "aten::layer_norm": _norm,
    "aten::linear": _linear,
    "aten::mm": layout.anything,
    "aten::bmm": layout.anything,
    "aten::matmul": _matmul,
    "aten::addmm": _addmm,
    **dict.fromkeys(_TRANSPOSED, _transposed),
    "aten::convolution": _convolution,
    "aten::cat": layout.join,
    "aten::stack": layout.join,
    "aten::clone": layout.anything,
    "aten::transpose.int": layout.anything,
    "aten::permute": layout.anything,
    "aten::slice.Tensor": layout.slice_,
    "aten::select.int": layout.select,
    "aten::split_with_sizes": layout.split,
    "aten::expand": layout.expand,
    "aten::constant_pad_nd": layout.pad,
    "aten::group_norm": spatial.group_norm,
    "aten::var.correction": spatial.variance,
    "aten::var_mean.correction": spatial.variance,
    "aten::linalg_vector_norm": spatial.vector_norm,
    "aten::avg_pool2d": spatial.pool,
    "aten::max_pool2d_with_indices": spatial.pool,
    "aten::_adaptive_avg_pool2d": spatial.adaptive_pool,
    "aten::adaptive_max_pool2d": spatial.adaptive_pool,
    "aten::upsample_nearest2d": spatial.nearest,
    "aten::upsample_bilinear2d": spatial.bilinear,
    QUANTIZE: _quantize,
    **dict.fromkeys(QUANTIZED_LINEARS, _quantized_linear),
}
