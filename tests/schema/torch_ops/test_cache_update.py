"""`kvc::cache_update` against a loop over every element, and what it refuses."""

import contextlib
import itertools
import math
import random

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kvc.schema.errors import CacheOverflow, IndexOutOfRange, RowLengthOutOfRange
from kvc.schema.torch_ops import cache_update, write_cache

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


def slow(
    cache: Tensor, update: Tensor, starts, axis: int, mode: str, keep: int = 0
) -> Tensor:
    """Write element by element, as the text of ONNX TensorScatter-24 says."""
    out = cache.clone()
    for place in itertools.product(*map(range, update.shape)):
        target = list(place)
        target[axis] += 0 if starts is None else int(starts[place[0]])
        if mode == "circular" and target[axis] >= keep:
            past = (target[axis] - keep) % (cache.shape[axis] - keep)
            target[axis] = keep + past
        elif mode == "circular" and not keep:
            target[axis] %= cache.shape[axis]
        out[tuple(target)] = update[place]
    return out


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_mixture_of_options_equals_the_loop(dtype):
    dice = random.Random(0)
    torch.manual_seed(0)
    for _ in range(60):
        shape = [dice.randint(0, 3), *(dice.randint(1, 4) for _ in range(3))]
        axis, mode = dice.randint(1, 3), dice.choice(("linear", "circular"))
        slots = shape[axis] = dice.randint(1, 6)
        seq = dice.randint(0, slots)
        low, high = (0, slots - seq) if mode == "linear" else (-20, 20)
        keep = 0 if mode == "linear" else dice.choice((0, dice.randint(0, slots - 1)))
        if keep:
            low, seq = 0, min(seq, slots - keep)
        starts = torch.tensor([dice.randint(low, high) for _ in range(shape[0])])
        starts = None if dice.random() < 0.2 else starts.long()
        cache = numbers(tuple(shape), dtype)
        update = numbers((*shape[:axis], seq, *shape[axis + 1 :]), dtype)
        before = cache.clone()
        given = axis - 4 * dice.randint(0, 1)
        got = cache_update(cache, update, starts, given, mode, keep=keep)
        assert torch.equal(got, slow(cache, update, starts, axis, mode, keep))
        assert torch.equal(cache, before)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("cache", "update"),
    [((0, 4, 3), (0, 2, 3)), ((2, 4, 3), (2, 0, 3)), ((2, 0, 3), (2, 0, 3))],
)
def test_nothing_to_write_leaves_the_cache(cache, update, mode):
    starts = torch.zeros(cache[0], dtype=torch.int64)
    for given in (None, starts):
        got = cache_update(torch.ones(cache), torch.zeros(update), given, 1, mode)
        assert torch.equal(got, torch.ones(cache))


@pytest.mark.parametrize(
    ("starts", "kind"),
    [
        ((0, 5), CacheOverflow),
        ((5, -1), CacheOverflow),
        ((-1, 0), IndexOutOfRange),
        ((0, -1), IndexOutOfRange),
        ((-1, 5), IndexOutOfRange),
    ],
)
def test_all_rows_are_checked_before_any_is_written(starts, kind):
    cache = torch.zeros(2, 6, 3)
    with pytest.raises(kind):
        write_cache(cache, torch.ones(2, 2, 3), torch.tensor(starts), 1, "linear")
    assert not cache.any()


