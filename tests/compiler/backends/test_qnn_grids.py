"""Which grids `qnn` chooses: one for what two methods make alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qnn_fixed
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.schema.backends.grids import Grid
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.qnn_fixed import Grids, read_payload
from kvc.schema.errors import BadOption, RangeUnbounded
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Program
from kvc.schema.ops import CACHE_UPDATE


def read(program: Program) -> dict[str, tuple[Graph, Grids]]:
    """Return the code and the grids of each method's partition."""
    found = {}
    for each in program.delegates:
        if each.backend == "qnn":
            method = program.methods[each.method]
            graph = method.blocks[each.block].graph
            grids = read_payload(each.payload, graph, "m", "here")
            found[method.name] = graph, grids
    return found


def made_by(op: str, graph: Graph, grids: Grids) -> Grid:
    """Return the grid of what an operator makes."""
    (value,) = next(s for s in graph.instructions if s.op == op).results
    return grids.values[value]


class Twice(nn.Module):
    """Two methods with one weight; and a third that multiplies by another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def long(self, x: Tensor) -> Tensor:
        return torch.relu(self.one(x)).reshape(2, 6)

    def short(self, y: Tensor) -> Tensor:
        return torch.relu(self.one(y))

    def apart(self, y: Tensor) -> Tensor:
        return torch.relu(self.other(y))


def test_values_that_are_made_alike_have_one_grid(tmp_path: Path) -> None:
    x, y = np.ones((1, 3, 4), np.float32), np.full((1, 1, 4), 5, np.float32)
    np.savez(tmp_path / "s.npz", x=x, y=y)
    methods = [
        Method("long", (torch.ones(3, 4),)),
        Method("short", (torch.ones(1, 4),)),
        Method("apart", (torch.ones(1, 4),)),
    ]
    made = compile_program(
        Twice(), methods, "qnn_a16w8", calibrate=Samples(tmp_path / "s.npz")
    )
    found = read(made.program)
    last = {name: made_by("aten::relu", *both) for name, both in found.items()}
    assert last["long"] == last["short"] != last["apart"]


def test_a_cache_has_one_grid_and_scores_have_one_of_their_own(tmp_path: Path) -> None:
    path = qnn_fixed.compiled(tmp_path / "m.kvc", "qnn_a16w8")
    with load(path) as program:
        found = read(program._engine.program)
    assert found.keys() == {"prefill", "decode"}
    for graph, grids in found.values():
        (made,) = (s.results for s in graph.instructions if s.op == ATTENTION)
        assert grids.scores.keys() == {*made}
        for step in graph.instructions:
            if step.op == CACHE_UPDATE:
                cache, (result,) = step.arguments[0], step.results
                assert isinstance(cache, Ref)
                assert grids.values[cache.value] == grids.values[result]
    one, other = (list(grids.scores.values()) for _, grids in found.values())
    assert one == other


class Factors(nn.Module):
    """One value, by a large number and by a small one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.one(x)
        return y * 500.0, y * 0.002


class Between(nn.Module):
    """Two partitions, for the device has no exponential; the second reads 1e4."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.exp(self.one(x) * 0 + 9))


class Shifted(nn.Module):
    """A sum with a constant, as large as asked for."""

    def __init__(self, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(4, 4)
        self.size = nn.Parameter(torch.full((4,), size))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.size


X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


def compiled(model: nn.Module, folder: Path) -> Program:
    np.savez(folder / "s.npz", x=X)
    method = Method("forward", (torch.from_numpy(X[0]),))
    made = compile_program(
        model.eval(), [method], "qnn_a16w8", calibrate=Samples(folder / "s.npz")
    )
    made.save(folder / "m.kvc")
    return made.program


def test_products_with_unlike_numbers_have_grids_of_their_own(tmp_path: Path) -> None:
    model = Factors()
    compiled(model, tmp_path)
    with load(tmp_path / "m.kvc", reference=True) as program:
        found = program.forward(X[0])
    for one, wanted in zip(found, model(torch.from_numpy(X[0])), strict=True):
        large = wanted.detach().abs().max()
        assert np.abs(one - wanted.detach().numpy()).max() <= 1e-2 * large


def test_an_input_has_not_the_grid_of_another_partition(tmp_path: Path) -> None:
    program = compiled(Between(), tmp_path)
    scales = []
    for each in program.delegates:
        if each.backend == "qnn":
            graph = program.methods[each.method].blocks[each.block].graph
            grids = read_payload(each.payload, graph, "m", "here")
            scales.append(grids.values[graph.inputs[0]].scale)
    one, other = scales
    assert one == pytest.approx(2 / 65535)
    assert other == pytest.approx(np.exp(9) / 65535)


@pytest.mark.parametrize("size", [0.0, 1e-9, -1e-9, 1e-30, -5e-9])
def test_small_numbers_have_a_grid_that_the_device_can_have(
    size: float, tmp_path: Path
) -> None:
    compiled(Shifted(size), tmp_path)
    with load(tmp_path / "m.kvc", reference=True) as program:
        assert np.isfinite(program.forward(X[0])).all()


@pytest.mark.parametrize("size", [1e18, -3e38])
def test_numbers_that_the_device_cannot_have_are_refused_when_compiled(
    size: float, tmp_path: Path
) -> None:
    with pytest.raises(RangeUnbounded, match=r"too large .* such as -1e4"):
        compiled(Shifted(size), tmp_path)


def test_an_option_that_it_lacks_is_refused(tmp_path: Path) -> None:
    recipe = qnn_fixed.recipe()
    method = Method("forward", (torch.zeros(1, 4),))
    for options, what in (
        ({"activations": "int4"}, "expected 'float16' or 'uint16', found 'int4'"),
        ({"bits": 8}, "option 'bits'"),
    ):
        changed = replace(recipe, backend_options=options)
        with pytest.raises(BadOption, match=what):
            compile_program(nn.Linear(4, 4), [method], changed)
