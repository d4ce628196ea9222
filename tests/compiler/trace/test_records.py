"""Arguments and results keep their types, from the model to the caller."""

import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import SUPPORTED_NODES

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CallMismatch, CaptureError

X = torch.arange(6.0).reshape(2, 3)
EMPTY = torch.zeros(2, 0)
LENGTH = Dim("length", 0, 16)
Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True, slots=True)
class Cache:
    key: Tensor
    pair: Pair
    scale: float = 2.0

    def __post_init__(self):
        assert self.key is not None


@dataclass
class Loose:
    key: Tensor
    seen: int = 0
    extra: list = field(default_factory=list)


@dataclass
class Output(OrderedDict):
    logits: Tensor
    past: Tensor | None = None

    def __post_init__(self):
        self.update((k, v) for k, v in vars(self).items() if v is not None)


class Model(nn.Module):
    def step(self, x, cache: Cache):
        assert type(cache) is Cache
        assert type(cache.pair) is Pair
        key = torch.cat([cache.key, x * cache.scale], 1)
        return Cache(key, Pair(x + 1, [cache.pair.left]), cache.scale)

    def best(self, x):
        return x.max(1)

    def grow(self, x, past):
        return Output(x.sum(1), torch.cat([past.key, x], 1))

    def adds(self, x, cache):
        cache.key.add_(x)
        return x * 2

    def puts(self, x, cache):
        cache.key = cache.key + x
        return x * 2

    def appends(self, x, cache):
        cache.extra.append(x)
        return x * 2

    def replaces(self, x, past):
        past["k"][0] = x + 1
        return x * 2

    def unknown(self, x):
        return {"a": [x * 2, torch.float32]}


def opened(tmp_path, *methods):
    compile_program(Model(), list(methods)).save(tmp_path / "m.kvc")
    return load(tmp_path / "m.kvc")


def refusal(*args):
    with pytest.raises(CaptureError) as caught:
        compile_program(Model(), [Method(*args)])
    return str(caught.value)


def test_data_classes_and_named_tuples_are_taken_and_given(tmp_path):
    cache = Cache(EMPTY, Pair(X, X))
    dynamic = {"cache.key": {1: LENGTH}}
    with opened(tmp_path, Method("step", (X, cache), dynamic=dynamic)) as program:
        first = program.step(X, cache)
        assert torch.equal(first.key, X * 2)
        assert torch.equal(first.pair.left, X + 1)
        assert torch.equal(first.pair.right[0], X)
        assert (type(first).__name__, first.scale) == ("Cache", 2.0)
        again = program.step(X.numpy(), {**vars_of(first), "pair": Pair(X, X)})
        assert again.key.shape == (2, 6)
        assert program.methods["step"].input_names[1:3] == (
            "cache.key",
            "cache.pair.left",
        )
    assert Cache not in SUPPORTED_NODES
    assert cache.key is EMPTY


def vars_of(record):
    return {name: getattr(record, name) for name in ("key", "pair", "scale")}


def test_another_field_is_refused_with_its_path(tmp_path):
    cache = Cache(X, Pair(X, X))
    with opened(tmp_path, Method("step", (X, cache))) as program:
        wanted = "cache: expected a dataclass Cache with key, pair, scale, got a tuple"
        with pytest.raises(CallMismatch, match=wanted):
            program.step(X, (X, Pair(X, X), 2.0))
        with pytest.raises(
            CallMismatch, match=r"cache.scale: .* compiled for 2.0, got 3"
        ):
            program.step(X, Cache(X, Pair(X, X), 3.0))


def test_results_of_torch_keep_their_names(tmp_path):
    with opened(tmp_path, Method("best", (X,))) as program:
        best = program.best(X)
        assert torch.equal(best.values, X.max(1).values)
        assert torch.equal(best[1], X.max(1).indices)


def test_a_carried_field_leaves_the_result(tmp_path):
    method = Method(
        "grow",
        (X, Loose(EMPTY)),
        dynamic={"past.key": {1: LENGTH}},
        carry={"past.key": "past"},
    )
    with opened(tmp_path, method) as program, program.session() as session:
        result = session.grow(X)
        assert list(result) == ["logits"]
        assert torch.equal(result.logits, X.sum(1))
        assert session.grow(X).logits.shape == (2,)


def test_a_tensor_in_a_record_is_written_through(tmp_path):
    mine = np.zeros((2, 3), np.float32)
    with opened(tmp_path, Method("adds", (X, Loose(X)))) as program:
        program.adds(X.numpy(), Loose(mine))
    assert np.array_equal(mine, X)


@pytest.mark.parametrize(
    ("name", "thing", "path"),
    [
        ("puts", Loose(X), "cache.key"),
        ("appends", Loose(X), "cache.extra[0]"),
        ("replaces", {"k": [X]}, "past.k[0]"),
    ],
)
def test_what_is_put_into_an_argument_is_refused_with_its_path(name, thing, path):
    message = refusal(name, (X, thing))
    assert re.search(rf"method {name} at \S*test_records:\d+: it puts", message)
    assert repr(path) in message
    assert "copy_" in message


def test_what_is_neither_tensor_nor_container_is_refused_with_its_path():
    message = refusal("unknown", (X,))
    assert re.search(
        r"unknown at \S*test_records:\d+: its result.a\[1\] is of type", message
    )
    assert "of type torch.dtype; a method can return tensors" in message
    message = refusal("best", ([object()],))
    assert "the argument x[0] is of type object; a method can take tensors" in message
    message = refusal("best", (np.array(["a"]),))
    assert "the argument x is of type numpy array of dtype <U1" in message


def test_examples_may_be_arrays(tmp_path):
    with opened(tmp_path, Method("best", (X.numpy()[::-1],))) as program:
        assert np.array_equal(program.best(X.numpy()).values, X.max(1).values)
