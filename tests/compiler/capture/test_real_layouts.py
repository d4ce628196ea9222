"""Writes through results whose order in memory torch's trace may have wrong."""

import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor
from torch.nn import functional

X = torch.arange(48.0).reshape(1, 2, 4, 6).sin().to(memory_format=torch.channels_last)
PLACES = torch.arange(48).reshape(1, 6, 2, 4).permute(0, 2, 3, 1) % 24


def unpooled(x: Tensor) -> Tensor:
    return functional.max_unpool2d(x, PLACES, 1, output_size=(4, 6))


def turned_norm(x: Tensor) -> Tensor:
    return functional.batch_norm(x[0].transpose(0, 1), torch.zeros(2), torch.ones(2))


def turned_exp(x: Tensor) -> Tensor:
    return x.exp()


def written(made: Tensor) -> Tensor:
    made.reshape(-1)[1:4] = 5
    return made


@pytest.mark.parametrize("maker", [unpooled, turned_norm])
def test_a_write_through_a_layout_that_is_wrong_in_the_trace_is_refused(
    maker, tmp_path
):
    def direct(x):
        return written(maker(x))

    def cloned(x):
        made = maker(x).clone(memory_format=torch.contiguous_format)
        return written(made)

    found = outcome(Applied(direct), (X,), {}, tmp_path / "a.kvc")
    assert found.kind == "refused"
    assert "clone(memory_format=torch.contiguous_format)" in found.reason
    found = outcome(Applied(cloned), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("maker", [unpooled, turned_norm, turned_exp])
def test_what_is_not_written_may_lie_as_it_likes(maker, tmp_path):
    def read(x):
        return maker(x).reshape(-1)[1:4] * 2

    found = outcome(Applied(read), (X,), {}, tmp_path / "c.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_a_layout_that_is_right_in_the_trace_may_be_written(tmp_path):
    def direct(x):
        return written(turned_exp(x))

    found = outcome(Applied(direct), (X,), {}, tmp_path / "d.kvc")
    assert (found.kind, found.reason) == ("equal", "")
