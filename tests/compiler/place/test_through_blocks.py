"""Memory that a partition writes: all of it, in its own shape, or else a copy of it."""

from pathlib import Path

import pytest
import torch
from greedy_backends import ByReference, Greedy
from state_runs import agree, opened
from torch import Tensor, nn

from kvc.compiler import Method, pipeline
from kvc.compiler.ir import Method as IrMethod
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.ops import DELEGATE

X = torch.tensor(3.0)


class Reshaped(nn.Module):
    """Writes every second number of a buffer, seen as a row, and then all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.arange(24.0).reshape(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        row = self.grid.view(24)
        row[::2] = x
        row.sub_(row * 0.5, alpha=3)
        return self.grid[2, 2]


class AllButPlaces(Greedy):
    """Takes what computes, no writes at places and no views."""

    def supports(self, method: IrMethod) -> frozenset[int]:
        taken = ("aten::mul.Scalar", "aten::sub.Tensor", "aten::copy")
        return frozenset(i for i, n in enumerate(method.nodes) if n.op in taken)


def test_a_partition_writes_no_view_that_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_backends_of", lambda _: (AllButPlaces({}),))
    monkeypatch.setitem(DELEGATES, "greedy", ByReference)
    with opened(Reshaped(), [Method("forward", (X,))], tmp_path) as program:
        (method,) = program._engine.program.methods
        assert [s.op for s in method.graph.instructions].count(DELEGATE) == 1
        with program.session() as session:
            agree(session, Reshaped(), [("forward", X), ("forward", -X)])
