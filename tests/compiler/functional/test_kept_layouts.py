"""What is written through a reshaped result, where other operators compute that."""

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor, nn

from kvc.compiler import Dim, Method

X = torch.arange(24.0).reshape(2, 3, 4).sin()
# Each gives tensors in order of what is turned: their makers are taken apart, or not.
MADE = {
    "permute_copy": lambda x: torch.permute_copy(x, dims=(2, 0, 1)),
    "select_copy": lambda x: torch.select_copy(x.mT, 0, 1),
    "slice_copy": lambda x: torch.ops.aten.slice_copy(x.mT, 1, 0, 2),
    "split_copy": lambda x: torch.split_copy(x.mT, 2, 1),
    "unbind_copy": lambda x: torch.unbind_copy(x.mT),
    "unfold_copy": lambda x: torch.unfold_copy(x.mT, 1, 2, 1),
    "view_copy": lambda x: torch.view_copy(x.mT, x.mT.shape),
    "baddbmm": lambda x: torch.baddbmm(x.mT, x.mT, x @ x.mT),
    "max": lambda x: x.mT.max(0),
    "softmax": lambda x: x.mT.softmax(1),
}
SEEN = {
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "contiguous": lambda x: x.contiguous().view(-1),
    "reshape_as": lambda x: x.reshape_as(x.flatten()),
}


def listed(made):
    return [made] if isinstance(made, Tensor) else [*made]


@pytest.mark.parametrize("maker", MADE)
def test_writes_through_reshaped_results_are_kept(maker, tmp_path):
    def written(x):
        made = listed(MADE[maker](x))
        made[-1].reshape(-1)[1:4] = 5
        return made

    found = outcome(Applied(written), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("way", SEEN)
def test_whatever_reshapes_them(way, tmp_path):
    def written(x):
        through, whole = (torch.select_copy(x.mT, 0, 1) for _ in range(2))
        SEEN[way](through)[1:3] = 5
        seen = SEEN[way](whole)
        whole.neg_()  # what is seen already changes, too
        torch.exp(x[0, 0], out=SEEN[way](whole)[:4])
        return through, seen * 2

    found = outcome(Applied(written), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class Growing(nn.Module):
    """Writes through what it reshapes, at a size that only a call knows."""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.baddbmm(x.mT, x.mT, x @ x.mT)
        made.reshape(-1)[1:4] = 5
        return made


def test_sizes_may_be_dynamic(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {1: Dim("rows", 2, 9)}})
    calls = [("forward", (torch.ones(2, rows, 4),)) for rows in (2, 3, 9)]
    run_both(Growing(), [method], calls, tmp_path)


class Listed(nn.Module):
    """Writes into a state that it has from a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", X.clone())

    def forward(self, x: Tensor) -> Tensor:
        same = torch.atleast_1d([self.held, x])[0]
        same.reshape(-1)[1:4].mul_(x[0, 0, 0])
        return same * 2


def test_what_is_handed_on_in_a_list_stays_the_same_memory(tmp_path):
    calls = [("forward", (X + number,)) for number in range(3)]
    run_both(Listed(), [Method("forward", (X,))], calls, tmp_path)
