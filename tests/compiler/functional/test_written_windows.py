"""Writes through windows of `unfold`, which are right unless windows overlap."""

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor

from kvc.compiler import Dim, Method

X = torch.arange(12.0).sin()


def last_one_cut(x: Tensor) -> Tensor:
    held = x[:11] * 1
    held.unfold(0, 3, 4).mul_(5)
    return held


def one_of_many(x: Tensor) -> Tensor:
    held = x * 1
    held.unfold(0, 3, 1)[1] = 5
    return held


def of_a_view(x: Tensor) -> Tensor:
    held = x[:11] * 1
    held.unfold(0, 3, 4).t().unsqueeze(0)[0, 1].copy_(torch.ones(3))
    return held


def one_of_a_list(x: Tensor) -> Tensor:
    held = x[:11] * 1
    for window in held.unfold(0, 3, 4):
        window.mul_(5)
    return held


def a_piece(x: Tensor) -> Tensor:
    held = x[:11] * 1
    held.unfold(0, 3, 4).chunk(2)[1].add_(1)
    return held


def in_a_branch(x: Tensor) -> Tensor:
    def whole(x: Tensor) -> Tensor:
        return a_piece(x)

    return torch.cond(x.sum() > 0, whole, lambda x: x[:11] * 2, (x,))


def test_writes_into_windows_that_overlap_are_refused(tmp_path):
    found = outcome(Applied(one_of_many), (X,), {}, tmp_path / "a.kvc")
    assert found.kind == "refused"
    assert "write each window through .narrow(0, start, 3)" in found.reason


def tiled(x: Tensor) -> Tensor:
    held = x * 1
    held.unfold(0, 3, 3).mul_(5)
    return held


def beside(x: Tensor) -> list[Tensor]:
    held = x[:11] * 1
    windows = held.unfold(0, 3, 4)
    held.add_(2)
    other = windows + 0
    other[0] = 5
    return [held, windows * 2, other]


RIGHT = [last_one_cut, of_a_view, one_of_a_list, a_piece, in_a_branch, tiled, beside]


@pytest.mark.parametrize("write", RIGHT)
def test_writes_into_other_windows_go_where_they_do_in_eager(write, tmp_path):
    found = outcome(Applied(write), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_windows_may_be_of_a_dynamic_size(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("n", 6, 20)}})
    calls = [("forward", (torch.arange(float(n)),)) for n in (12, 6, 7, 20)]
    run_both(Applied(tiled), [method], calls, tmp_path)
