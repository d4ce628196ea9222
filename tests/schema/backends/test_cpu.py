"""What the backend `cpu` refuses although its kernels have the op."""

import pytest

from kvc.schema.backends.cpu import LACKS, RULES, why_not
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.ops import CONTROL_OPS, OPS, Aliasing
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import Affine, TensorType

F32, F64, I64 = DType.FLOAT32, DType.FLOAT64, DType.INT64
I16, U8, BOOL = DType.INT16, DType.UINT8, DType.BOOL


def operand(dtype: DType, *dims: int | Affine) -> Operand:
    return Operand(TensorType(dtype, dims), constant=True)


def test_every_op_that_computes_is_run_or_listed_as_lacking():
    computing = {op for op, spec in OPS.items() if spec.aliasing is not Aliasing.VIEW}

    assert computing - RULES.keys() - CONTROL_OPS == LACKS.keys()


def test_what_indices_select_has_no_more_dims_than_an_operand():
    x = TensorType(F32, (2,) * 8)
    for width, taken in ((1, True), (2, False), (8, False)):
        index = operand(I64, *(1,) * width)
        arguments = (Operand(x, constant=False), (index,), operand(F32), False)
        reason = why_not("aten::index_put", arguments, [x])
        assert (reason == "") is taken, reason


def refused(
    op: str, arguments: tuple[object, ...], shape: tuple[int, ...], *dtypes: DType
) -> bool:
    """Tell whether the shape rule or the backend refuses results of a shape."""
    results = [TensorType(dtype, shape) for dtype in dtypes]
    given = [a.type if isinstance(a, Operand) else a for a in arguments]
    try:
        made = OPS[op].rule(*given)
    except ShapeMismatch:
        return True
    for (dtype, sizes), kind in zip(made, results, strict=True):
        if sizes != kind.dims or dtype not in (None, kind.dtype):
            return True
    return bool(why_not(op, arguments, results))


MADE = (
    # An operator, its arguments, its results' shape and dtypes, and dtypes that no
    # shape rule makes.
    *(
        (f"aten::{op}", (operand(dtype, 2, 3), (1,), 1, False), (2,), dtypes, wrong)
        for dtype, other in ((F32, F64), (F64, F32))
        for op, dtypes, wrong in (
            ("var.correction", (dtype,), (other,)),
            ("var.correction", (dtype,), (I64,)),
            ("var_mean.correction", (dtype, dtype), (other, dtype)),
            ("var_mean.correction", (dtype, dtype), (dtype, other)),
            ("var_mean.correction", (dtype, dtype), (other, other)),
        )
    ),
    *(
        ("aten::logcumsumexp", (operand(dtype, 2, 3), 1), (2, 3), (dtype,), (wrong,))
        for dtype, wrong in ((F64, F32), (F32, F64), (F32, I64))
    ),
    *(
        (f"aten::{op}", (operand(dtype, 2, 3),), (), (dtype,), (wrong,))
        for op in ("median", "nanmedian")
        for dtype, wrong in ((I64, U8), (U8, I64), (F64, F32), (F32, F64), (I64, F64))
    ),
    *(
        (f"aten::{op}", (operand(dtype, 2, 3), *given), (2,), (dtype, I64), wrong)
        for op, given in (
            *(("median.dim", (1, False)), ("nanmedian.dim", (1, False))),
            *(("kthvalue", (1, 1, False)), ("max.dim", (1, False))),
            ("min.dim", (1, False)),
        )
        for dtype, wrong in (
            *((I64, (U8, I64)), (I64, (I64, U8)), (F64, (F32, I64))),
            *((F32, (F64, I64)), (F32, (F32, F32))),
        )
    ),
    *(
        (f"aten::{op}", (operand(dtype, 2, 3), *given), (2, 3), (dtype, I64), wrong)
        for op, given in (
            *(("sort", (1, False)), ("topk", (3, 1, True, True))),
            *(("cummax", (1,)), ("cummin", (1,))),
        )
        for dtype, wrong in (
            *((I64, (U8, I64)), (I64, (I64, U8)), (F32, (F64, I64))),
            (F32, (F32, F32)),
        )
    ),
    *(
        (f"aten::{op}", (operand(F32, 2, 3), 1, False), (2,), (I64,), (wrong,))
        for op in ("argmax", "argmin")
        for wrong in (U8, DType.INT32, F64)
    ),
    *(
        (f"aten::{op}", (operand(dtype, 2),), (2,), (BOOL,), (wrong,))
        for op in ("isnan", "isinf", "signbit", "logical_not")
        for dtype in (F32, F64, I64, BOOL)
        for wrong in (F64, F32, I64, U8)
    ),
    *(
        (f"aten::{op}", (operand(F32, 2), operand(F32, 2)), (2,), (BOOL,), (wrong,))
        for op in ("logical_and", "logical_or", "logical_xor", "eq.Tensor", "lt.Tensor")
        for wrong in (F64, F32, I64, U8)
    ),
    *(
        (f"aten::{op}", (operand(F32, 2), 1.0), (2,), (BOOL,), (wrong,))
        for op in ("eq.Scalar", "ge.Scalar")
        for wrong in (F64, U8)
    ),
    *(
        (f"aten::{op}", (operand(F32, 2, 3), *given), shape, (BOOL,), (wrong,))
        for op, given, shape in (
            *(("any", (), ()), ("all", (), ()), ("any.dim", (1, False), (2,))),
            ("all.dims", ((1,), False), (2,)),
        )
        for wrong in (F32, F64, I64, U8)
    ),
    *(
        (f"aten::div.{kind}_mode", (operand(I64, 2), other, None), (2,), (F32,), (I64,))
        for kind, other in (("Tensor", operand(I64, 2)), ("Scalar", 2))
    ),
    *(
        (op, (operand(F32, 1, 2, 8, 8), *given), shape, dtypes, wrong)
        for op, given, shape, dtypes in (
            (
                "aten::max_pool2d_with_indices",
                ((2, 2), (2, 2), (0, 0), (1, 1), False), (1, 2, 4, 4), (F32, I64),
            ),
            ("aten::adaptive_max_pool2d", ((4, 4),), (1, 2, 4, 4), (F32, I64)),
        )
        for wrong in ((F64, I64), (F32, F32), (F32, U8), (U8, I64))
    ),
    *(
        (op, (operand(dtype, 1, 2, 8, 8), *given), (1, 2, 4, 4), (dtype,), (wrong,))
        for op, given in (
            ("aten::avg_pool2d", ((2, 2), (2, 2), (0, 0), False, True, None)),
            ("aten::_adaptive_avg_pool2d", ((4, 4),)),
            ("aten::upsample_bilinear2d", ((4, 4), False, None, None)),
            ("aten::upsample_nearest2d", ((4, 4), None, None)),
        )
        for dtype, wrong in ((F32, F64), (F64, F32), (F32, U8))
    ),
    *(
        (f"aten::{op}", (operand(dtype, 3, 3), *given), shape, (dtype,), (wrong,))
        for op, given, shape in (
            *(("linalg_cholesky", (False,), (3, 3)), ("linalg_det", (), ())),
            *(("linalg_inv", (), (3, 3)), ("linalg_matrix_exp", (), (3, 3))),
        )
        for dtype, wrong in ((F32, F64), (F64, F32), (F32, I64))
    ),
    *(
        (f"aten::{op}", (operand(F64, 3, 3), *given), (3, 3), (F64, F64), wrong)
        for op, given in (("linalg_qr", ("reduced",)),)
        for wrong in ((F32, F64), (F64, F32), (F32, F32))
    ),
)  # fmt: skip


