import pytest
import torch

from kvc.runtime.kernels.table import load_kernels, load_row_check
from kvc.schema.errors import CacheOverflow, IndexOutOfRange, RowLengthOutOfRange

MANY = torch.arange(40)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.tensor([0, 7]), 0, 1, 8),
        (torch.tensor([-8, 7]), -8, 1, 8),
        (torch.tensor([0, 5]), 0, 3, 8),
        (torch.tensor(3), 0, 1, 8),
        (torch.tensor([8]), 0, 0, 8),
        (MANY, 0, 1, 40),
        (torch.zeros(0, dtype=torch.int64), 0, 1, 0),
    ],
)
def test_indices_within_their_axis_pass(arguments):
    assert load_kernels()["kvc::check_index"](*arguments) is None
    assert load_row_check()(*arguments) is None


@pytest.mark.parametrize(
    ("arguments", "index"),
    [
        ((torch.tensor([0, 8]), 0, 1, 8), 8),
        ((torch.tensor([-1]), 0, 1, 8), -1),
        ((torch.tensor([0, -9]), -8, 1, 8), -9),
        ((torch.tensor([6]), 0, 3, 8), 6),
        ((MANY, 0, 1, 39), 39),
        ((MANY - 1, 0, 1, 40), -1),
        ((torch.tensor(2**62), 0, 1, 8), 2**62),
    ],
)
def test_an_index_out_of_range_is_named(arguments, index):
    with pytest.raises(IndexOutOfRange, match=f"index {index} is out of range") as hit:
        load_kernels()["kvc::check_index"](*arguments)
    assert (hit.value.index, hit.value.size) == (index, arguments[3])


def test_a_row_that_does_not_fit_is_named():
    with pytest.raises(CacheOverflow) as caught:
        load_row_check()(torch.tensor([0, 6]), 0, 3, 8)
    assert caught.value.facts == {"row": 1, "start": 6, "count": 3, "capacity": 8}


@pytest.mark.parametrize(("starts", "least"), [([0, -1], 0), ([-9, 99], -8)])
def test_a_row_before_the_first_slot_does_not_say_that_the_cache_is_full(starts, least):
    with pytest.raises(IndexOutOfRange) as caught:
        load_row_check()(torch.tensor(starts), least, 1, 8)
    assert caught.value.facts == {"place": "", "index": min(starts), "size": 8}


@pytest.mark.parametrize(
    ("starts", "row_lengths", "kind", "facts"),
    [
        ([0, 6], [3, 3], CacheOverflow, {"row": 1, "count": 3, "capacity": 8}),
        ([0, -1], [3, 0], IndexOutOfRange, {"index": -1}),
        ([0, 0], [3, 4], RowLengthOutOfRange, {"row": 1, "length": 4, "most": 3}),
        ([0, 0], [-1, 0], RowLengthOutOfRange, {"row": 0, "length": -1, "most": 3}),
    ],
)
def test_rows_are_checked_with_what_each_counts(starts, row_lengths, kind, facts):
    check = load_kernels()["kvc::check_rows"]
    check(torch.tensor([5, 8]), torch.tensor([3, 0]), 3, 8)
    with pytest.raises(kind) as caught:
        check(torch.tensor(starts), torch.tensor(row_lengths), 3, 8)
    assert caught.value.facts.items() >= facts.items()
