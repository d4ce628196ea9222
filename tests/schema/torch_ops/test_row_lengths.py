"""`kvc::attention` with counts: each row is what it is alone, without its padding."""

import math
import random
import sys

import pytest
import torch
from attention_calls import Call, some_call
from torch import Tensor

from kvc.schema.errors import RowLengthOutOfRange
from kvc.schema.torch_ops import attend_into, attention, quantize_cache
from kvc.schema.torch_ops.rows import attend_row


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
