"""Convolutions over int8 weights: what shape rules and the backend `cpu` refuse."""

import pytest

from kvc.schema.backends.cpu import why_not
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.convolution_channels import becomes_int8, channels_of
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType

INT8, FLOAT64 = DType.INT8, DType.FLOAT64
ENDING = ("identity", None, None)


def tensor(*dims: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, dims)


LINE = tensor(1, 4, 8)
# Operator -> good arguments, the shape of the result, and the places of float32 tensors
# beside the scale.
GOOD = {
    "kvc::convolution_w8": (
        (
            *(LINE, tensor(6, 2, 3, dtype=INT8), tensor(6), tensor(6)),
            *(tensor(1, 6, 6), (1,), (0,), (1,), 2, *ENDING),
        ),
        (1, 6, 6),
        (0, 3, 4),
    ),
    "kvc::pointwise_depthwise_w8": (
        (
            *(LINE, tensor(6, 4, 1, dtype=INT8), tensor(6), tensor(6), *ENDING),
            *(tensor(6, 1, 3), tensor(6), (1,), (0,), (1,), *ENDING),
        ),
        (1, 6, 6),
        (0, 3, 7, 8),
    ),
    "kvc::conv_transpose_w8": (
        (
            *(LINE, tensor(4, 3, 3, dtype=INT8), tensor(6), tensor(6)),
            *((1,), (0,), (0,), 2, (1,)),
        ),
        (1, 6, 10),
        (0, 3),
    ),
}


def replaced(arguments: tuple[object, ...], place: int, one: object):
    return (*arguments[:place], one, *arguments[place + 1 :])


def refused(op: str, arguments: tuple[object, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether the shape rule or the backend refuses arguments."""
    try:
        OPS[op].rule(*arguments)
    except ShapeMismatch:
        return True
    given = [
        Operand(each, constant=True) if isinstance(each, TensorType) else each
        for each in arguments
    ]
    return bool(why_not(op, tuple(given), [tensor(*shape)]))


@pytest.mark.parametrize("op", GOOD)
def test_results_are_those_of_float_weights(op):
    arguments, shape, _ = GOOD[op]
    assert OPS[op].rule(*arguments) == ((DType.FLOAT32, shape),)
    assert not refused(op, arguments, shape)


@pytest.mark.parametrize("op", GOOD)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.UINT8, DType.INT32])
def test_weights_are_int8(op, dtype):
    arguments, *_ = GOOD[op]
    wrong = TensorType(dtype, arguments[1].dims)
    with pytest.raises(ShapeMismatch, match="int8 weights"):
        OPS[op].rule(*replaced(arguments, 1, wrong))


@pytest.mark.parametrize("op", GOOD)
@pytest.mark.parametrize(
    "scale",
    [tensor(), tensor(1), tensor(4), tensor(7), tensor(6, 1), tensor(6, dtype=FLOAT64)],
)
def test_there_is_a_float32_scale_for_each_output_channel(op, scale):
    arguments, *_ = GOOD[op]
    with pytest.raises(ShapeMismatch, match="scales"):
        OPS[op].rule(*replaced(arguments, 2, scale))


@pytest.mark.parametrize("op", GOOD)
def test_all_other_operands_are_float32(op):
    arguments, shape, places = GOOD[op]
    for place in places:
        for dtype in (FLOAT64, DType.BFLOAT16, INT8):
            wrong = TensorType(dtype, arguments[place].dims)
            assert refused(op, replaced(arguments, place, wrong), shape), place


@pytest.mark.parametrize("op", GOOD)
def test_a_weight_that_does_not_fit_is_refused_as_float_ones_are(op):
    arguments, *_ = GOOD[op]
    out, inputs, taps = arguments[1].dims
    for dims in ((out,), (out, inputs), (out, inputs, 0), (out, inputs + 1, taps)):
        with pytest.raises(ShapeMismatch):
            OPS[op].rule(*replaced(arguments, 1, tensor(*dims, dtype=INT8)))


def test_more_than_three_axes_are_left_to_others():
    x, weight = tensor(1, 2, *[5] * 4), tensor(3, 2, *[1] * 4, dtype=INT8)
    settings = (*[(n,) * 4 for n in (1, 0, 1)], 1)
    arguments = (x, weight, tensor(3), None, None, *settings, *ENDING)
    assert OPS["kvc::convolution_w8"].rule(*arguments)
    assert refused("kvc::convolution_w8", arguments, (1, 3, 5, 5, 5, 5))


@pytest.mark.parametrize(
    ("shape", "groups", "plain", "turned"),
    [
        ((8, 32, 1), 1, True, False),
        ((32, 8, 1), 1, False, True),
        ((8, 31, 1), 1, False, False),
        ((8, 11, 3), 1, True, False),
        ((8, 2, 4, 4), 1, True, True),
        ((8, 2, 4, 4), 2, True, False),
        ((8, 1, 99), 8, False, False),  # depthwise
        ((1, 8, 99), 1, True, False),
    ],
)
def test_which_weights_become_int8(shape, groups, plain, turned):
    settings = ((1,), (0,), (0,), groups, (1,))
    arguments = (None, None, None, *settings)
    assert becomes_int8("aten::convolution", arguments, shape) is plain
    assert becomes_int8("aten::conv_transpose1d", arguments, shape) is turned


def test_channels_of_a_weight():
    assert channels_of("kvc::convolution_w8", (8, 2, 4, 5)) == (8, 40)
    assert channels_of("kvc::conv_transpose_w8", (8, 2, 4, 5)) == (2, 160)
