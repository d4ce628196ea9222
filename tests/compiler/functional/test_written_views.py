"""Writes through `expand`, which torch makes by adding what changed."""

from collections.abc import Callable

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import CaptureError

# Of two numbers so far apart, a difference forgets the small one.
X = torch.tensor([[1e30, -torch.inf], [-1e30, 0.5], [3.0, 1e30]])
N = Dim("n", 3, 9)


def to_its_own_size(x: Tensor) -> list[Tensor]:
    held = x * 1
    held.expand(-1, 2)[0] = 1.5
    held.expand_as(x)[1:, 0].add_(1)
    return [held]


def with_more_axes(x: Tensor) -> list[Tensor]:
    held = x * 1
    more = held.expand(1, 1, *x.shape)
    more[0, 0, :1].fill_(2.5)
    torch.broadcast_to(held.unsqueeze(1), (x.shape[0], 1, 2)).select(2, 1).mul_(2)
    return [held, more * 1, more.sum(3)]


def given_back(x: Tensor) -> Tensor:
    made = (x * 1).expand_as(x)
    made[1] = 1.5
    return made


def of_turned_memory(x: Tensor) -> list[Tensor]:
    held = (x * 1).t()[:, ::2]
    held.expand_as(held)[0] = 1.5
    return [held * 1]


def of_a_grid(x: Tensor) -> Tensor:
    held = x[:, 0] * 1
    torch.meshgrid(held, x[0, 0], indexing="ij")[0][1:] = 1.5
    return held


def in_a_branch(x: Tensor) -> Tensor:
    def yes(x: Tensor) -> Tensor:
        return given_back(x).clone()

    return torch.cond(x[2, 0] > 0, yes, lambda x: x * 1, (x,))


def of_what_is_expanded(x: Tensor) -> list[Tensor]:
    held = x * 1
    wide = held[:1].expand(4, 2)
    held[0, 0] = 1.5
    return [held, wide * 1]


RIGHT = [to_its_own_size, with_more_axes, given_back, of_a_grid, in_a_branch]
RIGHT += [of_what_is_expanded]


@pytest.mark.parametrize("write", RIGHT)
@pytest.mark.parametrize("sizes", [{}, {"x": {0: N}}], ids=["fixed", "dynamic"])
def test_what_is_written_is_there_to_the_bit(
    write: Callable[[Tensor], object], sizes: dict[str, dict[int, Dim]], tmp_path
):
    method = Method("forward", args=(X,), dynamic=sizes)
    calls = [X, torch.cat([X, X])] if sizes else [X]
    each = [("forward", (call.clone(),)) for call in calls]
    run_both(Applied(write), [method], each, tmp_path)


def test_memory_in_another_order_is_written_to_the_bit(tmp_path):
    method = Method("forward", args=(X,))
    each = [("forward", (X.clone(),))]
    run_both(Applied(of_turned_memory), [method], each, tmp_path)


def one_row_of_many(x: Tensor) -> Tensor:
    held = x * 1
    held[:1].expand(4, 2)[3] = 1.5
    held[:1].expand(4, 2)[1:2].mul_(3)
    return held


def one_number_everywhere(x: Tensor) -> Tensor:
    held = x * 1
    held[:1].expand(4, 2).fill_(1.5)
    return held


@pytest.mark.parametrize("write", [one_row_of_many, one_number_everywhere])
def test_what_is_written_once_or_alike_is_there(write, tmp_path):
    found = outcome(Applied(write), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def rows_of_many(x: Tensor) -> Tensor:
    held = x * 1
    held[:1].expand(4, 2)[1:].add_(1.5)
    return held


def a_row_of_a_grid(x: Tensor) -> Tensor:
    held = x[:, 0] * 1
    torch.meshgrid(held, x[0], indexing="ij")[0][1] += 1.5
    return held


@pytest.mark.parametrize("write", [rows_of_many, a_row_of_a_grid])
def test_writes_into_what_is_there_several_times_are_refused(write, tmp_path):
    module = Applied(write)
    told = "repeats elements|more than one element of the written-to tensor"
    with pytest.raises(CaptureError, match=told) as caught:
        compile_program(module, [Method("forward", args=(X,))])
    assert "written_views:" in caught.value.facts["place"]
