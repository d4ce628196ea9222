"""float16 caches: what is written and read has the bits of IEEE, however it is done.

Rows whose elements lie together are converted many at a time, by the processor's own
instructions where it has them; others one by one, by portable code.
"""

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import Case
from torch import Tensor

pytestmark = pytest.mark.usefixtures("each_processor")
EVERY = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)


def edges() -> Tensor:
    """Return float32 at, between and beside all float16, and far away from them."""
    halves = EVERY.view(torch.float16).float()
    finite = halves[halves.isfinite()].sort().values
    middles = (finite[1:].double() + finite[:-1].double()).float() / 2
    beside = [torch.nextafter(middles, to) for to in (finite[1:], finite[:-1])]
    most = torch.tensor([65519.996, 65520.0, 65536.0, 1e30, torch.inf, 1e-30, 0.0])
    return torch.cat([halves, middles, *beside, most, -most])


def same(found: Tensor, expected: Tensor) -> None:
    """Assert equal bits; of a NaN, that it is one."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))
    assert torch.equal(found.signbit(), expected.signbit())


def written(update: Tensor, cache: Tensor) -> Tensor:
    case = Case("kvc::cache_update", (cache, update, None, 1, "linear", None, 0))
    built = native_graph(case, (cache,))
    assert built is not None
    (found,) = run_native(*built, (cache,), 1)
    return found


def test_what_is_written_is_rounded_to_nearest_and_even() -> None:
    x = edges()
    expected = x.half()
    together = written(x.view(1, 1, -1), torch.zeros(1, 1, len(x)).half())
    same(together.flatten(), expected)
    apart = written(x.repeat_interleave(2).view(1, 1, -1)[..., ::2], together * 0)
    same(apart.flatten(), expected)
    numbers = torch.equal(together.view(torch.int16), apart.view(torch.int16))
    assert numbers, "NaN are the same too"


@pytest.mark.parametrize("step", [1, 2])
def test_what_is_read_is_exact(step: int) -> None:
    """One key alone: the result is its value."""
    wide = EVERY.view(torch.float16).repeat_interleave(step)
    for values in wide.view(16, 1, 1, 1, -1)[..., ::step]:
        q, k = torch.ones(1, 1, 1, 8), torch.ones(1, 1, 1, 8).half()
        rest = (None, True, *(None,) * 6, "linear", None, None, None, 0)
        case = Case("kvc::attention", (q, k, values, torch.tensor([1]), *rest))
        out = torch.zeros(1, 1, 1, values.shape[-1])
        built = native_graph(case, (out,))
        assert built is not None
        (found,) = run_native(*built, (out,), 1)
        assert torch.equal(found.nan_to_num(0.5), values.float().nan_to_num(0.5))
