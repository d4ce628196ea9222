import pytest

from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType

INT8, UINT8, INT64 = DType.INT8, DType.UINT8, DType.INT64
FLOAT64, BFLOAT16, FLOAT16 = DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16


def tensor(*dims: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, dims)


# Two rows of 96, three blocks each.
ROWS = (
    tensor(2, 96, dtype=INT8),
    tensor(2, 1),
    tensor(2, 3, dtype=INT8),
    tensor(2, 3, dtype=INT8),
)
Q8 = (*ROWS, tensor(5, 96, dtype=INT8), tensor(5, 3), tensor(5))
Q4 = (
    *ROWS,
    tensor(1, 12, 8, 4, dtype=UINT8),
    tensor(1, 3, 8, dtype=BFLOAT16),
    tensor(8),
    tensor(1, 3, 8, dtype=FLOAT16),
)
EXPERTS = (
    *ROWS,
    tensor(4, 5, 96, dtype=INT8),
    tensor(4, 5, 3),
    tensor(2, dtype=INT64),
    tensor(4, 5),
)


def rule(op: str, *arguments: object) -> object:
    return OPS[op].rule(*arguments)


def with_one(arguments: tuple, place: int, wrong: object) -> tuple:
    return (*arguments[:place], wrong, *arguments[place + 1 :])


@pytest.mark.parametrize(
    ("width", "count"), [(1, 1), (32, 1), (33, 2), (96, 3), (97, 4)]
)
def test_the_last_block_of_a_row_may_be_shorter(width: int, count: int):
    blocks = (INT8, (2, 3, count))
    wanted = ((INT8, (2, 3, width)), (DType.FLOAT32, (2, 3, 1)), blocks, blocks)
    assert rule("kvc::quantize_blocks", tensor(2, 3, width)) == wanted


@pytest.mark.parametrize("x", [tensor(), tensor(2, 0), tensor(2, 3, dtype=FLOAT64)])
def test_only_rows_of_floats_are_quantized(x: TensorType):
    with pytest.raises(ShapeMismatch, match="quantize_blocks of"):
        rule("kvc::quantize_blocks", x)


def test_products_have_the_shape_of_their_rows_and_channels():
    assert rule("kvc::linear_q8", *Q8) == ((DType.FLOAT32, (2, 5)),)
    assert rule("kvc::linear_q8", *Q8[:6], None) == ((DType.FLOAT32, (2, 5)),)
    assert rule("kvc::linear_q4", *Q4) == ((DType.FLOAT32, (2, 8)),)
    assert rule("kvc::expert_linear_q8", *EXPERTS) == ((DType.FLOAT32, (2, 5)),)
    whole = with_one(EXPERTS, 5, tensor(4, 5, 1))[:7]
    assert rule("kvc::expert_linear_q8", *whole, None) == ((DType.FLOAT32, (2, 5)),)


def test_rows_of_any_width_have_one_scale():
    blocks = tensor(2, 2, dtype=INT8)
    rows = (tensor(2, 33, dtype=INT8), tensor(2, 1), blocks, blocks)
    weight = (tensor(5, 33, dtype=INT8), tensor(5, 1), None)
    assert rule("kvc::linear_q8", *rows, *weight) == ((DType.FLOAT32, (2, 5)),)


