"""The memory of a model that code reaches in other ways than by its registered name."""

import functools
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from captured_once import captured_once
from eager_parity import run_both
from torch import nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError, StateConflict

X = torch.ones(4)


@dataclass
class Layer:
    """What a cache of transformers is like."""

    keys: torch.Tensor
    lengths: list = field(default_factory=list)


class Shown(NamedTuple):
    """Results over the memory of states."""

    n: torch.Tensor
    rows: list


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("held",)


class Reached(nn.Module):
    """A buffer that is reached in every way."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kv", torch.zeros(2, 4))
        self.register_buffer("n", torch.zeros(1))
        self.k, self.v = self.kv[0], self.kv[1]
        self.box = SimpleNamespace(n=self.n, deeper=SimpleNamespace(row=[self.n]))
        self.layer = Layer(self.kv.transpose(0, 1), [self.n])
        self.table = {"n": self.n, 1: (self.kv.view(-1),)}
        self.slotted = Slotted()
        self.slotted.held = self.n
        n = self.n
        self.closure = lambda: n
        self.partial = functools.partial(torch.add, n)
        self.plain = torch.full((4,), 3.0)

    def plain_object(self):
        self.box.n.add_(1)
        return self.box.n.clone()

    def a_list(self):
        self.box.deeper.row[0] += 1
        return self.box.deeper.row[0] * 2

    def a_dictionary(self):
        self.table["n"].mul_(2).add_(1)
        return self.n * 1

    def slots(self):
        self.slotted.held += 1
        return self.slotted.held

    def a_closure(self):
        self.closure().add_(2)
        return self.closure()

    def a_partial(self):
        self.n.add_(1)
        return self.partial(1)

    def a_dataclass(self):
        self.layer.keys[1] = 5
        self.layer.lengths[0].add_(1)
        return self.kv + self.n

    def write(self, x):
        self.kv.add_(x)
        return self.kv.clone()

    def read(self):
        return self.k + self.v + self.plain

    def both(self, x):
        self.kv.add_(x)
        self.v.mul_(2)
        return self.k + self.v, self.table[1][0][2:6]

    def slice_by_alias(self, x):
        self.k.copy_(x)
        self.k[1:3] = x[:2] * 2
        self.table[1][0][5] = 9
        return self.kv.clone()

    def index(self, x):
        place = torch.tensor([2, 0])
        self.v.index_copy_(0, place, x[:2] + self.n)
        return self.v.clone()

    def branch(self, x):
        def write(x):
            return x + self.box.n + self.k

        return torch.cond(x.sum() > 3, write, lambda x: x - self.v, (x,))

    def branch_of_operands(self, x):
        new = torch.cond(
            x.sum() > 3, lambda k: k + 1, lambda k: k.clone(), (self.layer.keys,)
        )
        self.layer.keys.copy_(new)
        return self.kv * 1

    def data(self, x):
        self.n.data.add_(1)
        self.kv.data[0] = x
        return self.k.data + x.data + self.n

    def gradients(self, x):
        with torch.enable_grad():
            self.box.n.add_(1)
        return self.n + x

    def shown(self):
        return self.box.n, self.k

    def shown_in_a_record(self):
        self.n.add_(1)
        return Shown(self.box.n, [self.k])


CALLS = {
    **dict.fromkeys(
        ("write", "both", "slice_by_alias", "index", "data", "gradients"), (X,)
    ),
    **dict.fromkeys(("branch", "branch_of_operands"), (X,)),
}
METHODS = [
    *("plain_object", "a_list", "a_dictionary", "slots", "a_closure", "a_partial"),
    *("a_dataclass", "read", "shown", *CALLS),
]


@pytest.fixture
def remembered():
    """Trace each method of these models once, for all tests that run it."""
    with captured_once():
        yield


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("name", METHODS)
def test_memory_that_is_reached_another_way_is_the_state(name, tmp_path):
    calls = [(name, CALLS.get(name, ()))] * 3
    run_both(Reached(), [Method(name, CALLS.get(name, ()))], calls, tmp_path)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("x", [X, -X])
def test_a_branch_captures_memory_that_is_reached_another_way(x, tmp_path):
    methods = [Method(n, (X,)) for n in ("branch", "branch_of_operands", "write")]
    calls = [(n, (x,)) for n in ("write", "branch", "branch_of_operands", "branch")]
    run_both(Reached(), methods, calls, tmp_path)


@pytest.mark.usefixtures("remembered")
def test_methods_share_memory_whatever_they_call_it(tmp_path):
    model = Reached()
    methods = [Method(name, CALLS.get(name, ())) for name in METHODS]
    calls = [(name, CALLS.get(name, ())) for name in (*METHODS, *METHODS[::-1])]
    run_both(model, methods, calls, tmp_path)
    assert model.n is model.box.n is model.table["n"]


def test_memory_in_a_result_of_its_own_type_is_the_state(tmp_path):
    compile_program(Reached(), [Method("shown_in_a_record")]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program, program.session() as session:
        assert session.shown_in_a_record().n.tolist() == [1]
        assert session.shown_in_a_record().n.tolist() == [2]


@pytest.mark.usefixtures("remembered")
def test_each_memory_is_one_state_under_the_registered_name(tmp_path):
    model = Reached().eval()
    methods = [Method(name, CALLS.get(name, ())) for name in METHODS]
    compile_program(model, methods).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program:
        assert set(program.states) == {"kv", "n"}


class Registered(nn.Module):
    """Buffers over the memory of other ones, in modules within."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Module(), nn.Module()
        self.first.register_buffer("alone", torch.zeros(2, 4)[0])
        whole = torch.zeros(2, 4)
        self.register_buffer("whole", whole)
        self.first.register_buffer("row", whole[1])
        self.second.register_buffer("turned", whole.t())
        self.second.register_buffer("again", whole.view(2, 4))

    def step(self, x):
        self.first.row.add_(x)
        self.second.turned[2] += 1
        self.second.again.mul_(2)
        self.first.alone.add_(x)
        return self.whole.clone(), self.first.alone + self.first.row


