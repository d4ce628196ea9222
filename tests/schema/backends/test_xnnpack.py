import math

import pytest

from kvc.schema.backends.operands import Operand
from kvc.schema.backends.xnnpack import RULES, why_not
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import Affine, TensorType

SEQ = Affine(0, (("seq", 1),))
PAST = Affine(3, (("past", 1),))
F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def kind(*dims, dtype=F32):
    return TensorType(dtype, dims)


def made(*dims, dtype=F32):
    return Operand(kind(*dims, dtype=dtype), constant=False)


def weight(*dims, dtype=F32):
    return Operand(kind(*dims, dtype=dtype), constant=True)


X = made(1, SEQ, 64)
TRIO = (
    made(1, SEQ, 64, dtype=DType.INT8),
    made(1, SEQ, 1),
    made(1, SEQ, 1, dtype=DType.INT32),
)
TRIO_TYPES = tuple(each.type for each in TRIO)
QD8 = (weight(8, 64, dtype=DType.INT8), weight(8))
QB4 = (weight(1, 8, 8, 4, dtype=DType.UINT8), weight(1, 2, 8, dtype=BF16))


def convolution(stride, padding, dilation):
    """Return the arguments of a convolution along one axis by one element."""
    return (made(1, 4, 8), weight(4, 4, 1), None, (stride,), (padding,), (dilation,), 1)


def transposed(stride, added, dilation=1):
    """Return the arguments of a transposed convolution along one axis."""
    settings = ((stride,), (0,), (added,), 1, (dilation,))
    return (made(1, 4, 8), weight(4, 5, 3), None, *settings)


PLANE = made(SEQ, 3, 8, 6)


def average(kernel, stride, padding=(0, 0), divisor=None):
    """Return the arguments of a pool of a plane of 8 by 6."""
    return (PLANE, kernel, stride, padding, False, True, divisor)


def tall(stride):
    """Return the arguments of a pool of windows of 40 by 1."""
    return (made(SEQ, 3, 44, 6), (40, 1), stride, (0, 0), False, True, None)


def greatest(dilation, kernel=(2, 2), stride=(2, 2)):
    return (PLANE, kernel, stride, (0, 0), dilation, False)


