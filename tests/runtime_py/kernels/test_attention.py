import math
from pathlib import Path

import pytest
import torch
from eager_parity import run_both
from kernel_calls import run
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.runtime.kernels.table import load_kernels

CAPACITY = 12
# Neither windows nor soft cap, mask, slopes or sinks.
PLAIN = (None, None, None, None, None, None, "linear")
GENERATOR = torch.Generator().manual_seed(0)


def operand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def plain(q, k, v, lengths, scale, causal) -> Tensor:
    """Attend with a full score matrix, one query at a time, in float64."""
    batch, heads, seq, width = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(batch, heads, seq, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(seq):
                seen = lengths[b] - seq + i + 1 if causal else lengths[b]
                if seen > 0:
                    keys, values = k[b, h // group, :seen], v[b, h // group, :seen]
                    factor = 1 / math.sqrt(width) if scale is None else scale
                    scores = keys.double() @ q[b, h, i].double() * factor
                    out[b, h, i] = scores.softmax(0) @ values.double()
    return out.float()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kv_heads", "value_width"), [(4, 8), (2, 8), (1, 5)])
@pytest.mark.parametrize("seq", [1, 4])
@pytest.mark.parametrize(
    "lengths", [(7,), (4,), (CAPACITY,), (2,), (0,), (7, 0, 12), (1, 3, 5), (4, 4, 4)]
)
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_sees_the_valid_prefix_and_nothing_else(
    lengths, seq, kv_heads, value_width, causal, scale
):
    batch = len(lengths)
    q = operand(batch, 4, seq, 8)
    k, v = (
        operand(batch, kv_heads, CAPACITY, 8),
        operand(batch, kv_heads, CAPACITY, value_width),
    )
    for row, valid in enumerate(lengths):
        k[row, :, valid:] = math.nan
        v[row, :, valid:] = math.nan
    shape = (batch, 4, seq, value_width)
    arguments = (q, k, v, torch.tensor(lengths), scale, causal, *PLAIN)
    with torch.inference_mode():
        (out,) = run("kvc::attention", arguments, ((shape, torch.float32),))
    expected = plain(q, k, v, lengths, scale, causal)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_no_key_gives_zeros():
    q, k = operand(1, 2, 5, 8), operand(1, 2, CAPACITY, 8)
    arguments = (q, k, k, torch.tensor([2]), None, True, *PLAIN)
    (out,) = run("kvc::attention", arguments, ((q.shape, torch.float32),))
    assert not out[:, :, :3].any()
    assert out[:, :, 3:].all()


@pytest.mark.parametrize("wrong", [-1, CAPACITY + 1])
def test_a_length_outside_the_cache_writes_nothing(wrong: int):
    q, k = operand(2, 2, 1, 8), operand(2, 2, CAPACITY, 8)
    out = torch.full_like(q, 7.0)
    with pytest.raises(ValueError, match="row 1 has"):
        load_kernels()["kvc::attention"](
            out, q, k, k, torch.tensor([3, wrong]), None, True, *PLAIN
        )
    assert (out == 7).all()


class Rings(nn.Module):
    """Two rows with their own lengths over rings, a mask and learned sinks beside."""

    k: Tensor
    v: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 2, CAPACITY, 8))
        self.register_buffer("v", torch.zeros(2, 2, CAPACITY, 6))
        self.sinks = nn.Parameter(operand(4))
        self.slopes = nn.Parameter(operand(4).abs())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, start: Tensor, mask: Tensor):
        update, attend = torch.ops.kvc.cache_update, torch.ops.kvc.attention
        self.k.copy_(update(self.k, k, start, -2, "circular"))
        self.v.copy_(update(self.v, v, start, -2, "circular"))
        caches, ring = (self.k, self.v), {"layout": "circular", "window_left": 6}
        total = start + q.shape[2]
        return (
            attend(q, *caches, total, **ring),
            attend(q, *caches, total, mask=mask, **ring),
            attend(q, *caches, total, softcap=5.0, sinks=self.sinks, **ring),
            attend(q, *caches, total, slopes=self.slopes, layout="circular"),
        )


def test_a_bundle_gives_the_bits_of_eager_with_every_option(tmp_path: Path):
    def arguments(seq: int, *starts: int) -> tuple[Tensor, ...]:
        mask = torch.rand(2, 1, seq, 30, generator=GENERATOR) < 0.8
        cached = operand(2, 2, seq, 8), operand(2, 2, seq, 6)
        return operand(2, 4, seq, 8), *cached, torch.tensor(starts), mask

    seq = {2: Dim("seq", 1, 6)}
    dynamic = {"q": seq, "k": seq, "v": seq, "mask": seq}
    method = Method("forward", args=arguments(3, 0, 0), dynamic=dynamic)
    calls = [(5, 0, 2), (1, 5, 7), (6, 6, 8), (4, 12, 14), (1, 16, 25)]
    run_both(
        Rings(), [method], [("forward", arguments(*call)) for call in calls], tmp_path
    )
