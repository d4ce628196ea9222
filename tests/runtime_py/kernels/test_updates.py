import pytest
import torch
from torch import Tensor

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.errors import CacheOverflow, IndexOutOfRange
from kvc.schema.torch_ops import cache_update

MANY = torch.arange(50)


def beyond(position: int, value: int) -> Tensor:
    index = MANY.clone()
    index[position] = value
    return index


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten::index_copy", (1, torch.tensor([0, 60]), torch.ones(3, 2))),
        ("aten::index_copy", (1, torch.tensor([-1]), torch.ones(3, 1))),
        ("aten::index_copy", (1, beyond(40, 60), torch.ones(3, 50))),
        ("aten::index_copy", (-1, beyond(40, -2), torch.ones(3, 50))),
        ("aten::index_put", ((None, torch.tensor([60])), torch.ones(3, 1), False)),
        ("aten::index_put", ((torch.tensor([0, -4]),), torch.ones(2, 60), False)),
        ("aten::index_put", ((None, beyond(49, -61)), torch.ones(3, 50), True)),
        ("aten::index_add", (1, torch.tensor([0, 60]), torch.ones(3, 2), 1)),
        ("aten::index_add", (1, torch.tensor([0, -1]), torch.ones(3, 2), 1)),
        ("aten::scatter_add", (1, torch.tensor([[0, 60]]), torch.ones(1, 2))),
        (
            "aten::scatter_reduce.two",
            (1, torch.tensor([[0, 60]]), torch.ones(1, 2), "amax", True),
        ),
        ("aten::scatter.src", (1, torch.tensor([[0, 60]]), torch.ones(1, 2))),
        ("aten::scatter.src", (0, torch.tensor([[0], [-1]]), torch.ones(2, 1))),
        ("aten::scatter.value", (1, beyond(30, 60).reshape(1, 50), 1.0)),
    ],
)
def test_an_index_out_of_range_leaves_the_target_untouched(op, arguments):
    target = torch.zeros(3, 60)
    with pytest.raises(IndexOutOfRange, match="out of range"):
        load_kernels()[op](target, *arguments)
    assert not target.any()


@pytest.mark.parametrize(("starts", "row"), [((0, 7), 1), ((0, 2**62), 1), ((8, 8), 0)])
def test_a_linear_write_that_does_not_fit_writes_nothing(starts, row):
    cache, update = torch.zeros(2, 1, 8, 3), torch.ones(2, 1, 2, 3)
    with pytest.raises(CacheOverflow) as caught:
        load_kernels()["kvc::cache_update"](
            cache, update, torch.tensor(starts), 2, "linear", None
        )
    assert (caught.value.row, caught.value.start) == (row, starts[row])
    assert not cache.any()


@pytest.mark.parametrize("starts", [(-1, 0), (0, -1)])
def test_a_linear_write_before_the_first_slot_is_named_as_such(starts):
    cache, update = torch.zeros(2, 1, 8, 3), torch.ones(2, 1, 2, 3)
    with pytest.raises(IndexOutOfRange, match="index -1 is out of range") as caught:
        load_kernels()["kvc::cache_update"](
            cache, update, torch.tensor(starts), 2, "linear", None
        )
    assert (caught.value.index, caught.value.size) == (-1, 8)
    assert not cache.any()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [1, 2, 3, 0, 0]),
        (2, [0, 0, 1, 2, 3]),
        (3, [3, 0, 0, 1, 2]),
        (14, [2, 3, 0, 0, 1]),
        (-1, [2, 3, 0, 0, 1]),
    ],
)
def test_a_circular_write_goes_round(start: int, expected: list[int]):
    cache = torch.zeros(1, 5)
    update = torch.tensor([[1.0, 2.0, 3.0]])
    load_kernels()["kvc::cache_update"](
        cache, update, torch.tensor([start]), 1, "circular", None
    )
    assert cache.tolist() == [expected]


@pytest.mark.parametrize("axis", [1, 2, 3, -1, -2, -3])
def test_a_cache_may_be_written_along_any_axis_but_the_batch(axis: int):
    cache = torch.zeros(2, 4, 4, 4)
    update = torch.ones(2, 4, 4, 4).narrow(axis, 0, 2)
    load_kernels()["kvc::cache_update"](
        cache, update, torch.tensor([0, 2]), axis, "linear", None
    )
    assert cache[0].narrow(axis % 4 - 1, 0, 2).all()
    assert cache[1].narrow(axis % 4 - 1, 2, 2).all()
    assert cache.sum() == update.sum()


def test_rows_start_where_their_index_says_and_none_means_zero():
    cache, update = torch.zeros(2, 4), torch.ones(2, 2)
    load_kernels()["kvc::cache_update"](cache, update, None, 1, "linear", None)
    assert cache.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


def test_eager_leaves_the_prior_cache_as_it_was():
    cache, update = torch.zeros(1, 2, 4, 3), torch.ones(1, 2, 1, 3)
    written = cache_update(cache, update, torch.tensor([2]))
    assert not cache.any()
    assert written.sum() == update.sum()


def test_only_the_written_slots_change():
    cache = torch.arange(24.0).reshape(1, 2, 4, 3)
    before = cache.clone()
    load_kernels()["kvc::cache_update"](
        cache, torch.full((1, 2, 1, 3), -1.0), torch.tensor([3]), -2, "linear", None
    )
    assert torch.equal(cache[:, :, :3], before[:, :, :3])
    assert (cache[:, :, 3] == -1).all()