TAKEN = [
    ("aten::trunc", (X,), X),
    ("aten::clamp.Tensor", (X, None, weight(64)), X),
    ("aten::avg_pool2d", average((2, 3), ()), made(SEQ, 3, 4, 2)),
    ("aten::avg_pool2d", average((8, 6), (1, 1)), made(SEQ, 3, 1, 1)),
    ("aten::avg_pool2d", average((2, 2), (1, 1)), made(SEQ, 3, 7, 5)),
    ("aten::avg_pool2d", average((2, 2), (2, 2), divisor=3), made(SEQ, 3, 4, 3)),
    ("aten::avg_pool2d", average((3, 3), (3, 3)), made(SEQ, 3, 3, 2)),
    (
        "aten::max_pool2d_with_indices",
        greatest((1, 2)),
        (made(SEQ, 3, 4, 2), made(SEQ, 3, 4, 2, dtype=DType.INT64)),
    ),
    ("aten::avg_pool2d", average((2, 2), (), (1, 1)), made(SEQ, 3, 5, 4)),
    ("aten::avg_pool2d", tall(()), made(SEQ, 3, 1, 6)),
    ("aten::_adaptive_avg_pool2d", (PLANE, (4, 1)), made(SEQ, 3, 4, 1)),
    (
        "aten::max_pool2d_with_indices",
        greatest((1, 1)),
        (made(SEQ, 3, 4, 3), made(SEQ, 3, 4, 3, dtype=DType.INT64)),
    ),
    (
        "aten::upsample_nearest2d",
        (PLANE, (16, 6), 2.0, None),
        made(SEQ, 3, 16, 6),
    ),
    (
        "aten::upsample_bilinear2d",
        (PLANE, (5, 9), False, None, 1.5),
        made(SEQ, 3, 5, 9),
    ),
    ("aten::batch_norm", (PLANE, None, None, *[weight(3)] * 2, 1e-5), PLANE),
    ("aten::group_norm", (PLANE, 3, weight(3), None, 1e-5), PLANE),
    ("aten::var.correction", (X, (-1,), None, True), made(1, SEQ, 1)),
    ("aten::linalg_vector_norm", (X, 2, (-1,), True), made(1, SEQ, 1)),
    ("aten::silu", (X,), X),
    ("aten::add.Tensor", (X, weight(64), 1), X),
    ("aten::add.Tensor", (X, X, 2.5), X),
    ("aten::rsub.Scalar", (X, 1, 1), X),
    ("aten::clamp", (X, None, 6.0), X),
    ("aten::clamp", (X, -math.inf, 6), X),
    ("aten::clamp", (X, 0.0, math.inf), X),
    ("aten::leaky_relu", (X, 0.01), X),
    ("aten::gelu", (X, "tanh"), X),
    ("aten::hardtanh", (X, 0.0, 6), X),
    ("aten::elu", (X, 0.5, 1, 1), X),
    ("aten::pow.Tensor_Scalar", (X, 2), X),
    ("aten::pow.Tensor_Scalar", (X, -0.5), X),
    ("aten::mean.dim", (X, (-1,), True), made(1, SEQ, 1)),
    ("aten::amax", (X, (1,), False), made(1, 64)),
    ("aten::softmax.int", (X, -1), X),
    ("aten::softmax.int", (X, 2), X),
    ("aten::rms_norm", (X, (64,), weight(64), None), X),
    ("aten::layer_norm", (X, (64,), None, None, 1e-5), X),
    ("aten::linear", (X, weight(8, 64), weight(8)), made(1, SEQ, 8)),
    ("aten::linear", (X, weight(8, 64), None), made(1, SEQ, 8)),
    ("aten::mm", (made(SEQ, 4), made(4, 5)), made(SEQ, 5)),
    ("aten::bmm", (made(2, SEQ, 4), made(2, 4, SEQ)), made(2, SEQ, SEQ)),
    ("aten::matmul", (made(2, SEQ, 4), weight(4, 3)), made(2, SEQ, 3)),
    ("aten::addmm", (weight(3), made(SEQ, 4), weight(4, 3), 1, 1), made(SEQ, 3)),
    ("aten::cat", ((X, X), -1), made(1, SEQ, 128)),
    ("aten::stack", ((X, X), 0), made(2, 1, SEQ, 64)),
    ("aten::transpose.int", (X, 1, 2), made(1, 64, SEQ)),
    ("aten::constant_pad_nd", (X, (1, 2), 0.0), made(1, SEQ, 67)),
    ("kvc::quantize_rows", (X,), TRIO),
    ("kvc::linear_qd8", (*TRIO, *QD8, None), made(1, SEQ, 8)),
    ("kvc::linear_qb4", (*TRIO, *QB4, weight(8)), made(1, SEQ, 8)),
    (
        "aten::convolution",
        (made(1, 3, 8, 8), weight(4, 3, 3, 3), None, (1, 1), (1, 1), (1, 1), 1),
        made(1, 4, 8, 8),
    ),
    (
        "aten::convolution",
        (made(1, 4, SEQ), weight(4, 1, 1), weight(4), (1,), (0,), (1,), 4),
        made(1, 4, SEQ),
    ),
    ("aten::conv_transpose1d", transposed(2, 1), made(1, 5, 18)),
]

