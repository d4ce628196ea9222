"""Buffers whose size a session chooses: `StateSpec`, seen in the IR."""

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.request.spec import StateSpec
from kvc.compiler.trace import capture
from kvc.schema.errors import CapacityFixed, CaptureError, CompileError, StateConflict

CAPACITY, BATCH, SEQ = Dim("capacity", 4, 64), Dim("batch", 1, 8), Dim("seq", 1, 4)
X, SLOTS = torch.ones(1, 2, 3, 4), torch.arange(3)
SPEC = StateSpec("k", 2, CAPACITY)


class Cache(nn.Module):
    """A cache [1, 2, 16, 4] and what people do to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 16, 4))
        self.register_buffer("idle", torch.zeros(3))
        self.register_buffer("one", torch.zeros(1, 2, 1, 4), persistent=False)
        self.weight = nn.Parameter(torch.ones(4))
        self.max_len = 16

    def write(self, x, slots):
        self.k.index_copy_(2, slots, x)
        return self.k.sum(2) * self.weight

    def read(self, x):
        return self.k.sum(2) + x.sum(2)

    def scaled(self, x, slots):
        self.k.index_copy_(2, slots, x)
        return torch.arange(self.k.shape[2]) * 2

    def fixed(self, x, slots):
        self.k.index_copy_(2, slots, x)
        mask = torch.arange(self.max_len) > 3
        return (self.k * mask[:, None]).sum(2)

    def asks(self, x, slots):
        self.k.index_copy_(2, slots, x)
        return self.k.sum(2) * 2 if self.k.shape[2] > 8 else self.k.sum(2)

    def number(self, x, slots):
        self.k.index_copy_(2, slots, x)
        return torch.zeros(int(self.k.shape[2])) + 1

    def anew(self, x, slots):
        self.k = self.k.index_copy(2, slots, x)
        return self.k.sum(2)

    def grown(self, x, slots):
        self.k = torch.cat([self.k, x], 2)
        return self.k.sum(2)

    def add_one(self, x):
        self.one.add_(x.sum(2, keepdim=True))
        return self.one * 2

    def carried(self, x, past):
        return past + x

    def masked(self, x, slots, mask):
        self.k.index_copy_(2, slots, x)
        return (self.k * mask[:, None]).sum(2)


class Layers(nn.Module):
    """Caches in layers, one of them under two names; a position of each row."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Cache(), Cache()])
        self.last = self.layers[1]
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def write(self, x, slots):
        y = self.layers[0].write(x, slots) + self.last.write(x * 2, slots)
        self.position.add_(x.shape[2])
        return y + self.position[:, None, None]


def captured(model, specs, *methods):
    return tuple(capture(model, method, specs) for method in methods)


def imported(*methods, specs=(SPEC,), model=None):
    model = model or Cache()
    return import_program(model, captured(model, specs, *methods))


def refusal(kind, *methods, **settings):
    with pytest.raises(kind) as caught:
        imported(*methods, **settings)
    return str(caught.value)


WRITE = Method("write", (X, SLOTS), dynamic={"x": {2: SEQ}, "slots": {0: SEQ}})
READ = Method("read", (X,))
EXPECTED = """\
symbol capacity in 4..64
symbol seq in 1..4
constant weight: float32[4] (parameter)
state k: float32[1, 2, capacity, 4] = zeros
method write
  %1 = input x: float32[1, 2, seq, 4]
  %2 = input slots: int64[seq]
  %0 = constant weight
  %3 = state k
  %4 = aten::index_copy(%3, 2, %2, %1): float32[1, 2, capacity, 4]
  %5 = aten::sum.dim_IntList(%4, [2], False): float32[1, 2, 4]
  %6 = aten::mul.Tensor(%5, %0): float32[1, 2, 4]
  state k = %4
  return %6
method read
  %0 = input x: float32[1, 2, 3, 4]
  %1 = state k
  %2 = aten::sum.dim_IntList(%1, [2], False): float32[1, 2, 4]
  %3 = aten::sum.dim_IntList(%0, [2], False): float32[1, 2, 4]
  %4 = aten::add.Tensor(%2, %3, 1): float32[1, 2, 4]
  return %4
"""


def test_a_sized_buffer_is_a_state_of_any_size():
    assert program_text(imported(WRITE, READ)).strip() == EXPECTED.strip()


