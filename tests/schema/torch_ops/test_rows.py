"""What is made on the way to a row's result is bounded, however long the row."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvc.schema.torch_ops import attend_into
from kvc.schema.torch_ops.rows import MASK_CELLS, SCORE_CELLS


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
