"""The native `kvc::attention` against the one that eager calls, and against itself."""

import itertools

import pytest
import torch
from attention_calls import Call, some_call
from daily import only
from native_calls import native_graph, run_native
from op_cases import Case
from torch import Tensor

from kvc.schema.torch_ops import attention, quantize_cache


def native(
    call: Call, threads: int = 2, row_lengths=None, scales=(None, None)
) -> Tensor:
    arguments = (
        call.q, call.k, call.v, call.valid_length, call.scale, call.causal,
        call.window_left, call.window_right, call.softcap, call.mask, call.slopes,
        call.sinks, call.layout, *scales, row_lengths, call.keep,
    )  # fmt: skip
    case = Case("kvc::attention", arguments)
    out = call.q.new_empty((*call.q.shape[:-1], call.v.shape[-1]))
    built = native_graph(case, (out,))
    assert built is not None
    (found,) = run_native(*built, (out,), threads)
    return found


def long_call(seq: int, total: int, **options: object) -> Call:
    torch.manual_seed(total)
    slots = max(total, 40) if options.get("layout") != "circular" else 300
    return Call(
        torch.randn(1, 6, seq, 16),
        torch.randn(1, 2, slots, 16),
        torch.randn(1, 2, slots, 16),
        torch.tensor([total]),
        **options,
    )


@only(seed=range(60))
@pytest.mark.parametrize("seed", range(300))
def test_calls_by_chance_equal_the_definition(seed: int):
    call = some_call(seed, torch.float32)
    call.poison_the_unseen()
    torch.testing.assert_close(native(call), call.expected(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("total", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("seq", [1, 5, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"window_left": 70}, {"layout": "circular", "window_left": 90, "keep": 3}],
)
def test_many_keys_equal_eager(total: int, seq: int, options: dict[str, object]):
    call = long_call(min(seq, total), total, **options)
    torch.testing.assert_close(native(call), call.run(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("total", [30, 600])
def test_int8_caches_equal_eager(total: int):
    call = long_call(7, total)
    (k, k_scale), (v, v_scale) = quantize_cache(call.k), quantize_cache(call.v)
    call.k, call.v = k, v
    expected = attention(
        call.q, k, v, call.valid_length, k_scale=k_scale, v_scale=v_scale
    )
    found = native(call, scales=(k_scale, v_scale))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("total", [1, 255, 257, 600])
@pytest.mark.parametrize("seq", [1, 5, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"window_left": 70}, {"layout": "circular", "window_left": 90, "keep": 3}],
)
def test_float16_caches_have_the_bits_of_widened_ones(
    total: int, seq: int, options: dict[str, object]
):
    call = long_call(min(seq, total), total, **options)
    call.k, call.v = call.k.half(), call.v.half()
    found, eager = native(call), call.run()
    call.k, call.v = call.k.float(), call.v.float()
    assert torch.equal(found, native(call))
    torch.testing.assert_close(eager, call.run(), rtol=1e-4, atol=1e-5)


def test_rows_of_different_lengths_equal_eager():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 5, 8), *torch.randn(2, 3, 2, 20, 8)
    call = Call(q, k, v, torch.tensor([9, 3, 5]))
    lengths = torch.tensor([5, 0, 2])
    expected = attention(q, k, v, call.valid_length, row_lengths=lengths)
    found = native(call, row_lengths=lengths)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"window_left": 70}])
@pytest.mark.parametrize(("seq", "total"), [(1, 1000), (40, 1000), (300, 300)])
def test_threads_do_not_change_a_bit(seq: int, total: int, options: dict[str, object]):
    call = long_call(seq, total, **options)
    found = [native(call, threads) for threads in (1, 2, 3, 8)]
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("cuts", [(300,), (1, 299), (128, 128, 44), (256, 43, 1)])
def test_how_a_prompt_is_cut_does_not_change_a_bit(cuts: tuple[int, ...]):
    whole = long_call(300, 300)
    parts = []
    for end, count in zip(itertools.accumulate(cuts), cuts, strict=True):
        part = Call(
            whole.q[:, :, end - count : end], whole.k, whole.v, torch.tensor([end])
        )
        parts.append(native(part))
    assert torch.equal(torch.cat(parts, 2), native(whole))


@pytest.mark.parametrize("keep", [0, 3, 280])
def test_a_ring_that_has_gone_round_often_is_read_as_eager_reads_it(keep: int):
    call = long_call(4, 10**9 + 77, layout="circular", window_left=9, keep=keep)
    torch.testing.assert_close(native(call), call.run(), rtol=1e-4, atol=1e-5)


def test_a_window_of_any_width_is_none():
    call = long_call(5, 9, causal=False)
    expected = call.run()
    call.window_left = call.window_right = 2**63 - 1
    torch.testing.assert_close(native(call), expected, rtol=1e-5, atol=2e-6)