def test_nothing_of_it_is_seen_by_the_caller():
    write = imported(WRITE).methods[0]
    assert write.input_names == ("x", "slots")
    assert write.input_tree == (
        '{"parameters":["x","slots"],"arguments":[["x",0],["slots",1]]}'
    )


def test_a_method_that_only_reads_it_shares_it_in_either_order():
    program = imported(READ, WRITE)
    assert [s.name for s in program.states] == ["k"]
    assert [name for _, name in program.methods[0].state_in] == ["k"]
    assert program.methods[0].state_out == ()


def test_its_size_may_be_a_number_in_the_code():
    scaled = imported(Method("scaled", (X, SLOTS))).methods[0]
    assert str(scaled.outputs[0].type) == "int64[capacity]"


def test_an_axis_may_count_from_the_end():
    program = imported(WRITE, specs=(StateSpec("k", -2, CAPACITY),))
    assert str(program.states[0].type) == "float32[1, 2, capacity, 4]"


def test_a_buffer_of_one_slot_may_have_more():
    spec = StateSpec("one", 2, CAPACITY)
    program = imported(Method("add_one", (X,)), specs=(spec,))
    assert str(program.states[0].type) == "float32[1, 2, capacity, 4]"


def test_a_pattern_matches_in_all_layers_and_by_every_name():
    specs = (StateSpec("layers.*.k", 2, CAPACITY),)
    program = imported(WRITE, specs=specs, model=Layers())
    types = {s.name: str(s.type) for s in program.states}
    assert types == {
        "layers.0.k": "float32[1, 2, capacity, 4]",
        "layers.1.k": "float32[1, 2, capacity, 4]",
        "position": "int64[1]",
    }
    by_other_name = imported(
        WRITE, specs=(StateSpec("last.k", 2, CAPACITY),), model=Layers()
    )
    sized = [s.name for s in by_other_name.states if not s.type.is_static]
    assert sized == ["layers.1.k"]


def test_the_batch_is_the_tokens_batch():
    specs = (StateSpec("*.k", 2, CAPACITY, BATCH), StateSpec("position", batch=BATCH))
    dynamic = {"x": {0: BATCH, 2: SEQ}, "slots": {0: SEQ}}
    method = Method("write", (X, SLOTS), dynamic=dynamic)
    program = imported(method, specs=specs, model=Layers())
    assert {s.name: str(s.type) for s in program.states} == {
        "layers.0.k": "float32[batch, 2, capacity, 4]",
        "layers.1.k": "float32[batch, 2, capacity, 4]",
        "position": "int64[batch]",
    }
    assert str(program.methods[0].outputs[0].type) == "float32[batch, 2, 4]"


def test_an_argument_may_have_the_capacity_too():
    dynamic = {"mask": {0: CAPACITY}}
    method = Method("masked", (X, SLOTS, torch.ones(16)), dynamic=dynamic)
    (masked,) = imported(method).methods
    assert str(masked.inputs[2].type) == "float32[capacity]"


def test_a_capacity_of_one_size_is_that_number():
    program = imported(WRITE, specs=(StateSpec("k", 2, Dim("capacity", 16, 16)),))
    assert str(program.states[0].type) == "float32[1, 2, 16, 4]"


def test_the_model_is_as_it_was():
    model = Cache()
    before = {name: id(t) for name, t in model.named_buffers()}
    captured(model, (SPEC,), WRITE)
    with pytest.raises(CaptureError):
        captured(model, (SPEC,), Method("fixed", (X, SLOTS)))
    assert {name: id(t) for name, t in model.named_buffers()} == before
    assert "forward" not in vars(model)


def test_code_that_fixes_the_size_is_refused_with_its_line_and_the_remedy():
    with pytest.raises(CapacityFixed) as caught:
        imported(Method("fixed", (X, SLOTS)))
    line = Cache.fixed.__code__.co_firstlineno + 3
    assert caught.value.facts["place"].endswith(f"test_sized:{line}")
    assert caught.value.facts["buffer"] == "k"
    assert caught.value.facts["dim"] == "capacity"
    message = str(caught.value)
    assert "any size of Dim capacity along axis 2, but the code takes it for 16" in (
        message
    )
    assert "read the size from the buffer, k.shape[2]" in message


def test_a_number_made_of_the_size_fixes_it():
    message = refusal(CapacityFixed, Method("number", (X, SLOTS)))
    line = Cache.number.__code__.co_firstlineno + 2
    assert f"test_sized:{line}" in message


