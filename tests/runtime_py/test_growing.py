"""Arrays of the caller's own that grow."""

import ml_dtypes
import numpy as np
import pytest
from resident_memory import LINUX, resident_nbytes

from kvc.runtime import BadSetting, CacheOverflow, GrowingArray, OutOfMemory


def filled(capacity=8):
    made = GrowingArray("float32", (2, 0, 3), 1, capacity)
    made.append(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    return made


def test_it_begins_with_zeros_and_grows_without_moving():
    made = GrowingArray(np.float32, (2, 1, 3), axis=-2, capacity=4)
    address = made.array.ctypes.data
    assert made.array.tolist() == [[[0, 0, 0]], [[0, 0, 0]]]
    made.append(np.ones((2, 2, 3), np.float32))
    assert made.array[0, :, 0].tolist() == [0, 1, 1]
    assert made.array.ctypes.data == address
    assert (len(made), made.length, made.shape) == (3, 3, (2, 3, 3))
    assert (made.axis, made.capacity, made.dtype) == (1, 4, np.float32)


def test_what_is_written_through_the_view_stays():
    made = filled()
    made.array[:] = 5
    made.append(np.zeros((2, 1, 3), np.float32))
    assert made.array[1, :, 2].tolist() == [5, 5, 0]


def test_a_tensor_and_bfloat16_can_be_appended():
    import torch

    made = GrowingArray("bfloat16", (0, 2), 0, 4)
    assert made.dtype == ml_dtypes.bfloat16
    made.append(torch.tensor([[1, -2]], dtype=torch.bfloat16))
    assert made.array.tolist() == [[1, -2]]


def test_it_is_cut_and_grows_again():
    made = filled()
    made.truncate(1)
    assert made.array[0].tolist() == [[0, 1, 2]]
    made.append(np.full((2, 1, 3), 9, np.float32))
    assert made.array[1].tolist() == [[6, 7, 8], [9, 9, 9]]


def test_beyond_its_capacity_nothing_is_written():
    made = filled(3)
    with pytest.raises(CacheOverflow) as caught:
        made.append(np.ones((2, 2, 3), np.float32))
    facts = (caught.value.start, caught.value.count, caught.value.capacity)
    assert facts == (2, 2, 3)
    assert len(made) == 2


@pytest.mark.parametrize(
    "rows",
    [np.ones((2, 1, 4), np.float32), np.ones((2, 1, 3)), np.ones((2, 3), np.float32)],
)
def test_rows_of_another_kind_are_refused(rows):
    with pytest.raises(BadSetting, match=r"rows: expected float32\[2, ., 3\]"):
        filled().append(rows)


@pytest.mark.parametrize("length", [-1, 3])
def test_it_is_not_cut_to_more_than_there_is(length):
    with pytest.raises(BadSetting, match=r"length: expected 0\.\.2"):
        filled().truncate(length)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("complex64", (0,), 0, 4), "dtype"),
        (("no such type", (0,), 0, 4), "dtype"),
        ((np.float32, (0,), 1, 4), "axis"),
        ((np.float32, (), 0, 4), "axis"),
        ((np.float32, (5,), 0, 4), "dims"),
        ((np.float32, (-1,), 0, 4), "dims"),
        ((np.float32, (0, -2), 0, 4), "dims"),
        ((np.float32, (0,), 0, -1), "dims"),
    ],
)
def test_an_impossible_argument_is_named(arguments, name):
    with pytest.raises(BadSetting, match=f"{name}: expected"):
        GrowingArray(*arguments)


def test_more_than_the_system_has_is_refused():
    with pytest.raises(OutOfMemory, match="bytes for a growing array"):
        GrowingArray(np.float32, (0, 1 << 40), 0, 1 << 40)


@LINUX
def test_memory_appears_with_rows_and_goes_with_them():
    start = resident_nbytes()
    made = GrowingArray(np.float32, (4, 0, 256), 1, 1 << 20)
    assert resident_nbytes() - start < 1 << 20
    for _ in range(64):
        made.append(np.ones((4, 64, 256), np.float32))
    assert 15 << 20 < resident_nbytes() - start < 22 << 20
    made.truncate(10)
    assert resident_nbytes() - start < 2 << 20
    assert made.array.sum() == 4 * 10 * 256
