"""What makes two tensors of a model one state, and what does not."""

import pytest
import torch
from state_models import SameName
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.request.spec import StateSpec
from kvc.compiler.trace import capture

X = torch.ones(4)


class Part(nn.Module):
    """A buffer `k` of some size."""

    def __init__(self, size, value=0.0, persistent=True):
        super().__init__()
        kept = torch.full((size,), value)
        self.register_buffer("k", kept, persistent=persistent)

    def add(self, x):
        self.k.add_(x.sum())
        return self.k * 1


class Parts(nn.Module):
    """Buffers `k` of three modules: other sizes, one of them not saved."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Part(3), Part(5, 2.0), Part(3, 1.0, persistent=False)

    def first(self, x):
        return self.a.add(x)

    def second(self, x):
        return self.b.add(x), self.a.k * 1

    def third(self, x):
        return self.c.add(x)


class EqualBytes(nn.Module):
    """States and constants of the same bytes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 3.0))
        self.register_buffer("state", torch.full((4,), 3.0))
        self.register_buffer("zero", torch.zeros(4))
        self.register_buffer("count", torch.zeros(4))

    def step(self, x):
        self.state.add_(x * self.scale + self.zero)
        self.count.add_(1)
        return self.state * 1


class Subtracts(nn.Module):
    def forward(self, x, y):
        return x - y * 2


def imported(model, *names, x=X, **settings):
    captured = tuple(capture(model, Method(n, (x,)), **settings) for n in names)
    return import_program(model, captured)


def states(program):
    return {s.name: (str(s.type), s.initial) for s in program.states}


def test_a_buffer_with_the_name_of_an_argument_of_another_shape_is_another_thing():
    program = imported(SameName(), "step", x=torch.tensor(2.0))
    (step,) = program.methods
    assert states(program) == {"k": ("float32[4]", None)}
    assert str(step.inputs[0].type) == "float32[]"
    assert step.input_out == ()


def test_a_sized_buffer_with_the_name_of_an_argument_is_another_thing():
    spec = StateSpec("k", 0, Dim("size", 2, 8))
    program = imported(SameName(), "step", x=torch.tensor(1.0), states=(spec,))
    (step,) = program.methods
    assert states(program) == {"k": ("float32[size]", None)}
    assert step.input_names == ("k",)


def test_equal_names_in_several_modules_are_several_states():
    program = imported(Parts(), "first", "second", "third")
    assert states(program) == {
        "a.k": ("float32[3]", None),
        "b.k": ("float32[5]", "b.k.initial"),
        "c.k": ("float32[3]", "c.k.initial"),
    }


@pytest.mark.parametrize(
    "names", [("first", "second"), ("second", "first"), ("second", "first", "third")]
)
def test_the_order_of_methods_says_nothing_about_their_states(names):
    program = imported(Parts(), *names)
    reads = {m.name: {s for _, s in m.state_in} for m in program.methods}
    assert reads["first"] == {"a.k"}
    assert reads["second"] == {"a.k", "b.k"}
    assert states(program)["b.k"] == ("float32[5]", "b.k.initial")


def test_a_state_with_the_bytes_of_a_constant_is_not_that_constant():
    program = imported(EqualBytes(), "step")
    assert states(program) == {
        "state": ("float32[4]", "state.initial"),
        "count": ("float32[4]", None),
    }
    assert {c.name for c in program.constants} == {"scale", "zero", "state.initial"}
    (step,) = program.methods
    constants = {name: value for value, name in step.constants}
    olds = {name: value for value, name in step.state_in}
    assert {"scale", "zero"} == constants.keys()
    assert not set(constants.values()) & set(olds.values())


def test_a_module_that_is_mounted_twice_has_one_sized_state():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = Part(3)
            self.two = self.one

        def step(self, x):
            return self.one.add(x) + self.two.add(x)

    spec = StateSpec("two.k", 0, Dim("size", 2, 8))
    program = imported(Twice(), "step", states=(spec,))
    assert states(program) == {"one.k": ("float32[size]", None)}
    (written,) = program.methods[0].state_out
    assert written[1] == "one.k"


def test_capturing_twice_gives_the_same_program():
    model = Parts()
    first = program_text(imported(model, "first", "second", "third"))
    again = program_text(imported(model, "first", "second", "third"))
    fresh = program_text(imported(Parts(), "first", "second", "third"))
    assert first == again == fresh


def test_arguments_given_by_name_in_another_order_are_not_mixed_up():
    method = Method("forward", kwargs={"y": torch.ones(4), "x": torch.ones(4)})
    program = import_program(Subtracts(), (capture(Subtracts(), method),))
    (forward,) = program.methods
    assert forward.input_names == ("x", "y")
    doubled = forward.nodes[0]
    assert doubled.inputs == (forward.inputs[1],)
