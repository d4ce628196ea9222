"""Buffers and parameters that a method puts others in the place of."""

import pytest
import torch
from eager_parity import run_both
from torch import nn

from kvc.compiler import Method
from kvc.compiler.ingest import import_program
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError

X = torch.full((3,), 2.0)


class Assigns(nn.Module):
    """Assigns what is registered, in many ways."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("k", torch.ones(3))
        self.register_buffer("v", torch.zeros(3), persistent=False)
        self.register_buffer("none", None)
        self.plain = torch.ones(3)

    def add(self, x):
        self.k = self.k + x
        return self.k * 2

    def old(self, x):
        before = self.k
        self.k = self.k + x
        return before

    def view_of_old(self, x):
        before = self.k[1:]
        self.k = self.k + x
        return before

    def swap(self, x):
        self.k, self.v = self.v, self.k
        return x + self.k

    def twice(self, x):
        self.k = x * 2
        self.k.add_(1)
        self.k = self.k * 3
        return self.k

    def through_the_table(self, x):
        self._buffers["k"] = x * 2
        return x * self.k

    def one_of_two(self, x):
        self.k = x * 2
        self.v = self.k
        return x

    def the_others(self, x):
        self.k = self.v
        return x

    def the_callers(self, x):
        self.k = x
        return x * 1

    def longer(self, x):
        self.k = torch.cat([self.k, x])
        return self.k.sum()

    def half(self, x):
        self.k = (self.k + x).half()
        return x * self.k

    def parameter(self, x):
        self.weight = nn.Parameter(self.weight + x)
        return x * self.weight

    def data_of_parameter(self, x):
        self.weight.data = self.weight.data + x
        return x * self.weight

    def data_of_buffer(self, x):
        self.k.data = self.k + x
        return x * self.k

    def data_of_argument(self, x):
        x.data = x * 2
        return x + 1

    def removes(self, x):
        del self.v
        return x * 1

    def fills_in(self, x):
        self.none = x * 1
        return x * 1

    def plain_tensor(self, x):
        self.plain = self.plain + x
        return x * 1

    def writes_plain_tensor(self, x):
        self.plain.add_(x)
        return x * 1

    def module(self, x):
        self.added = nn.Linear(3, 3)
        return self.added(x)

    def writes_parameter(self, x):
        self.weight.add_(x)
        return self.weight * 1


class Nested(nn.Module):
    """The same in a module within, once or twice in the model."""

    def __init__(self, twice):
        super().__init__()
        self.inner = Assigns()
        self.again = self.inner if twice else None

    def add(self, x):
        return self.inner.add(x)


class TwoNames(nn.Module):
    """One buffer of two modules, assigned in one of them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Assigns(), Assigns()
        self.b.k = self.a.k

    def add(self, x):
        self.a.add(x)
        return self.b.k + x


def imported(name, model=None):
    model = model or Assigns()
    captured = capture(model, Method(name, (X.clone(),)))
    return import_program(model, (captured,)).methods[0]


def refusal(name, model=None):
    with pytest.raises(CaptureError) as caught:
        imported(name, model)
    return caught.value.facts["reason"]


def ops(method, value):
    """Return the ops that lead to a value, the last one first."""
    made = {v.id: node for node in method.nodes for v in node.outputs}
    found = []
    while value.id in made:
        found.append(made[value.id].op.removeprefix("aten::"))
        value = made[value.id].inputs[0]
    return found


def written(method):
    return {name: value for value, name in method.state_out}


def read(method, name):
    return next(value for value, state in method.state_in if state == name)


def test_a_buffer_of_the_same_type_is_written():
    method = imported("add")
    assert list(written(method)) == ["k"]
    assert ops(method, written(method)["k"]) == ["add.Tensor"]


def test_the_old_value_stays_what_it_was():
    method = imported("old")
    (result,) = method.outputs
    assert ops(method, result) == ["clone"]
    assert ops(method, written(method)["k"]) == ["add.Tensor"]
    assert result != written(method)["k"]


def test_a_view_of_the_old_value_stays_what_it_was():
    (result,) = imported("view_of_old").outputs
    assert ops(imported("view_of_old"), result) == ["clone", "slice.Tensor"]


def test_two_buffers_may_change_places():
    method = imported("swap")
    new = written(method)
    made = {v.id: node for node in method.nodes for v in node.outputs}
    assert made[new["k"].id].inputs == (read(method, "v"),)
    assert made[new["v"].id].inputs == (read(method, "k"),)


def test_the_last_of_several_assignments_counts():
    method = imported("twice")
    assert ops(method, written(method)["k"]) == [
        "mul.Scalar",
        "add.Scalar",
        "mul.Scalar",
    ]


def test_a_buffer_that_is_assigned_in_the_modules_table_is_written():
    assert list(written(imported("through_the_table"))) == ["k"]


def test_a_buffer_of_a_module_within_is_written():
    assert list(written(imported("add", Nested(twice=False)))) == ["inner.k"]


@pytest.mark.parametrize("name", ["add", "old", "view_of_old", "swap", "twice"])
def test_it_gives_what_eager_gives(name, tmp_path):
    calls = [(name, (torch.tensor([1.0, -2.0, float(i)]),)) for i in range(3)]
    run_both(Assigns(), [Method(name, (X,))], calls, tmp_path)


def test_a_buffer_of_a_module_that_is_mounted_twice_is_written(tmp_path):
    calls = [("add", (torch.tensor([1.0, -2.0, float(i)]),)) for i in range(3)]
    run_both(Nested(twice=True), [Method("add", (X,))], calls, tmp_path)


def test_a_buffer_of_two_names_is_refused():
    reason = refusal("add", TwoNames())
    assert "assigns 'a.k' anew, which was one with 'b.k'" in reason


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("one_of_two", "'v' the memory of 'k'"),
        ("the_others", "'k' the memory of 'v'"),
        ("the_callers", "'k' the memory of 'argument 0'"),
    ],
)
def test_two_names_of_one_memory_are_refused(name, shared):
    assert f"it assigns {shared}; copy values" in refusal(name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("longer", "assigns to the buffer 'k' a tensor of another shape or dtype"),
        ("half", "assigns to the buffer 'k' a tensor of another shape or dtype"),
        ("parameter", "assigns to the parameter 'weight'"),
        ("data_of_parameter", "gives 'weight' other memory"),
        ("data_of_buffer", "gives 'k' other memory"),
        ("data_of_argument", "gives 'argument 0' other memory"),
        ("removes", "deletes 'v'"),
        ("fills_in", "makes the buffer 'none'"),
        ("plain_tensor", "changes the attribute 'plain'"),
        ("writes_plain_tensor", "make it a buffer with register_buffer"),
        ("module", "makes 'added.weight'"),
    ],
)
def test_what_tracing_would_lose_is_refused_and_undone(name, what):
    model = Assigns()
    before = {n: id(t) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    saved = set(model.state_dict())
    assert what in refusal(name, model)
    after = {n: id(t) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    assert after == before
    assert set(model.state_dict()) == saved
    assert model.weight.tolist() == [1, 1, 1]


def test_a_remedy_is_named():
    assert "write into it instead, with copy_, index_copy_" in refusal("parameter")
    assert "Method(carry=...)" in refusal("longer")


def test_a_parameter_that_is_written_is_a_state():
    model = Assigns()
    program = import_program(model, (capture(model, Method("writes_parameter", (X,))),))
    (state,) = program.states
    assert (state.name, state.initial) == ("weight", "weight.initial")
