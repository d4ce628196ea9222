"""`kvc::attention` against loops over rows, heads and queries in float64."""

import math

import pytest
import torch
from attention_calls import Call, some_call
from daily import every
from torch import Tensor, nn

from kvc.schema.torch_ops import attention, cache_update, rows, visibility

TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,  # torch's fused attention rounds weights to bfloat16
}


def check(call: Call, tolerance: float) -> None:
    torch.testing.assert_close(
        call.run(), call.expected(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("dtype", "seeds"),
    [(torch.float32, range(400)), *((d, range(1000, 1100)) for d in TOLERANCES)],
    ids=str,
)
def test_every_mixture_of_options_equals_the_loops(dtype, seeds):
    for seed in seeds:
        call = some_call(seed, dtype)
        call.poison_the_unseen()
        check(call, TOLERANCES[dtype])


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_queries_agree_with_one_block(seed, monkeypatch):
    call = some_call(seed, torch.float32)
    whole = call.run()
    monkeypatch.setattr(rows, "SCORE_CELLS", 8)
    monkeypatch.setattr(rows, "MASK_CELLS", 8)
    monkeypatch.setattr(visibility, "MIN_BLOCK", 1)
    torch.testing.assert_close(call.run(), whole, rtol=1e-5, atol=1e-5)


def cached(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v of [batch, heads, seq, kv_heads, slots, width]."""
    torch.manual_seed(seed)
    batch, heads, seq, kv_heads, slots, width = shape
    k, v = (torch.randn(batch, kv_heads, slots, width) for _ in "kv")
    return torch.randn(batch, heads, seq, width), k, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cast_pieces_agree_with_one_piece(dtype, monkeypatch):
    q, k, v = (x.to(dtype) for x in cached(2, 4, 3, 2, 40, 8))
    lengths = torch.tensor([33, 12])
    whole = attention(q, k, v, lengths, softcap=5.0)
    monkeypatch.setattr("kvc.schema.torch_ops.rows.PIECE_CELLS", 7 * 2 * 8)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(
        attention(q, k, v, lengths, softcap=5.0), whole, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_window_over_everything_changes_no_bit(dtype, seq):
    q, k, v = (x.to(dtype) for x in cached(3, 4, seq, 2, 40, 8))
    lengths = torch.tensor([33, 0, 2])
    windowed = attention(q, k, v, lengths, window_left=40, window_right=0)
    assert torch.equal(windowed, attention(q, k, v, lengths))


OPTIONS = [
    {},
    {"window_left": 3},
    {"window_left": 2, "window_right": 1, "causal": False},
    {"softcap": 2.0},
    {"window_left": 3, "slopes": torch.tensor([0.5, 0.25]), "sinks": torch.ones(2)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seq", [1, 3])
def test_a_ring_equals_a_line_of_what_is_still_there(seq, options):
    slots = 5
    q, k, v = cached(1, 2, seq, 1, 3 * slots, 4)
    for total in range(3 * slots + 1):
        length = torch.tensor([total])
        ring = [torch.full((1, 1, slots, 4), math.nan) for _ in "kv"]
        for position in range(total):
            for cache, line in zip(ring, (k, v), strict=True):
                cache[:, :, position % slots] = line[:, :, position]
        there = torch.arange(3 * slots) >= total - slots
        mask = there.expand(1, 1, seq, -1)
        got = attention(q, *ring, length, layout="circular", **options)
        expected = attention(q, k, v, length, mask=mask, **options)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        if total <= slots:
            assert torch.equal(got, attention(q, k, v, length, **options))


@pytest.mark.parametrize("keep", [0, 2])
def test_a_ring_with_ends_dear_to_join_gives_the_same(keep, monkeypatch):
    q, k, v = cached(2, 4, 1, 2, 7, 8)
    given = (q, k, v, torch.tensor([9, 20]))
    joined = attention(*given, layout="circular", window_left=5, keep=keep)
    monkeypatch.setattr(rows, "JOINED_CELLS", 0)
    split = attention(*given, layout="circular", window_left=5, keep=keep)
    torch.testing.assert_close(split, joined, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", [0, 1, 4])
@pytest.mark.parametrize("seq", [1, 2, 4, 7])
def test_a_ring_of_window_and_chunk_gives_what_the_whole_line_gives(seq, keep):
    window, length = 4, 28
    slots = keep + window + seq - 1
    q, k, v = cached(1, 4, length, 2, length, 8)
    ring_k, ring_v = torch.zeros(1, 2, slots, 8), torch.zeros(1, 2, slots, 8)
    parts = []
    for start in range(0, length, seq):
        at, chunk = torch.tensor([start]), slice(start, start + seq)
        ring_k = cache_update(ring_k, k[:, :, chunk], at, mode="circular", keep=keep)
        ring_v = cache_update(ring_v, v[:, :, chunk], at, mode="circular", keep=keep)
        parts.append(
            attention(
                q[:, :, chunk],
                ring_k,
                ring_v,
                at + seq,
                window_left=window - 1,
                layout="circular",
                keep=keep,
            )
        )
    places = torch.arange(length)
    back = places[:, None] - places
    mask = (back < window) | (places < keep)
    whole = attention(q, k, v, torch.tensor([length]), mask=mask[None, None])
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sinks": torch.zeros(2)},
        {"softcap": 1.0},
        {"mask": torch.zeros(1, 1, 5, 8, dtype=torch.bool), "causal": False},
        {"mask": torch.full((1, 1, 5, 8), -math.inf), "causal": False},
        {"mask": torch.ones(1, 1, 5, 0, dtype=torch.bool), "causal": False},
        {"window_right": 0, "causal": False},
        {"window_left": 0, "mask": torch.ones(1, 1, 5, 0), "sinks": torch.ones(2)},
    ],
    ids=str,
)
@pytest.mark.parametrize("valid", [0, 2])
def test_a_query_that_sees_no_key_gives_zeros(valid, options):
    q, k, v = cached(1, 2, 5, 2, 8, 4)
    out = attention(q, k, v, torch.tensor([valid]), **options)
    assert not out[:, :, : 5 - valid].any()
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("layout", ["linear", "circular"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 1, 8, 4), (2, 2, 0, 1, 8, 4)])
def test_no_rows_and_no_queries_give_nothing(shape, layout):
    q, k, v = cached(*shape)
    lengths = torch.full((shape[0],), 5)
    assert attention(q, k, v, lengths, softcap=1.0, layout=layout).shape == q.shape


def test_a_ring_without_slots_shows_nothing():
    q, k, v = cached(1, 2, 3, 1, 0, 4)
    out = attention(q, k, v, torch.tensor([9]), layout="circular")
    assert not out.any()


@pytest.mark.parametrize(
    ("lengths", "layout"),
    [((3, -1), "linear"), ((3, 9), "linear"), ((30, -1), "circular")],
)
def test_a_length_that_does_not_fit_is_refused(lengths, layout):
    q, k, v = cached(2, 2, 1, 1, 8, 4)
    with pytest.raises(ValueError, match="row 1 has"):
        attention(q, k, v, torch.tensor(lengths), layout=layout)


class Attends(nn.Module):
    """Attends with options fixed; the mask and sinks are inputs."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q, k, v, lengths, mask, sinks):
        return torch.ops.kvc.attention(
            q, k, v, lengths, mask=mask, sinks=sinks, **self.options
        )


TRACED = [
    {},
    {"window_left": 2},
    {"window_right": 1, "causal": False, "softcap": 3.0},
    {"layout": "circular", "window_left": 4, "scale": 0.3},
    {"layout": "circular", "window_left": 2, "keep": 3},
]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
@every(2, "options", "extras")
@pytest.mark.parametrize("options", TRACED, ids=str)
@pytest.mark.parametrize("extras", [True, False])
def test_traced_equals_eager_bit_for_bit(options, extras):
    q, k, v = cached(2, 4, 3, 2, 8, 4)
    mask = torch.rand(2, 1, 3, 8) < 0.7 if extras else None
    sinks = torch.randn(4) if extras else None
    given = (q, k, v, torch.tensor([8, 5]), mask, sinks)
    batch, seq, keys = map(torch.export.Dim, ("batch", "seq", "keys"))
    slots = torch.export.Dim("slots", min=4)  # more than are kept
    cache = {0: batch, 2: slots}
    sizes = ({0: batch, 2: seq}, cache, cache, {0: batch})
    of_mask = {0: batch, 2: seq, 3: keys} if extras else None
    model = Attends(**options)
    traced = torch.export.export(
        model, given, dynamic_shapes=(*sizes, of_mask, None)
    ).run_decompositions()
    for rows_, queries, cap, positions in ((2, 3, 8, 8), (3, 5, 20, 11)):
        q, k, v = cached(rows_, 4, queries, 2, cap, 4, seed=1)
        mask = torch.rand(rows_, 1, queries, positions) < 0.7 if extras else None
        given = (q, k, v, torch.full((rows_,), cap - 1), mask, sinks)
        assert torch.equal(traced.module()(*given), model(*given))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, *TRACED[1:]], ids=str)
def test_torch_finds_no_fault_with_the_operator(options):
    q, k, v = cached(2, 4, 3, 2, 8, 4)
    mask = torch.rand(1, 4, 3, 8) < 0.7
    torch.library.opcheck(
        attention,
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, torch.tensor([8, 5])),
        {"mask": mask, "sinks": torch.ones(4), **options},
        test_utils=("test_schema", "test_faketensor"),
    )