LEFT = [
    ("aten::sin", (X,), X, "no kernel of aten::sin"),
    ("aten::avg_pool2d", tall((1, 1)), made(SEQ, 3, 5, 6), "windows (40, 1)"),
    ("aten::_adaptive_avg_pool2d", (PLANE, (3, 1)), made(SEQ, 3, 3, 1), "a pool of"),
    (
        "aten::_adaptive_avg_pool2d",
        (made(1, 3, SEQ, 6), (1, 1)),
        made(1, 3, 1, 1),
        "a pool of",
    ),
    (
        "aten::upsample_nearest2d",
        (PLANE, (12, 6), None, None),
        made(SEQ, 3, 12, 6),
        "float32[seq, 3, 8, 6] to",
    ),
    (
        "aten::upsample_bilinear2d",
        (PLANE, (12, 9), False, None, 1.6),
        made(SEQ, 3, 12, 9),
        "6 to 9 by 1.6",
    ),
    (
        "aten::upsample_bilinear2d",
        (made(1, 3, SEQ, 6), (12, 9), False, None, None),
        made(1, 3, 12, 9),
        "float32[1, 3, seq, 6] to",
    ),
    (
        "aten::group_norm",
        (made(1, 3, SEQ), 3, None, None, 1e-5),
        made(1, 3, SEQ),
        "groups of",
    ),
    ("aten::var.correction", (X, (1,), 1, True), made(1, 1, 64), "the variance of"),
    ("aten::var.correction", (X, (-1,), 64, True), made(1, SEQ, 1), "64 elements"),
    ("aten::var.correction", (made(), None, 1, False), made(), "the variance of"),
    ("aten::linalg_vector_norm", (X, 1, (-1,), True), made(1, SEQ, 1), "order 1"),
    ("aten::linalg_vector_norm", (made(), 2, None, False), made(), "of a scalar"),
    ("aten::var.correction", (made(), (0,), 1, False), made(), "the variance of"),
    ("kvc::attention", (X,), X, "no kernel of kvc::attention"),
    ("aten::silu", (made(4, dtype=BF16),), made(4, dtype=BF16), "not float32"),
    ("aten::silu", (made(0, 4),), made(0, 4), "no elements"),
    ("aten::silu", (made(*[1] * 7),), made(*[1] * 7), "more than 6 dims"),
    ("aten::add.Tensor", (X, made(1, dtype=DType.INT64), 1), X, "not float32"),
    ("aten::add.Scalar", (X, SEQ, 1), X, "argument seq"),
    ("aten::gelu", (X, "sigmoid"), X, "sigmoid"),
    ("aten::clamp", (X, None, None), X, "bounds"),
    ("aten::clamp", (X, SEQ, None), X, "bounds"),
    ("aten::clamp", (X, math.nan, 1.0), X, "bounds"),
    ("aten::clamp", (X, None, math.nan), X, "bounds"),
    ("aten::hardtanh", (X, math.nan, 1.0), X, "bounds"),
    ("aten::hardtanh", (X, -1.0, math.nan), X, "bounds"),
    ("aten::clamp", (X, math.inf, None), X, "bounds"),
    ("aten::clamp", (X, None, -math.inf), X, "bounds"),
    ("aten::clamp", (X, 1e39, None), X, "bounds"),
    ("aten::clamp", (X, 1.0, -1.0), X, "bounds"),
    ("aten::clamp", (X, True, None), X, "bounds"),
    ("aten::hardtanh", (X, 0, 10**400), X, "bounds"),
    ("aten::leaky_relu", (X, math.nan), X, "argument nan"),
    ("aten::leaky_relu", (X, math.inf), X, "argument inf"),
    ("aten::add.Tensor", (X, X, math.nan), X, "argument nan"),
    ("aten::sub.Tensor", (X, X, 1e39), X, "argument 1e"),
    ("aten::add.Scalar", (X, math.inf, 1), X, "argument inf"),
    ("aten::mul.Scalar", (X, -math.inf), X, "argument -inf"),
    ("aten::mul.Scalar", (X, True), X, "argument True"),
    ("aten::rsub.Scalar", (X, 1, 10**400), X, "argument 1"),
    ("aten::elu", (X, math.inf, 1, 1), X, "elu with"),
    ("aten::elu", (X, math.nan, 1, 1), X, "elu with"),
    ("aten::elu", (X, 10**400, 1, 1), X, "elu with"),
    ("aten::elu", (X, 1, 2, 1), X, "elu with"),
    ("aten::elu", (X, 0, 1, 1), X, "elu with"),
    ("aten::elu", (X, SEQ, 1, 1), X, "elu with"),
    ("aten::pow.Tensor_Scalar", (X, 2.5), X, "exponent 2.5"),
    ("aten::pow.Tensor_Scalar", (X, SEQ), X, "exponent seq"),
    ("aten::sum.dim_IntList", (made(), None, False), made(), "of a scalar"),
    ("aten::softmax.int", (X, 1), X, "along axis 1"),
    ("aten::softmax.int", (made(), 0), made(), "along axis 0"),
    ("aten::rms_norm", (X, (64,), made(64), None), X, "not a constant"),
    ("aten::rms_norm", (X, (SEQ, 64), None, None), X, "normalising over"),
    ("aten::linear", (X, made(8, 64), None), made(1, SEQ, 8), "not a constant"),
    ("aten::linear", (X, weight(8, 64), made(8)), made(1, SEQ, 8), "not a constant"),
    ("aten::matmul", (made(4), made(4, 2)), made(2), "the vector"),
    ("aten::addmm", (X, X, X, 1, 2), X, "factors 1 and 2"),
    ("aten::constant_pad_nd", (X, (-1, 0), 0.0), X, "padding"),
    ("aten::constant_pad_nd", (X, (SEQ, 0), 0.0), X, "padding"),
    ("kvc::quantize_rows", (made(2, SEQ),), TRIO, "rows of seq elements"),
    (
        "kvc::linear_qd8",
        (*TRIO, made(8, 64, dtype=DType.INT8), weight(8), None),
        made(1, SEQ, 8),
        "not a constant",
    ),
    (
        "kvc::linear_qb4",
        (*TRIO, QB4[0], made(1, 2, 8, dtype=BF16), None),
        made(1, SEQ, 8),
        "not a constant",
    ),
    (
        "aten::convolution",
        (made(1, 3, 8), made(4, 3, 3), None, (1,), (1,), (1,), 1),
        made(1, 4, 8),
        "not a constant",
    ),
    (
        "aten::convolution",
        (made(1, 1, 4, 4, 4), weight(*[1] * 5), None, (1,) * 3, (0,) * 3, (1,) * 3, 1),
        made(1, 1, 4, 4, 4),
        "a convolution of",
    ),
    ("aten::convolution", convolution((1 << 32) + 1, 0, 1), X, "with steps"),
    ("aten::convolution", convolution(1, 0, (1 << 32) + 1), X, "with steps"),
    ("aten::convolution", convolution(1, 1 << 32, 1), X, "with steps"),
    ("aten::convolution", convolution(1, SEQ, 1), X, "with steps"),
    ("aten::conv_transpose1d", transposed(1 << 32, 0), X, "with steps"),
    ("aten::conv_transpose1d", transposed(1, 1, 2), X, "(1,) added to a convolution"),
]  # fmt: skip


def types(results):
    each = results if isinstance(results, tuple) else (results,)
    return [one.type for one in each]


def names(cases):
    return [f"{i}-{case[0]}" for i, case in enumerate(cases)]


@pytest.mark.parametrize(("op", "arguments", "results"), TAKEN, ids=names(TAKEN))
def test_what_xnnpack_can_run_is_taken(op, arguments, results):
    assert why_not(op, arguments, types(results)) == ""


@pytest.mark.parametrize(("op", "arguments", "results", "why"), LEFT, ids=names(LEFT))
def test_what_it_cannot_run_is_left_with_a_reason(op, arguments, results, why):
    assert why in why_not(op, arguments, types(results))


def test_every_op_of_the_list_is_one_of_the_program():
    assert set(RULES) <= set(OPS)