@pytest.mark.parametrize("mode", [contextlib.nullcontext, FakeTensorMode])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"update": (2, 2, 2, 4)}, "update of 4 dimensions, not 3"),
        ({"cache": (), "update": ()}, "axis 1 of a cache of 0 dimensions"),
        ({"axis": 3}, "axis 3 of a cache of 3 dimensions"),
        ({"axis": -4}, "axis -4 of a cache of 3 dimensions"),
        ({"axis": 0}, "axis 0 is the batch"),
        ({"axis": -3}, "axis 0 is the batch"),
        ({"mode": "around"}, "mode 'around' is not 'linear' or 'circular'"),
        ({"update": ((2, 2, 4), torch.int8)}, "the update is torch.int8, the cache"),
        ({"update": (1, 2, 4)}, "dimension 0 of the update is 1, of the cache 2"),
        ({"update": (2, 2, 5)}, "dimension 2 of the update is 5, of the cache 4"),
        ({"update": (2, 7, 4)}, "longer than the cache: 7 > 6"),
        ({"update": (2, 7, 4), "mode": "circular"}, "longer than the cache: 7 > 6"),
        ({"keep": 2}, "2 of 6 positions kept, linear"),
        ({"keep": -1, "mode": "circular"}, "-1 of 6 positions kept, circular"),
        ({"keep": 6, "mode": "circular"}, "6 of 6 positions kept, circular"),
        ({"write_indices": ((3,), torch.int64)}, "3 write indices for 2 rows"),
        ({"write_indices": ((), torch.int64)}, "of 0 dimensions, not int64 of one"),
        ({"write_indices": ((2,), torch.int32)}, "torch.int32 of 1 dimensions"),
        ({"row_lengths": ((3,), torch.int64)}, "3 row_lengths for 2 rows"),
        ({"row_lengths": ((2, 1), torch.int64)}, "of 2 dimensions, not int64 of one"),
        ({"row_lengths": ((2,), torch.bool)}, "torch.bool of 1 dimensions"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(mode, changes, text):
    given = {"cache": (2, 6, 4), "update": (2, 2, 4), "axis": 1} | changes
    with mode(), pytest.raises(ValueError, match=f"^cache_update: .*{text}"):
        cache_update(**{name: made(value) for name, value in given.items()})


def made(value):
    """Return zeros for a shape, or a shape and dtype; anything else as it is."""
    if not isinstance(value, tuple):
        return value
    shape, dtype = (
        value if value and isinstance(value[-1], torch.dtype) else (value, None)
    )
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_torch_finds_no_fault_with_the_operator(axis, mode):
    cache = torch.randn(4, 4, 4).transpose(1, 2)
    update = torch.randn(4, 4, 4).narrow(axis, 0, 2)
    torch.library.opcheck(
        cache_update,
        (cache, update, torch.tensor([0, 1, 2, 2]), axis, mode),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_of_each_row_only_what_counts_is_written(mode):
    dice = random.Random(1)
    torch.manual_seed(1)
    for _ in range(60):
        slots, rows, seq = dice.randint(1, 6), dice.randint(1, 4), dice.randint(0, 8)
        row_lengths = [dice.randint(0, min(seq, slots)) for _ in range(rows)]
        starts = [dice.randint(0, slots - count) for count in row_lengths]
        cache, update = torch.randn(rows, 2, slots, 3), torch.randn(rows, 2, seq, 3)
        expected = cache.clone()
        for row, (start, count) in enumerate(zip(starts, row_lengths, strict=True)):
            one = slice(row, row + 1)
            new, first = update[one, :, :count], torch.tensor([start])
            expected[one] = slow(cache[one], new, first, 2, mode)
            update[row, :, count:] = math.nan
        given = torch.tensor(starts), 2, mode, torch.tensor(row_lengths)
        assert torch.equal(cache_update(cache, update, *given), expected)


def test_a_row_without_tokens_may_be_full_and_padding_need_not_fit():
    cache, update = torch.zeros(2, 4, 1), torch.ones(2, 9, 1)
    starts, row_lengths = torch.tensor([4, 2]), torch.tensor([0, 2])
    written = cache_update(cache, update, starts, 1, "linear", row_lengths)
    assert written.flatten().tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("starts", "row_lengths", "kind", "facts"),
    [
        ((0, 3), (2, 4), CacheOverflow, {"row": 1, "count": 4}),
        ((0, -1), (2, 0), IndexOutOfRange, {"index": -1}),
        ((0, 0), (1, -1), RowLengthOutOfRange, {"row": 1, "length": -1, "most": 5}),
        ((0, 0), (1, 6), RowLengthOutOfRange, {"row": 1, "length": 6, "most": 5}),
    ],
)
def test_all_counts_are_checked_before_anything_is_written(
    starts, row_lengths, kind, facts
):
    cache = torch.zeros(2, 6, 3)
    given = torch.tensor(starts), 1, "linear", torch.tensor(row_lengths)
    with pytest.raises(kind) as caught:
        write_cache(cache, torch.ones(2, 5, 3), *given)
    assert caught.value.facts.items() >= facts.items()
    assert not cache.any()


def test_a_row_does_not_go_round_a_ring_twice():
    cache, row_lengths = torch.zeros(2, 4, 3), torch.tensor([1, 5])
    with pytest.raises(CacheOverflow, match="row 1 would write 5 positions"):
        write_cache(cache, torch.ones(2, 5, 3), None, 1, "circular", row_lengths)
    assert not cache.any()


@pytest.mark.parametrize(
    ("start", "count", "kind"),
    [(0, 6, None), (1, 5, None), (2, 4, None), (9, 4, None),
     (1, 6, CacheOverflow), (2, 5, CacheOverflow), (9, 5, CacheOverflow),
     (-1, 1, IndexOutOfRange)],
)  # fmt: skip
def test_a_ring_that_keeps_two_has_room_for_what_is_not_written_twice(
    start, count, kind
):
    cache, update = torch.zeros(1, 6, 3), torch.ones(1, count, 3)
    given = torch.tensor([start]), 1, "circular", None, 2
    if kind is None:
        write_cache(cache, update, *given)
        assert int(cache.any(-1).sum()) == count
    else:
        with pytest.raises(kind):
            write_cache(cache, update, *given)
        assert not cache.any()


def test_a_call_of_one_length_does_not_say_how_long_a_chosen_cache_is():
    class Appending(torch.nn.Module):
        def forward(self, cache, update, start):
            return torch.ops.kvc.cache_update(cache, update, start)

    size = torch.export.Dim("size", min=2, max=9)
    given = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2), torch.zeros(1).long()
    sizes = {"cache": {1: size}, "update": None, "start": None}
    exported = torch.export.export(Appending(), given, dynamic_shapes=sizes)
    with pytest.raises(ValueError, match="longer than the cache: 4 > 3"):
        exported.module()(torch.zeros(1, 3, 2), *given[1:])
