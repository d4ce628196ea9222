"""Forks of what grows, where a method writes over it and leaves it as long."""

from pathlib import Path

import numpy as np
import torch
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method

PAST, LENGTH = Dim("past", 0, 4096), 1500  # of eight floats: eleven pages


class Fading(nn.Module):
    """What is carried grows, or is halved where it is."""

    def add(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), torch.cat([past, x], 1)

    def fade(self, past: Tensor) -> tuple[Tensor, Tensor]:
        return past.sum(), past * 0.5


def test_what_was_written_over_since_a_fork_is_in_the_next(tmp_path: Path) -> None:
    x, past, carry = torch.ones(1, 3, 8), torch.ones(1, 5, 8), {"past": "[1]"}
    sizes = {"x": {1: Dim("seq", 1, 2048)}, "past": {1: PAST}}
    add = Method("add", (x, past), dynamic=sizes, carry=carry)
    fade = Method("fade", (past,), dynamic={"past": {1: PAST}}, carry=carry)
    with opened(Fading(), [add, fade], tmp_path) as program:
        session = program.session()
        session.add(np.ones((1, LENGTH, 8), np.float32))
        first = session.fork()
        session.fade()
        second = session.fork()
        for one, content in ((first, 1), (session, 0.5), (second, 0.5)):
            np.testing.assert_array_equal(one.state["past"], content)
