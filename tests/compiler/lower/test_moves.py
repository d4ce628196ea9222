"""What is moved into states is a copy that a backend can take."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.tools.reports.methods import describe_methods

X = torch.arange(6.0).view(2, 3)


class Moved(nn.Module):
    """Moves an input, a view of one, a constant and a state into states."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 3))
        self.register_buffer("row", torch.zeros(2, 3))
        self.register_buffer("before", torch.zeros(2, 3))
        self.register_buffer("ones", torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.before.copy_(self.kept)
        self.kept.copy_(x)
        self.row.copy_(x[:1].expand(2, 3))
        return self.before + self.row

    def restore(self) -> Tensor:
        self.kept.copy_(self.ones)
        return self.kept.sum()


@pytest.mark.parametrize("recipe", ["cpu_fp32", "fp32"])
def test_contents_that_no_node_makes_are_moved_in(recipe: str, tmp_path: Path):
    methods = [Method("forward", (X,)), Method("restore", ())]
    bundle = compile_program(Moved().eval(), methods, recipe=recipe)
    for method in describe_methods(bundle.program):
        assert bool(method.left) == (recipe == "fp32")
    bundle.save(tmp_path / "moved.kvc")
    model = Moved()
    with load(tmp_path / "moved.kvc") as program, program.session() as session:
        for x in (X, X + 1):
            assert session.forward(x).tolist() == model(x).tolist()
        assert session.restore() == model.restore()
        assert session.forward(X).tolist() == model(X).tolist()
        for name, state in session.state.items():
            assert state.tolist() == model.get_buffer(name).tolist()


class Windowed(nn.Module):
    """Keeps the last rows that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.cat([self.last, x])
        self.last.copy_(whole[1:])
        return whole.exp().sum(0)


def test_a_part_of_what_a_node_makes_is_moved_in(tmp_path: Path):
    rows = X[:1]
    bundle = compile_program(
        Windowed().eval(), [Method("forward", (rows,))], "cpu_fp32"
    )
    assert all(not method.left for method in describe_methods(bundle.program))
    bundle.save(tmp_path / "moved.kvc")
    model = Windowed()
    with load(tmp_path / "moved.kvc") as program, program.session() as session:
        for x in (rows, rows + 1, rows + 2):
            assert torch.allclose(session.forward(x), model(x))
            assert session.state["last"].tolist() == model.last.tolist()
