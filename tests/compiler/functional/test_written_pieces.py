"""Writes into what `unbind` and `unfold` give of tensors with dynamic sizes."""

from collections.abc import Callable

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied
from torch import Tensor

from kvc.compiler import Dim, Method

X = torch.arange(60.0).sin().reshape(3, 4, 5)
N = Dim("n", 2, 9)


def unbind(x: Tensor) -> list[Tensor]:
    held = x * 1
    pieces = torch.unbind(held, 1)
    pieces[3].mul_(2)
    pieces[0].add_(pieces[3])
    return [held, pieces[0], pieces[2] * 1]


def rows(x: Tensor) -> Tensor:
    held = x * 1
    for place, row in enumerate(held.transpose(0, 1)):
        row.add_(place)
    return held


def of_the_op(x: Tensor) -> Tensor:
    held = x * 1
    torch.ops.aten.unbind.int(held, -1)[2].mul_(2)
    return held


def unpacked(x: Tensor) -> list[Tensor]:
    first, _, third, fourth = x.mul(2).unbind(1)
    third[1:].copy_(first[:-1])
    return [third * 1, fourth]


def read_alone(x: Tensor) -> list[Tensor]:
    return [*x.unbind(1)]


def in_a_branch(x: Tensor) -> Tensor:
    def yes(x: Tensor) -> Tensor:
        held = x * 1
        held.unbind(1)[1].mul_(2)
        return held

    return torch.cond(x.sum() > 0, yes, lambda x: x * 3, (x,))


def windows(x: Tensor) -> list[Tensor]:
    held = x * 1
    held.unfold(1, 2, 2)[:, 1].mul_(2)
    whole = held.unfold(2, 5, 5)
    whole.add_(1)
    torch.ops.aten.unfold.default(held, 1, 4, 4).mul_(2)
    return [held, whole * 1]


WRITES = [unbind, rows, of_the_op, unpacked, read_alone, in_a_branch, windows]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_sizes_are_as_in_eager(
    write: Callable[[Tensor], object], order: tuple[int, ...], tmp_path
):
    method = Method("forward", args=(X,), dynamic={"x": {0: N}})
    calls = [torch.cat([X, X[:more]]).permute(order) for more in range(3)]
    calls = [call.contiguous().permute(order) for call in calls]
    each = [("forward", (call,)) for call in calls]
    run_both(Applied(write), [method], each, tmp_path)