def test_an_argument_of_fixed_size_fixes_it():
    message = refusal(CapacityFixed, Method("masked", (X, SLOTS, torch.ones(16))))
    assert "the buffer k must allow any size of Dim capacity" in message


def test_code_that_asks_about_the_size_is_refused():
    message = refusal(CapacityFixed, Method("asks", (X, SLOTS)))
    line = Cache.asks.__code__.co_firstlineno + 2
    assert f"test_sized:{line}: the buffer k must allow any size" in message
    assert "does not hold for all of them" in message


def test_a_buffer_of_one_type_may_be_assigned_anew():
    (anew,) = imported(Method("anew", (X, SLOTS))).methods
    assert [name for _, name in anew.state_out] == ["k"]


def test_a_buffer_that_grows_is_refused():
    message = refusal(CaptureError, Method("grown", (X, SLOTS)))
    assert "it assigns to the buffer 'k' a tensor of another shape" in message


def test_a_pattern_that_matches_nothing_is_refused_with_the_buffers():
    message = refusal(CompileError, WRITE, specs=(StateSpec("v", 2, CAPACITY),))
    assert "'v' matches no buffer" in message
    assert "they are: k, idle, one" in message


def test_a_parameter_is_refused():
    message = refusal(CompileError, WRITE, specs=(StateSpec("wei*", 0, CAPACITY),))
    assert "matches the parameter weight" in message


def test_two_specs_for_one_buffer_are_refused():
    both = (StateSpec("layers.1.k", 2, CAPACITY), StateSpec("last.k", 2, CAPACITY))
    message = refusal(CompileError, WRITE, specs=both, model=Layers())
    assert "StateSpecs 'layers.1.k' and 'last.k' match the buffer layers.1.k" in message


def test_a_buffer_that_nobody_writes_is_refused():
    message = refusal(CompileError, WRITE, specs=(SPEC, StateSpec("idle", 0, SEQ)))
    assert "'idle' matches idle, which no method writes" in message
    message = refusal(CompileError, READ)
    assert "'k' matches k, which no method writes" in message


@pytest.mark.parametrize("axis", [4, -5])
def test_an_axis_that_the_buffer_does_not_have_is_refused(axis):
    message = refusal(CompileError, WRITE, specs=(StateSpec("k", axis, CAPACITY),))
    assert "it has 4 dims" in message


def test_a_size_outside_of_the_bounds_is_refused():
    spec = StateSpec("k", 2, Dim("capacity", 32, 64))
    message = refusal(CompileError, WRITE, specs=(spec,))
    assert "size 16 along axis 2, with which it is traced" in message


def test_values_that_are_not_zero_are_refused():
    model = Cache()
    model.k[0, 0, 0, 0] = 1
    message = refusal(StateConflict, WRITE, model=model)
    assert message.startswith("state k: its size is chosen when a session is opened")


def test_one_name_with_two_bounds_in_a_method_is_refused():
    dynamic = {"mask": {0: Dim("capacity", 1, 64)}}
    method = Method("masked", (X, SLOTS, torch.ones(16)), dynamic=dynamic)
    assert "Dim capacity is declared" in refusal(CaptureError, method)


def test_one_name_with_two_bounds_in_two_methods_is_refused():
    carried = Method(
        "carried",
        (X, X),
        dynamic={"x": {0: Dim("batch", 1, 4)}, "past": {0: Dim("batch", 1, 4)}},
        carry={"past": 0},
    )
    other = Method("read", (X,), dynamic={"x": {0: Dim("batch", 1, 8)}})
    message = refusal(CompileError, carried, other, specs=())
    assert "Dim batch is a size of a state" in message


def test_the_name_of_the_extra_parameter_is_taken():
    class Named(Cache):
        def taken(self, kvc_states):
            self.k.add_(kvc_states)

    method = Method("taken", (torch.ones(4),))
    message = refusal(CaptureError, method, model=Named())
    assert "parameter 'kvc_states' is taken; rename it" in message


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"axis": 2}, "axis and capacity go together"),
        ({"capacity": CAPACITY}, "axis and capacity go together"),
        ({}, "give axis and capacity, or batch"),
        ({"axis": 0, "capacity": CAPACITY, "batch": BATCH}, "axis 0 cannot be both"),
    ],
)
def test_a_spec_that_asks_for_nothing_is_refused(settings, reason):
    with pytest.raises(CompileError, match=reason):
        StateSpec("k", **settings)