def numbered(cases: tuple[tuple, ...]) -> list:
    """Return cases as parameters that are named for their operators."""
    return [pytest.param(*case, id=f"{case[0]}-{n}") for n, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "dtypes", "wrong"), numbered(MADE)
)
def test_results_have_the_dtypes_that_kernels_write(
    op, arguments, shape, dtypes, wrong
):
    assert not refused(op, arguments, shape, *dtypes)
    assert refused(op, arguments, shape, *wrong)


A, PAIRED = (3, 3), (operand(F32, 1, 2, 8), operand(F32, 4, 2, 1), operand(F32, 4))
NO_ENDING, SETTINGS = ("identity", None, None), ((1,), (0,), (1,))
SIDES = (
    # An operator, its two tensors, what follows, and its results' shapes.
    ("linalg_solve", A, (3, 2), (True,), (3, 2)),
    ("linalg_solve", A, (3,), (True,), (3,)),
    ("linalg_solve_triangular", A, (3, 2), (True, True, False), (3, 2)),
    ("linalg_householder_product", A, (2,), (), A),
)


@pytest.mark.parametrize(("op", "first", "second", "rest", "made"), SIDES)
@pytest.mark.parametrize(
    ("one", "other"), [(F32, F64), (F64, F32), (F64, I64), (F32, DType.BFLOAT16)]
)
def test_both_operands_of_linear_algebra_have_one_dtype(
    op, first, second, rest, made, one, other
):
    op = f"aten::{op}"
    for dtype in (one, other):
        arguments = (operand(one, *first), operand(dtype, *second), *rest)
        same = dtype is one
        assert refused(op, arguments, made, one) is not same
        assert refused(op, arguments, made, other)


@pytest.mark.parametrize(("one", "other"), [(F32, F64), (F64, F32), (F32, I64)])
def test_both_operands_that_are_solved_with_a_status_have_one_dtype(one, other):
    results = [TensorType(one, (3, 2)), TensorType(DType.INT32, ())]
    for dtype in (one, other):
        arguments = (operand(one, 3, 3), operand(dtype, 3, 2), True, False)
        found = why_not("aten::linalg_solve_ex", arguments, results)
        assert (found == "") is (dtype is one), found


def test_a_mask_fills_with_the_one_element_of_a_tensor():
    x, mask = operand(F32, 2, 3), operand(BOOL, 2, 3)
    op, made = "aten::masked_fill.Tensor", [x.type]
    assert why_not(op, (x, mask, operand(F32)), made) == ""
    for dims in ((0,), (0, 1)):
        assert why_not(op, (x, mask, operand(F32, *dims)), made)


def test_all_operands_of_a_pair_of_convolutions_have_one_dtype():
    planes = operand(F32, 4, 1, 3), operand(F32, 4)
    good = (*PAIRED, *NO_ENDING, *planes, *SETTINGS, *NO_ENDING)
    op, made = "kvc::pointwise_depthwise", (1, 4, 6)
    assert not refused(op, good, made, F32)
    assert refused(op, good, made, F64)
    for place in (0, 1, 2, 6, 7):
        wrong = operand(F64, *good[place].type.dims)
        assert refused(op, (*good[:place], wrong, *good[place + 1 :]), made, F32)
