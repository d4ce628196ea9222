"""What is moved into states is a copy that a backend can take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.compiler.backends import BACKENDS
from kvc.compiler.backends.xnnpack import Xnnpack
from kvc.recipes import Recipe
from kvc.runtime import load
from kvc.schema.errors import BadBackend
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


RECIPE = Recipe("toy", "", "", "float32", "float32", "float32", "toy")


def compile_with(monkeypatch, **methods):
    backend = type("Toy", (Xnnpack,), {"name": "toy", **methods})
    monkeypatch.setitem(BACKENDS, "toy", backend)
    forward = Method("forward", (torch.ones(2, 4),))
    return compile_program(nn.Linear(4, 4).eval(), [forward], RECIPE)


def test_an_answer_of_the_right_form_is_taken(monkeypatch):
    assert len(compile_with(monkeypatch).program.delegates) == 1


@pytest.mark.parametrize("found", [None, 3, {-1}, {99}, {"a"}, [True], [0.0], [[0]]])
def test_nodes_that_are_none_are_refused(monkeypatch, found):
    with pytest.raises(BadBackend, match="backend toy, supports, method forward") as e:
        compile_with(monkeypatch, supports=lambda self, method: found)
    assert e.value.facts["backend"] == "toy"


def changed(**fields):
    """Return a `lower` whose answers have some fields replaced."""

    def lower(self, *arguments):
        found = Xnnpack.lower(self, *arguments)
        return {name: [replace(p, **fields) for p in found[name]] for name in found}

    return lower


@pytest.mark.parametrize(
    ("lower", "expected"),
    [
        (lambda *_: None, "expected a mapping"),
        (lambda *_: [], "expected a mapping"),
        (lambda *_: {}, "a key for each of the methods forward, found none"),
        (lambda *_: {"forward": [], "other": []}, "found forward, other"),
        (lambda *_: {"forward": None}, "expected a Lowered for each of 1, found None"),
        (lambda *_: {"forward": []}, "expected a Lowered for each of 1, found 0"),
        (
            lambda *_: {"forward": [b"", b""]},
            "expected a Lowered for each of 1, found 2",
        ),
        (lambda *_: {"forward": [b""]}, "each item a Lowered, found b''"),
        (changed(payload="text"), "payload of bytes"),
        (changed(memory="opaque"), "memory a MemoryKind"),
        (changed(workspace_nbytes=-1), "workspace_nbytes a count"),
        (changed(tail_nbytes=1.5), "tail_nbytes a count"),
    ],
)
def test_answers_that_are_none_are_refused(monkeypatch, lower, expected):
    with pytest.raises(BadBackend, match=expected):
        compile_with(monkeypatch, lower=lower)