ROWS_THAT_DO_NOT_FIT = [
    (0, tensor(2, 96)),
    (0, tensor(2, 95, dtype=INT8)),
    (0, tensor(2, 64, dtype=INT8)),
    (0, tensor(dtype=INT8)),
    (0, tensor(2, 0, dtype=INT8)),
    (1, tensor(2, 1, dtype=FLOAT64)),
    (1, tensor(1, 1)),
    (2, tensor(2, 3, dtype=DType.INT32)),
    (2, tensor(2, 1, dtype=INT8)),
    (2, tensor(6, dtype=INT8)),
    (3, tensor(2, 3)),
    (3, tensor(2, 4, dtype=INT8)),
    (3, tensor(1, 3, dtype=INT8)),
]


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *ROWS_THAT_DO_NOT_FIT,
        (4, tensor(5, 96)),
        (4, tensor(5, 64, dtype=INT8)),
        (4, tensor(96, dtype=INT8)),
        (5, tensor(5, 3, dtype=FLOAT64)),
        (5, tensor(5)),
        (5, tensor(4, 3)),
        (5, tensor(5, 0)),
        (5, tensor(5, 2)),
        (5, tensor(5, 6)),
        (5, tensor(5, 96)),
        (6, tensor(4)),
        (6, tensor(5, dtype=FLOAT64)),
    ],
)
def test_an_int8_product_refuses_what_does_not_fit(place: int, wrong: TensorType):
    with pytest.raises(ShapeMismatch):
        rule("kvc::linear_q8", *with_one(Q8, place, wrong))


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *ROWS_THAT_DO_NOT_FIT,
        (4, tensor(1, 12, 8, 4, dtype=INT8)),
        (4, tensor(1, 8, 8, 4, dtype=UINT8)),
        (4, tensor(8, 48, dtype=UINT8)),
        (5, tensor(1, 3, 8, dtype=FLOAT64)),
        (5, tensor(1, 3, 8, dtype=INT8)),
        (5, tensor(1, 2, 8)),
        (5, tensor(1, 2, 8, dtype=BFLOAT16)),
        (5, tensor(8, 3, dtype=BFLOAT16)),
        (6, tensor(7)),
        (6, tensor(8, dtype=FLOAT64)),
        (7, tensor(1, 3, 8, dtype=BFLOAT16)),
        (7, tensor(1, 3, 8, dtype=FLOAT64)),
        (7, tensor(1, 1, 8)),
        (7, tensor(3, 8)),
    ],
)
def test_an_int4_product_refuses_what_does_not_fit(place: int, wrong: TensorType):
    with pytest.raises(ShapeMismatch):
        rule("kvc::linear_q4", *with_one(Q4, place, wrong))


@pytest.mark.parametrize("scale", [BFLOAT16, FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("minimum", [None, FLOAT16, DType.FLOAT32])
def test_int4_scales_and_minimums_may_have_these_dtypes(
    scale: DType, minimum: DType | None
):
    scales = tensor(1, 3, 8, dtype=scale)
    minimums = None if minimum is None else tensor(1, 3, 8, dtype=minimum)
    found = rule("kvc::linear_q4", *Q4[:5], scales, None, minimums)
    assert found == ((DType.FLOAT32, (2, 8)),)


@pytest.mark.parametrize("scale", [FLOAT16, DType.FLOAT32])
def test_int4_products_of_rows_with_one_zero_point_take_bfloat16_alone(scale: DType):
    rows = *Q4[:2], tensor(2, 1, dtype=DType.INT32), Q4[4]
    assert rule("kvc::linear_qb4", *rows, Q4[5], None)
    with pytest.raises(ShapeMismatch, match="scales"):
        rule("kvc::linear_qb4", *rows, tensor(1, 3, 8, dtype=scale), None)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *ROWS_THAT_DO_NOT_FIT,
        (0, tensor(1, 2, 96, dtype=INT8)),
        (4, tensor(4, 5, 96)),
        (4, tensor(5, 96, dtype=INT8)),
        (5, tensor(4, 5)),
        (5, tensor(4, 5, 2)),
        (5, tensor(4, 5, 3, dtype=BFLOAT16)),
        (6, tensor(3, dtype=INT64)),
        (6, tensor(2, dtype=DType.INT32)),
        (7, tensor(5)),
        (7, tensor(4, 5, dtype=BFLOAT16)),
    ],
)
def test_experts_refuse_what_does_not_fit(place: int, wrong: TensorType):
    with pytest.raises(ShapeMismatch):
        rule("kvc::expert_linear_q8", *with_one(EXPERTS, place, wrong))


@pytest.mark.parametrize("scale", [tensor(9), tensor(9, 1), tensor(9, 2)])
def test_a_table_has_scales_of_rows_or_of_their_blocks(scale: TensorType):
    ids = tensor(2, 3, dtype=INT64)
    found = rule("kvc::embedding_q8", tensor(9, 4, dtype=INT8), scale, ids)
    assert found == ((DType.FLOAT32, (2, 3, 4)),)


@pytest.mark.parametrize(
    "scale",
    [tensor(), tensor(8), tensor(8, 2), tensor(9, 0), tensor(9, 3), tensor(9, 1, 1)],
)
def test_scales_that_do_not_fit_a_table_are_refused(scale: TensorType):
    with pytest.raises(ShapeMismatch, match="scales"):
        rule(
            "kvc::embedding_q8",
            tensor(9, 4, dtype=INT8),
            scale,
            tensor(1, dtype=INT64),
        )
