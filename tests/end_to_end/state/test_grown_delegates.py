"""Partitions that a backend runs on what grows."""

from pathlib import Path

import torch
from state_runs import opened
from torch import nn

from kvc.compiler import Dim, Method


class OverThePast(nn.Module):
    """A linear layer over all rows, old and new."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 4)

    def step(self, x, past):
        rows = torch.cat([past, x], 1)
        return self.linear(rows * 2), rows


def test_a_partition_whose_sizes_are_sums_of_lengths_runs(tmp_path: Path) -> None:
    x, past = torch.ones(1, 2, 8), torch.ones(1, 3, 8)
    step = Method(
        "step",
        (x, past),
        dynamic={"x": {1: Dim("seq", 1, 4)}, "past": {1: Dim("past", 0, 16)}},
        carry={"past": "[1]"},
    )
    model = OverThePast()
    with opened(model, [step], tmp_path, recipe="xnnpack_q8") as program:
        session, rows = program.session(), torch.zeros(1, 0, 8)
        for count in (3, 1, 2):
            new = torch.randn(1, count, 8)
            (got,) = session.call("step", new)
            wanted, rows = model.step(new, rows)
            torch.testing.assert_close(got, wanted, atol=0.05, rtol=0.05)
