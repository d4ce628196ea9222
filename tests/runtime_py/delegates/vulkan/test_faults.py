"""What a shader refuses is the error of the reference, and nothing runs after it."""

import pytest
import torch
import vulkan_here
from native_calls import native_graph
from op_cases import Case
from vulkan_calls import run_on_device

from kvc.schema.errors import (
    CacheOverflow,
    IndexOutOfRange,
    KernelFailed,
    RowLengthOutOfRange,
)


def call(case: Case, *results: torch.Tensor) -> None:
    built = native_graph(case, results)
    assert built is not None
    run_on_device(vulkan_here.device(), *built, results)


@pytest.mark.parametrize("found", [[0, 5, 9], [2, -1]])
def test_an_index_outside_is_named(found: list[int]) -> None:
    x, index = torch.zeros(5, 3), torch.tensor(found)
    with pytest.raises(IndexOutOfRange) as caught:
        call(Case("aten::embedding", (x, index)), torch.zeros(len(found), 3))
    first = next(i for i in found if not 0 <= i < 5)
    assert (caught.value.index, caught.value.size) == (first, 5)


def test_the_first_of_many_wrong_indices_is_named() -> None:
    x, index = torch.zeros(5), torch.full((1000,), 4)
    index[[300, 700, 999]] = torch.tensor([7, 8, 9])
    with pytest.raises(IndexOutOfRange) as caught:
        call(Case("aten::index_select", (x, 0, index)), torch.zeros(1000))
    assert caught.value.index == 7


CACHE, UPDATE = torch.zeros(2, 4, 3), torch.ones(2, 2, 3)


def update(starts: list[int], lengths: list[int] | None = None) -> None:
    rows = None if lengths is None else torch.tensor(lengths)
    arguments = (CACHE, UPDATE, torch.tensor(starts), 1, "linear", rows, 0)
    call(Case("kvc::cache_update", arguments), CACHE)


def test_a_full_cache_says_where_it_ends() -> None:
    with pytest.raises(CacheOverflow) as caught:
        update([0, 3])
    error = caught.value
    assert (error.row, error.start, error.count, error.capacity) == (1, 3, 2, 4)


def test_a_row_that_counts_more_than_there_is_is_named() -> None:
    with pytest.raises(RowLengthOutOfRange) as caught:
        update([0, 0], [2, 3])
    assert (caught.value.row, caught.value.length, caught.value.most) == (1, 3, 2)


def rows(starts: list[int], lengths: list[int]) -> Case:
    index, counts = torch.tensor(starts), torch.tensor(lengths)
    return Case("kvc::check_rows", (index, counts, 3, 8))


def test_checks_say_what_the_reference_says() -> None:
    with pytest.raises(IndexOutOfRange):
        call(Case("kvc::check_index", (torch.tensor([-1]), 0, 1, 4)))
    with pytest.raises(RowLengthOutOfRange):
        call(rows([0, 0], [1, 4]))
    with pytest.raises(CacheOverflow):
        call(rows([0, 6], [1, 3]))
    call(rows([0, 5], [1, 3]))


@pytest.mark.parametrize("total", [-1, (1 << 62) + 1, (1 << 63) - 1])
def test_a_ring_that_has_seen_too_much_is_refused(total: int) -> None:
    x = torch.randn(1, 1, 8, 4)
    none = (None,) * 6
    valid = torch.tensor([total])
    arguments = (x, x, x, valid, None, True, *none, "circular", None, None, None, 0)
    with pytest.raises(KernelFailed, match=f"row 0 has {total} valid positions"):
        call(Case("kvc::attention", arguments), x)


def test_a_position_is_moved_by_a_number() -> None:
    results = [torch.zeros(2, dtype=torch.int64)]
    found = native_graph(Case("kvc::after", (torch.tensor([3, 5]), 4)), results)
    assert found is not None
    made = run_on_device(vulkan_here.device(), *found, results)
    assert made[0].tolist() == [7, 9]
