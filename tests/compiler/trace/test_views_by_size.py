"""Calls that give a view at some sizes and a copy at others, and writes after them."""

from collections.abc import Callable

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import CaptureError

X = torch.arange(24.0).sin().reshape(3, 4, 2)
N = Dim("n", 1, 6)


def of_an_input(x: Tensor) -> Tensor:
    x.transpose(0, 2).reshape(x.shape).sin_()
    return x * 1


def given_back(x: Tensor) -> Tensor:
    held = x * 1
    turned = held.transpose(0, 2).reshape(x.shape)
    held.add_(1)
    return turned


def pieces(x: Tensor) -> Tensor:
    held = x * 1
    first, _ = held.transpose(0, 1).flatten(1).split((1, 3))
    first[0].mul_(2)
    return held


def contiguous(x: Tensor) -> Tensor:
    held = x * 1
    held.transpose(0, 1).contiguous()[0].mul_(2)
    return held


def in_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > -9, contiguous, lambda x: x * 3, (x,))


FROM_ONE, FROM_TWO = [pieces, contiguous, in_a_branch], [of_an_input, given_back]


@pytest.mark.parametrize(
    ("write", "least"), [(w, 1) for w in FROM_ONE] + [(w, 2) for w in FROM_TWO]
)
def test_a_write_after_what_is_both_is_refused(
    write: Callable[[Tensor], object], least: int
):
    method = Method("forward", args=(X,), dynamic={"x": {0: Dim("n", least, 6)}})
    told = rf"is a view for n = {least} and a copy for n = {least + 1}"
    with pytest.raises(CaptureError, match=told):
        compile_program(Applied(write), [method])


def written_before(x: Tensor) -> list[Tensor]:
    held = x * 1
    held.add_(1)
    return [held, held.transpose(0, 1).reshape(4, -1)]


def of_a_copy(x: Tensor) -> list[Tensor]:
    held = x * 1
    turned = held.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    turned.reshape(4, -1).mul_(2)
    return [held, turned]


def not_seen_again(x: Tensor) -> Tensor:
    turned = (x * 2).transpose(0, 1).reshape(4, -1)
    turned += 1
    return turned[turned.shape[0] - 4 :]


def always_a_view(x: Tensor) -> Tensor:
    held = x * 1
    held.flatten(1)[:, 3:].mul_(2)
    held.contiguous().add_(1)
    return held


def always_a_copy(x: Tensor) -> list[Tensor]:
    held = x * 1
    turned = held.transpose(1, 2).reshape(-1, 8)
    turned.mul_(2)
    return [held, turned]


ALIKE = [written_before, of_a_copy, not_seen_again, always_a_view, always_a_copy]


@pytest.mark.parametrize("write", ALIKE)
def test_what_is_the_same_for_all_sizes_is_as_in_eager(
    write: Callable[[Tensor], object], tmp_path
):
    method = Method("forward", args=(X,), dynamic={"x": {0: N}})
    each = [("forward", (torch.cat([X, X])[:size].clone(),)) for size in (3, 1, 6)]
    run_both(Applied(write), [method], each, tmp_path)
