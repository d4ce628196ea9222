"""Arrays of the caller's own that grow."""

import pickle
import re

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


def test_numpy_takes_it_as_its_array():
    made = filled()
    assert np.shares_memory(np.asarray(made), made.memory)
    assert np.asarray(made).tolist() == made.array.tolist()
    assert np.asarray(made, np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(made, copy=False), made.memory)
    assert not np.shares_memory(np.array(made, copy=True), made.memory)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(made, np.float64, copy=False)
    made.append(np.asarray(made))
    assert made.array[:, 2:].tolist() == made.array[:, :2].tolist()


def test_beyond_its_capacity_nothing_is_written():
    made = filled(3)
    with pytest.raises(CacheOverflow) as caught:
        made.append(np.ones((2, 2, 3), np.float32))
    facts = (caught.value.start, caught.value.count, caught.value.capacity)
    assert facts == (2, 2, 3)
    assert len(made) == 2


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((2, 1, 4), np.float32),
        np.ones((2, 1, 3)),
        np.ones((2, 3), np.float32),
        [[1, 2], [3]],
        None,
        "a",
    ],
)
def test_rows_of_another_kind_are_refused(rows):
    made = filled()
    with pytest.raises(BadSetting, match=r"rows: expected float32\[2, any, 3\], got"):
        made.append(rows)
    assert len(made) == 2


def test_a_tensor_that_is_no_array_is_refused():
    import torch

    for rows in (torch.ones(2, 1, 3, device="meta"), torch.ones(2, 1, 3).to_sparse()):
        with pytest.raises(
            BadSetting, match=r"got a Python Tensor that is not an array"
        ):
            filled().append(rows)


@pytest.mark.parametrize("length", [-1, 3, 1.5, True, "a", None])
def test_it_is_not_cut_to_what_is_no_length_it_has(length):
    made = filled()
    match = re.escape(f"length: expected 0..2, got {length!r}")
    with pytest.raises(BadSetting, match=match):
        made.truncate(length)
    assert len(made) == 2


def test_whole_numbers_of_numpy_are_sizes():
    one = np.int64(1)
    made = GrowingArray(np.float32, np.array([2, 2, 3]), one, np.int64(4))
    made.truncate(one)
    assert (made.shape, made.axis, made.capacity) == ((2, 1, 3), 1, 4)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "would write 1 position from 2 on, but the cache holds 2;"),
        (3, "would write 3 positions from 2 on, but the cache holds 2;"),
    ],
)
def test_how_much_does_not_fit_is_told_in_words(count, text):
    with pytest.raises(CacheOverflow, match=text) as caught:
        filled(2).append(np.ones((2, count, 3), np.float32))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


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
        ((np.float32, (0,), 0, -1), "capacity"),
        ((np.float32, (0,), 0, 10.5), "capacity"),
        ((np.float32, (0,), 0, True), "capacity"),
        ((np.float32, (0,), 0, None), "capacity"),
        ((np.float32, (0, 2), 1.5, 4), "axis"),
        ((np.float32, (0, 2), "a", 4), "axis"),
        ((np.float32, (0, 2), True, 4), "axis"),
        ((np.float32, 5, 0, 4), "dims"),
        ((np.float32, (1.7, 0, 3), 1, 4), "dims"),
        ((np.float32, (True, 0), 1, 4), "dims"),
        ((np.float32, "03", 0, 4), "dims"),
        ((None, (0,), 0, 4), "dtype"),
        ((5, (0,), 0, 4), "dtype"),
        (("f4,)", (0,), 0, 4), "dtype"),
        (([("a", "f4"), ("a", "f4")], (0,), 0, 4), "dtype"),
        ((object, (0,), 0, 4), "dtype"),
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