def test_buffers_within_another_one_are_parts_of_its_state(tmp_path):
    run_both(Registered(), [Method("step", (X,))], [("step", (X,))] * 3, tmp_path)
    with load(tmp_path / "model.kvc") as program:
        assert set(program.states) == {"whole", "first.alone"}


class Twice(nn.Module):
    """One module under two names, and in a list, with a state that is assigned."""

    def __init__(self):
        super().__init__()
        self.inner = Reached()
        self.again = self.inner
        self.all = nn.ModuleList([self.inner, self.inner])

    def step(self, x):
        self.again.n = self.again.n + 1
        for module in self.all:
            module.write(x)
        return self.inner.n + self.again.kv


def test_a_module_that_is_mounted_twice_has_one_state(tmp_path):
    run_both(Twice(), [Method("step", (X,))], [("step", (X,))] * 3, tmp_path)


class Sized(nn.Module):
    """A cache whose size is chosen later, in an attribute of a plain object as well."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 1, 8, 2))
        self.layer = SimpleNamespace(keys=self.cache[0], first=self.cache[0, :, :4])

    def write(self, x, at):
        self.layer.keys.index_copy_(1, at, x)
        return self.cache.sum(), self.layer.keys.index_select(1, at)

    def short(self, x):
        return self.layer.first + x


SIZE = StateSpec("cache", axis=2, capacity=Dim("capacity", 4, 64))


def test_a_part_of_a_sized_buffer_has_the_size_of_the_session(tmp_path):
    x, at = torch.ones(1, 1, 2), torch.tensor([40])
    method = Method("write", (x, torch.tensor([3])))
    compile_program(Sized(), [method], states=[SIZE]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program, program.session(capacity=64) as session:
        total, row = session.write(x, at)
        assert (total.item(), row.tolist()) == (2, [[[1, 1]]])


def refusal(model, *methods, **options):
    with pytest.raises(KvcError) as caught:
        compile_program(model, methods, **options)
    return caught.value


def test_a_part_that_cuts_the_chosen_size_is_refused():
    x = torch.ones(1, 1, 2)
    write = Method("write", (x, torch.tensor([3])))
    error = refusal(Sized(), write, Method("short", (x,)), states=[SIZE])
    assert isinstance(error, StateConflict)
    assert error.facts["state"] == "cache"
    assert "method short at tests.compiler.trace.test_aliases:" in str(error)


def test_an_example_over_the_memory_of_a_buffer_is_not_that_buffer(tmp_path):
    model = Reached()
    compile_program(model, [Method("write", (model.k,))]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program, program.session() as session:
        assert session.write(X)[0].tolist() == [1, 1, 1, 1]
        assert session.write(X * 3)[0].tolist() == [4, 4, 4, 4]


class Named(nn.Module):
    """Code that goes through the names of a tied model."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("k", torch.arange(4.0))
        self.b.register_buffer("first", self.k[:2])

    def of_buffers(self, x):
        self.k.add_(x)
        return sum(b.sum() for b in self.buffers())

    def of_parameters(self, x):
        named = dict(self.named_parameters(remove_duplicate=False))
        return x + named["b.weight"].sum() * len(named) + len([*self.parameters()])

    def of_one_module(self, x):
        dtype = next(self.b.parameters()).dtype
        squares = [(p**2).sum() for m in (self.a, self.b) for p in m.parameters()]
        return x.to(dtype) + sum(squares)

    def is_one(self, x):
        return x + 1 if self.a.weight is self.b.weight else x

    def assigns(self, x):
        self.b.first = self.b.first + x[:2]
        return self.k + x


@pytest.mark.parametrize("name", ["of_buffers", "of_parameters", "of_one_module"])
def test_a_traced_method_sees_every_name(name, tmp_path):
    run_both(Named(), [Method(name, (X,))], [(name, (X,))] * 2, tmp_path)


def test_tied_tensors_are_one_object_in_a_traced_method(tmp_path):
    run_both(Named(), [Method("is_one", (X,))], [("is_one", (X,))], tmp_path)


def test_a_part_of_a_buffer_that_is_assigned_anew_is_refused():
    error = refusal(Named(), Method("assigns", (X,)))
    assert "assigns 'b.first' anew, which was one with 'k'" in str(error)


def test_a_part_of_a_buffer_has_no_size_of_its_own():
    spec = StateSpec("*first", axis=0, capacity=Dim("capacity", 1, 8))
    error = refusal(Named(), Method("of_buffers", (X,)), states=[spec])
    assert isinstance(error, StateConflict)
    assert "lies within the buffer 'k'" in str(error)


def test_models_are_compiled_in_threads_one_after_the_other(tmp_path):
    members, found = nn.Module._named_members, []

    def compiled():
        compile_program(Named(), [Method("of_buffers", (X,))])
        found.append(len([*Named().named_parameters(remove_duplicate=False)]))

    threads = [threading.Thread(target=compiled) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2, 2, 2]
    assert nn.Module._named_members is members
