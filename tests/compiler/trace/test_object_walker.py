"""Objects that hold others in their own way, or do not answer."""

import functools
import queue
import weakref

import torch
from torch import nn

from kvc.compiler import Method
from kvc.compiler.trace import capture
from kvc.compiler.trace.python_state import PythonState

X = torch.ones(2)


class Referred:
    """Can be referred to weakly."""


class Remembers(nn.Module):
    """Keeps what it has computed in a cache of Python's."""

    @functools.lru_cache  # noqa: B019
    def table(self, n):
        return torch.arange(n) * 2

    def forward(self, x):
        return x + self.table(2) + remembered(2)


@functools.lru_cache
def remembered(n):
    return torch.arange(n)


def test_results_of_a_trace_are_not_remembered():
    model = Remembers()
    capture(model, Method("forward", (X,)))
    assert type(model.table(2)) is type(remembered(2)) is torch.Tensor
    assert model(X).tolist() == [1, 4]


class Raises:
    """Refuses every question."""

    __slots__ = ("held",)

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("repr")

    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = object.__hash__


class Mapped(dict):
    """Is no mapping to those who ask it."""

    def keys(self):
        raise RuntimeError("keys")

    __iter__ = items = keys


class Listed(list):
    """Is no list to those who ask it."""

    def __iter__(self):
        raise RuntimeError("iter")


class WithHostileObjects(nn.Module):
    """Holds objects that a trace has nothing to do with."""

    def __init__(self):
        super().__init__()
        self.raises, self.keyed = Raises(), {Raises(): Raises()}
        self.mapped, self.listed = Mapped(a=1), Listed([1])
        self.gone = [weakref.proxy(Referred())]
        self.queue = queue.Queue()

    def forward(self, x):
        return x * 1


def test_objects_that_refuse_questions_are_not_asked():
    state = PythonState(WithHostileObjects())
    assert state.changed() is None
    state.restore()


def test_a_queue_that_others_fill_is_none_of_the_models_state():
    model = WithHostileObjects()
    state = PythonState(model)
    model.queue.put(1)
    assert state.changed() is None
    state.restore()
    assert model.queue.get() == 1
