"""Writes through results whose order in memory torch's trace may have wrong."""

import pytest
import torch
from daily import every
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method

X = torch.arange(48.0).reshape(1, 2, 4, 6).sin().to(memory_format=torch.channels_last)
PLACES = torch.arange(48).reshape(1, 6, 2, 4).permute(0, 2, 3, 1) % 24


def unpooled(x: Tensor) -> Tensor:
    return functional.max_unpool2d(x, PLACES, 1, output_size=(4, 6))


def turned_norm(x: Tensor) -> Tensor:
    return functional.batch_norm(x[0].transpose(0, 1), torch.zeros(2), torch.ones(2))


def rolled(x: Tensor) -> Tensor:
    return x.roll(1, 2)


def found_in(x: Tensor) -> Tensor:
    return torch.isin(x, x[0, 0, :1]).float()


def turned_exp(x: Tensor) -> Tensor:
    return x.exp()


MAKERS = [unpooled, turned_norm, rolled, found_in, turned_exp]


def written(made: Tensor) -> Tensor:
    made.reshape(-1)[1:4] = 5
    return made


def sorted_and_written(made: Tensor) -> list[Tensor]:
    values, places = (2 * made).sort(1)
    places.flatten().neg_()
    return [written(values), places]


def written_beside(made: Tensor) -> list[Tensor]:
    seen = made.transpose(0, 1).reshape(-1)
    made[0] = 5
    return [seen * 2, seen.reshape(2, -1).mul_(3), made]


def written_alone(made: Tensor) -> Tensor:
    return made.relu_().reshape(-1).mul_(3) * 2


def written_in_order(made: Tensor) -> list[Tensor]:
    whole = made.contiguous()
    again = whole.contiguous().add_(1)
    return [made * 2, whole * 3, again]


def written_as_pictures(made: Tensor) -> list[Tensor]:
    if made.ndim < 4:
        made = made[None]
    turned = made.contiguous(memory_format=torch.channels_last)
    return [turned.add_(1), made * 2]


def written_as_converted(made: Tensor) -> list[Tensor]:
    whole = torch.contiguous_format
    found = [made * 1]
    for one in (
        made.to(torch.float32, memory_format=whole),
        made.to(torch.ones(1), memory_format=whole),
        made.to("cpu", torch.float32, memory_format=whole),
        made.float(memory_format=whole),
        made.cpu(memory_format=whole),
        torch.ops.aten.contiguous(made),
    ):
        found += [one.mul_(3) * 1, made * 1]
    return found


def written_in_a_format(made: Tensor) -> list[Tensor]:
    whole = made.to(memory_format=torch.contiguous_format).mul_(3)
    same = made.to(made.dtype, memory_format=torch.preserve_format).add_(1)
    return [made * 2, whole, same]


@every(2, "maker", "write")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    "write",
    [
        *(written, sorted_and_written, written_beside, written_alone),
        *(written_in_order, written_as_pictures, written_in_a_format),
        written_as_converted,
    ],
)
def test_writes_go_where_the_real_layout_says(write, maker, tmp_path):
    def direct(x):
        return write(maker(x))

    found = outcome(Applied(direct), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_not_written_may_lie_as_it_likes(maker, tmp_path):
    def read(x):
        return maker(x).reshape(-1)[1:4] * 2

    found = outcome(Applied(read), (X,), {}, tmp_path / "c.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class Rolled(nn.Module):
    """Writes through what it reshapes, at a size that only a call knows."""

    def forward(self, x: Tensor) -> Tensor:
        made = functional.relu(x.roll(1, 2), inplace=True)
        made.reshape(x.shape[0], -1)[:, 1:4].mul_(3)
        return made


def test_sizes_may_be_dynamic(tmp_path):
    some = [torch.randn(rows, 2, 4, 6) for rows in (3, 1, 7)]
    some = [x.to(memory_format=torch.channels_last) for x in some]
    method = Method("forward", (some[0],), dynamic={"x": {0: Dim("rows", 1, 9)}})
    run_both(Rolled(), [method], [("forward", (x,)) for x in some], tmp_path)


def test_numbers_that_only_a_call_knows_are_left_out(tmp_path):
    def scaled(x):
        start = x.amax().gt(0).long()
        return written(x.narrow(2, start, 2) * start.item())

    found = outcome(Applied(scaled), (X,), {}, tmp_path / "n.kvc")
    assert (found.kind, found.reason) == ("equal", "")
