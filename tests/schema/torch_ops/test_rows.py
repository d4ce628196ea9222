"""What is made on the way to a row's result is bounded, however long the row."""

import math
import random
import sys

import pytest
import torch
from attention_calls import Call, some_call
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvc.schema.errors import RowLengthOutOfRange
from kvc.schema.torch_ops import attend_into, attention, quantize_cache
from kvc.schema.torch_ops.rows import MASK_CELLS, SCORE_CELLS, attend_row


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor made; views are not made."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in given}
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.note(tensor)
        return result

    def note(self, tensor: Tensor) -> None:
        if tensor.untyped_storage()._cdata not in self.known:
            self.elements = max(self.elements, tensor.numel())


def largest(q, k, v, valid, **options) -> int:
    """Return the elements of the largest tensor made by a call with finite results."""
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    names = ("window_left", "window_right", "softcap", "mask", "slopes", "sinks")
    settings = (*map(options.get, names), options.get("layout", "linear"))
    given = [x for x in (out, q, k, v, valid, *settings) if isinstance(x, Tensor)]
    causal = options.get("causal", True)
    with Largest(*given) as seen:
        attend_into(out, q, k, v, valid, None, causal, *settings)
    assert torch.isfinite(out).all()
    return seen.elements


HEADS, KV_HEADS, WIDTH = 4, 2, 16
VARIANTS = [
    {},
    {"causal": False},
    {"window_left": 5},
    {"softcap": 2.0},
    {"slopes": torch.rand(HEADS)},
    {"sinks": torch.rand(HEADS)},
]


def cache(slots: int, live: range, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros where data is live, NaN elsewhere."""
    cache = torch.full((1, KV_HEADS, slots, WIDTH), math.nan, dtype=dtype)
    cache[:, :, live.start : live.stop] = 0
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["linear", "circular"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("seq", [1, 4])
def test_work_follows_the_valid_prefix(seq, options, layout, dtype):
    q, k = (
        torch.zeros(1, HEADS, seq, WIDTH, dtype=dtype),
        cache(65536, range(16), dtype),
    )
    made = largest(q, k, k, torch.tensor([16]), layout=layout, **options)
    assert made <= 16 * HEADS * WIDTH


@pytest.mark.parametrize("layout", ["linear", "circular"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("seq", [1, 4])
def test_work_follows_the_window(seq, options, layout):
    valid, window = 60000, 11
    live = range(valid - window - seq + 1, valid)
    q, k = torch.zeros(1, HEADS, seq, WIDTH), cache(65536, live)
    length, left = torch.tensor([valid]), window - 1
    made = largest(q, k, k, length, window_left=left, layout=layout, **options)
    assert made <= 16 * HEADS * WIDTH


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"causal": False, "sinks": torch.zeros(HEADS)},
        {"mask": torch.ones(1, HEADS, 1024, 4096, dtype=torch.bool)},
        {"mask": torch.zeros(1, 1, 1024, 4096)},
        {"causal": False, "window_left": 3000, "window_right": 3000},
    ],
    ids=["softcap", "sinks", "bool mask", "float mask", "window"],
)
def test_a_long_prefill_goes_over_blocks_of_queries(options):
    q, k = torch.zeros(1, HEADS, 1024, WIDTH), cache(4096, range(4096))
    made = largest(q, k, k, torch.tensor([4096]), **options)
    assert made <= max(SCORE_CELLS, MASK_CELLS) < 1024 * 4096 * HEADS


@pytest.mark.parametrize("which", [slice(0, 4), slice(None, None, 2)], ids=str)
def test_values_unlike_keys_make_bounded_scores(which):
    q, k = torch.zeros(1, HEADS, 1024, 8), cache(4096, range(4096))
    made = largest(q, k[..., :8], k[..., which], torch.tensor([4096]))
    assert made <= SCORE_CELLS


def alone(call: Call, row: int, count: int, **scales: Tensor) -> Tensor:
    """Return what the queries of one row that count give without all others."""
    one = slice(row, row + 1)
    mask = call.mask
    if mask is not None:
        mask = mask[one if len(mask) > 1 else slice(None), :, :count]
    return attention(
        call.q[one, :, :count].contiguous(),
        call.k[one],
        call.v[one],
        call.valid_length[one],
        call.scale,
        call.causal,
        call.window_left,
        call.window_right,
        call.softcap,
        mask,
        call.slopes,
        call.sinks,
        call.layout,
        keep=call.keep,
        **{name: scale[one] for name, scale in scales.items()},
    )


def ragged(call: Call, row_lengths: list[int], **scales: Tensor) -> Tensor:
    """Return what a call gives whose queries count up to `row_lengths`."""
    for row, count in enumerate(row_lengths):
        call.q[row, :, count:] = math.nan
    return attention(
        call.q, call.k, call.v, call.valid_length, call.scale, call.causal,
        call.window_left, call.window_right, call.softcap, call.mask, call.slopes,
        call.sinks, call.layout, row_lengths=torch.tensor(row_lengths),
        keep=call.keep, **scales,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("seed", range(60))
def test_each_row_equals_the_row_alone_to_the_bit(seed, dtype):
    call, dice = some_call(seed, dtype), random.Random(seed)
    row_lengths = [dice.randint(0, call.q.shape[2]) for _ in call.q]
    found = ragged(call, row_lengths)
    for row, count in enumerate(row_lengths):
        assert torch.equal(found[row, None, :, :count], alone(call, row, count))
        assert not found[row, :, count:].any()


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_an_int8_cache_equal_the_row_alone_to_the_bit(seed):
    call, dice = some_call(seed, torch.float32), random.Random(seed)
    (call.k, k_scale), (call.v, v_scale) = map(quantize_cache, (call.k, call.v))
    row_lengths = [dice.randint(0, call.q.shape[2]) for _ in call.q]
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    found = ragged(call, row_lengths, **scales)
    for row, count in enumerate(row_lengths):
        expected = alone(call, row, count, **scales)
        assert torch.equal(found[row, None, :, :count], expected)
        assert not found[row, :, count:].any()


def test_padding_and_rows_without_tokens_are_no_work(monkeypatch):
    seen: list[int] = []

    def watched(out, q, *rest):
        seen.append(q.shape[2])
        attend_row(out, q, *rest)

    module = sys.modules[attend_into.__module__]
    monkeypatch.setattr(module, "attend_row", watched)
    q, k = torch.randn(3, 2, 64, 8), torch.randn(3, 2, 128, 8)
    valid, row_lengths = torch.tensor([100, 90, 3]), torch.tensor([5, 0, 3])
    attention(q, k, k, valid, row_lengths=row_lengths)
    assert seen == [5, 3]


@pytest.mark.parametrize("length", [-1, 5])
def test_row_lengths_out_of_range_are_refused(length):
    q, k = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 8, 8)
    with pytest.raises(RowLengthOutOfRange) as caught:
        attention(q, k, k, torch.tensor([4, 4]), row_lengths=torch.tensor([4, length]))
    assert caught.value.facts == {"row": 1, "length": length, "most": 4}


def test_torch_finds_no_fault_with_the_operator():
    q, k = torch.randn(2, 2, 4, 8), torch.randn(2, 1, 8, 8)
    rest = (torch.tensor([4, 7]), None, True, None, None, None, None, None, None)
    torch.library.opcheck(
        attention,
        (q, k, k, *rest, "linear", None, None, torch.tensor([1, 4])),
        test_utils=("test_schema", "test_faketensor"),
    )
