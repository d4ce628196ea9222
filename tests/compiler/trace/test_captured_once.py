"""What tests remember of traces: only of models that are equal in all that matters."""

import runpy
from collections.abc import Callable
from pathlib import Path

import captured_once
import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.trace import CapturedMethod


class Scaled(nn.Module):
    def __init__(self, factor: float = 2.0, shared: bool = False) -> None:
        super().__init__()
        self.register_buffer("a", torch.full((4,), factor))
        self.register_buffer("b", self.a if shared else self.a.clone())
        self.offset = 1.0
        self.last: Callable[[Tensor], Tensor] = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.a + self.offset - self.b)


def changed(**attributes: object) -> Scaled:
    model = Scaled()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def adding(number: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + number


def taking(number: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x - number


def noted() -> Scaled:
    model = Scaled()
    model.a.note = "what code has written on a tensor"
    return model


STEP = Method("forward", args=(torch.zeros(4),))
UNEQUAL = {
    "plain": Scaled,
    "another value": lambda: Scaled(3.0),
    "shared memory": lambda: Scaled(shared=True),
    "another attribute": lambda: changed(offset=2.0),
    "in training": lambda: Scaled().train(False),
    "another function": lambda: changed(last=torch.tanh),
    "a closure": lambda: changed(last=adding(1.0)),
    "what it encloses": lambda: changed(last=adding(2.0)),
    "its code": lambda: changed(last=taking(1.0)),
    "another shape": lambda: changed(a=torch.full((1, 4), 2.0)),
    "other strides": lambda: changed(a=torch.full((2, 4), 2.0).T[:, 0]),
    "another dtype": lambda: changed(a=torch.full((4,), 2.0, dtype=torch.float64)),
    "a note": noted,
    "another kind": lambda: changed(a=torch.full((4,), 2.0).int()),
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods that were traced, and not remembered."""
    names: list[str] = []
    capture = captured_once.capture

    def noted(model: nn.Module, method: Method, *rest: object) -> CapturedMethod:
        names.append(method.name)
        return capture(model, method, *rest)

    monkeypatch.setattr(captured_once, "capture", noted)
    monkeypatch.setattr(captured_once, "_known", type(captured_once._known)())
    return names


def test_an_equal_model_is_not_traced_again(traced: list[str]) -> None:
    with captured_once.captured_once():
        first, second = (compile_program(Scaled(), [STEP]) for _ in "ab")
    assert traced == ["forward"]
    assert first.program == second.program


@pytest.mark.parametrize("kind", UNEQUAL)
def test_equal_models_have_one_key(kind: str) -> None:
    one, other = UNEQUAL[kind](), UNEQUAL[kind]()
    assert captured_once._key(one) == captured_once._key(other)


def test_others_have_keys_of_their_own() -> None:
    keys = {captured_once._key(make()) for make in UNEQUAL.values()}
    assert len(keys) == len(UNEQUAL)


class Inherited(Scaled):
    steps = 2


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Inherited, "steps", 3),
        (Inherited, "forward", lambda self, x: x),
        (Scaled, "forward", lambda self, x: x),
    ],
)
def test_a_class_that_is_changed_is_another(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, value: object
) -> None:
    before = captured_once._key(Inherited())
    monkeypatch.setattr(owner, name, value, raising=False)
    assert captured_once._key(Inherited()) != before


def test_so_have_other_methods_and_states() -> None:
    dim = Dim("n", 2, 8)
    given = [
        (STEP,),
        (Method("forward", args=(torch.ones(4),)),),
        (Method("forward", args=(torch.zeros(5),)),),
        (Method("forward", args=(torch.zeros(4),), dynamic={"x": {0: dim}}),),
        (STEP, StateSpec("a", axis=0, capacity=dim)),
    ]
    keys = {captured_once._key(Scaled(), *some) for some in given}
    assert len(keys) == len(given)


def own() -> Scaled:
    """Return a model of a class that only this call knows."""

    class Own(Scaled):
        pass

    return Own()


def with_an_empty_cell() -> Scaled:
    def last(x: Tensor) -> Tensor:
        return x if x.dim() else unknown

    if False:
        unknown = 1
    return changed(last=last)


@pytest.mark.parametrize("make", [own, with_an_empty_cell])
def test_what_cannot_be_told_is_traced_each_time(
    traced: list[str], make: Callable[[], Scaled]
) -> None:
    with captured_once.captured_once():
        for _ in range(2):
            compile_program(make(), [STEP])
    assert traced == ["forward"] * 2


def test_the_oldest_trace_is_forgotten(
    traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_once, "MOST", 1)
    with captured_once.captured_once():
        for factor in (1.0, 1.0, 2.0, 1.0):
            compile_program(Scaled(factor), [STEP])
    assert traced == ["forward"] * 3


FILE = """
import torch
from kvc.compiler import (Method, compile_program)
class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()
compile_program(Model(), [Method("forward", (torch.zeros(4),))])
"""


def test_files_that_are_run_may_have_other_models_of_one_name(
    traced: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "file.py"
    for name in ("relu", "sigmoid"):
        path.write_text(FILE.replace("relu", name))
        with captured_once.captured_once():
            runpy.run_path(str(path))
    assert traced == ["forward", "forward"]
