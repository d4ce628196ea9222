"""A model after Ctrl-C at any moment of a trace."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from daily import every
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.trace import Unchanged


class Model(nn.Module):
    """Reassigns, writes through an alias, and calls a module within."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.inner.weight
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.box = SimpleNamespace(total=self.total)

    def step(self, x):
        self.last = self.last + x
        self.box.total.add_(x)
        return self.tied(self.inner(self.total)) + self.last


METHODS = [Method("step", (torch.ones(3),))]


def held(model):
    """Return every object of a model, and what tensors hold."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[path, name] = value if isinstance(value, dict) else id(value)
            if isinstance(value, dict):
                found[path, name] = {k: id(v) for k, v in value.items()}
    tensors = {n: t.tolist() for n, t in model.state_dict().items()}
    return found, tensors, id(model.box.total)


@contextmanager
def interrupted(at: int, again: int) -> Iterator[list[int]]:
    """Send SIGINT at a call of a Python function, and at later ones again."""
    count = [0]

    def profile(frame, event, arg):
        if event == "call":
            count[0] += 1
            if count[0] == at or (count[0] > at and (count[0] - at) % again == 0):
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)


@pytest.fixture
def total() -> int:
    """How many functions a compilation calls now; after an interrupt they are fewer."""
    compile_program(Model(), METHODS)
    with interrupted(sys.maxsize, 1) as count:
        compile_program(Model(), METHODS)
    return count[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@every(2, "share", "again")
@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9])
@pytest.mark.parametrize("again", [sys.maxsize, 40])
def test_an_interrupted_compilation_leaves_the_model_as_it_was(share, again, total):
    model = Model()
    before = held(model)
    with pytest.raises(KeyboardInterrupt), interrupted(int(total * share), again):
        compile_program(model, METHODS)
    assert held(model) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    compile_program(model, METHODS)


def test_an_interrupt_in_the_traced_method_stays_one():
    model = Model()
    model.inner.register_forward_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    before = held(model)
    with pytest.raises(KeyboardInterrupt):
        compile_program(model, METHODS)
    assert held(model) == before


def test_an_interrupt_while_things_are_put_back_waits_until_they_are():
    box = SimpleNamespace(row=[1, 2])
    kept = Unchanged(box)
    restore = kept.state.restore

    def interrupted_restore() -> None:
        signal.raise_signal(signal.SIGINT)
        restore()

    kept.state.restore = interrupted_restore
    with pytest.raises(KeyboardInterrupt), kept:
        box.row.append(3)
    assert box.row == [1, 2]


def test_a_handler_of_the_users_own_is_left_alone():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        with Unchanged(SimpleNamespace()):
            signal.raise_signal(signal.SIGINT)
        assert calls == [1]
    finally:
        signal.signal(signal.SIGINT, before)
