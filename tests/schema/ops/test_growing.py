"""Rules of ops that have no eager twin: those of growing memory, and the check."""

import pytest

from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import Aliasing, ShapeMismatch
from kvc.schema.types import TensorType

F32, F16, I32, I64 = DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT64


def tensor(*dims, dtype=F32):
    return TensorType(dtype, dims)


@pytest.mark.parametrize(
    ("op", "arguments", "shape"),
    [
        ("kvc::append", (tensor(1, 3, 4), tensor(1, 2, 4), 1), (1, 5, 4)),
        ("kvc::append", (tensor(1, 0, 4), tensor(1, 2, 4), -2), (1, 2, 4)),
        ("kvc::append", (tensor(3), tensor(0), 0), (3,)),
        ("kvc::replace", (tensor(1, 3, 4), tensor(1, 9, 4), 1), (1, 9, 4)),
        ("kvc::replace", (tensor(1, 3, 4), tensor(1, 0, 4), -2), (1, 0, 4)),
    ],
)
def test_what_grows_has_its_new_length(op, arguments, shape):
    assert OPS[op].rule(*arguments) == ((F32, shape),)


@pytest.mark.parametrize("op", ["kvc::append", "kvc::replace"])
@pytest.mark.parametrize(
    "arguments",
    [
        (tensor(1, 3, 4), tensor(2, 3, 4), 1),
        (tensor(1, 3, 4), tensor(1, 3, 5), 1),
        (tensor(1, 3, 4), tensor(3, 4), 1),
        (tensor(1, 3, 4), tensor(1, 3, 4, dtype=F16), 1),
        (tensor(1, 3, 4), tensor(1, 3, 4), 3),
        (tensor(1, 3, 4), tensor(1, 3, 4), -4),
        (tensor(), tensor(), 0),
    ],
)
def test_what_grows_keeps_all_but_its_length(op, arguments):
    with pytest.raises(ShapeMismatch):
        OPS[op].rule(*arguments)


@pytest.mark.parametrize("dtype", [I32, I64])
@pytest.mark.parametrize("numbers", [(0, 1, 8), (-8, 0, 0)])
def test_a_check_has_no_results(dtype, numbers):
    assert OPS["kvc::check_index"].rule(tensor(2, dtype=dtype), *numbers) == ()


@pytest.mark.parametrize(
    "arguments",
    [
        (tensor(2), 0, 1, 8),
        (tensor(2, dtype=DType.UINT8), 0, 1, 8),
        (tensor(2, dtype=I64), 1, 1, 8),
        (tensor(2, dtype=I64), 0, -1, 8),
        (tensor(2, dtype=I64), 0, 1, -1),
    ],
)
def test_a_check_takes_indices_and_sizes(arguments):
    with pytest.raises(ShapeMismatch):
        OPS["kvc::check_index"].rule(*arguments)


def test_a_check_of_rows_takes_a_count_for_each():
    starts = tensor(2, dtype=I64)
    assert OPS["kvc::check_rows"].rule(starts, starts, 0, 8) == ()


@pytest.mark.parametrize(
    "arguments",
    [
        (tensor(2, dtype=I32), tensor(2, dtype=I64), 1, 8),
        (tensor(2, 1, dtype=I64), tensor(2, dtype=I64), 1, 8),
        (tensor(2, dtype=I64), tensor(2, dtype=I32), 1, 8),
        (tensor(2, dtype=I64), tensor(1, dtype=I64), 1, 8),
        (tensor(2, dtype=I64), tensor(2, dtype=I64), -1, 8),
        (tensor(2, dtype=I64), tensor(2, dtype=I64), 1, -1),
    ],
)
def test_a_check_of_rows_takes_nothing_else(arguments):
    with pytest.raises(ShapeMismatch):
        OPS["kvc::check_rows"].rule(*arguments)


def test_classes_are_as_the_checks_take_them():
    assert OPS["kvc::append"].aliasing is Aliasing.UPDATE
    assert OPS["kvc::replace"].aliasing is Aliasing.UPDATE
    checks = {name for name, spec in OPS.items() if spec.aliasing is Aliasing.CHECK}
    assert checks == {
        "aten::_assert_async.msg",
        "kvc::check_index",
        "kvc::check_rows",
        "kvc::check_size",
    }


@pytest.mark.parametrize("dims", [(0,), (2,), (1, 3)])
def test_a_check_of_a_truth_takes_one(dims):
    check = OPS["aten::_assert_async.msg"].rule
    assert check(TensorType(DType.BOOL, (1, 1)), "") == ()

    with pytest.raises(ShapeMismatch, match="the truth of"):
        check(TensorType(DType.BOOL, dims), "")
