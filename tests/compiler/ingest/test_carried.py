"""Arguments that a session keeps: `Method.carry`, seen in the IR."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError, CompileError, StateConflict

X = torch.ones(1, 2, 4)
PAST = torch.ones(1, 3, 4)
SEQ, LENGTH = Dim("seq", 1, 8), Dim("past", 0, 16)
Pair = namedtuple("Pair", "key value")


class Grows(nn.Module):
    """Methods that take what an earlier call has made, in several shapes."""

    def decode(self, x, past):
        present = torch.cat([past, x], 1)
        return {"sum": present.sum(1), "present": present}

    def prefill(self, x):
        return {"sum": x.sum(1), "present": x * 1}

    def layers(self, x, past, scale=1.0):
        present = [
            (torch.cat([k, x], 1), torch.cat([v, x * scale], 1)) for k, v in past
        ]
        return {"sum": present[0][1].sum(1), "present": present}

    def pair(self, x, past):
        key, value = torch.cat([past[0], x], 1), torch.cat([past[1], x * 2], 1)
        return (key + value).sum(1), key, value

    def recurrent(self, x, state):
        return x + state, state * 0.5 + x

    def unchanged(self, x, past):
        return x + past.sum(1, keepdim=True), past

    def only_state(self, x, past):
        return torch.cat([past, x], 1)

    def writes(self, x, past):
        past.mul_(2)
        return past.sum(1), torch.cat([past, x], 1)

    def two_axes(self, x, past):
        return x * 2, torch.cat([torch.cat([past, x], 1)] * 2, 2)

    def halves(self, x, past):
        return x * 2, torch.cat([past, x], 1).half()

    def index(self, x, past):
        return past[:, 0] + x[:, 0], torch.cat([past, x], 1)

    def long(self, x, past):
        y = x * 3 if past.shape[1] == 0 else x
        return y, torch.cat([past, y], 1)


class HasPast(Grows):
    """As Grows, with a buffer of the argument's name."""

    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.ones(4))

    def decode(self, x, past):
        return super().decode(x + self.past, past)


def carrying(name, past=PAST, past_dim=LENGTH, carry=None, x=X):
    dynamic = {"x": {1: SEQ}}
    if past is not None:
        dynamic["past"] = {1: past_dim}
    args = (x,) if past is None else (x, past)
    return Method(name, args, dynamic=dynamic, carry=carry or {"past": "present"})


def imported(*methods, model=None):
    model = model or Grows()
    return import_program(model, tuple(capture(model, m) for m in methods))


def refusal(kind, *methods):
    with pytest.raises(kind) as caught:
        imported(*methods)
    return str(caught.value)


DECODE, PREFILL = carrying("decode"), carrying("prefill", past=None)
EXPECTED = """\
symbol past in 0..16
symbol seq in 1..8
state past: float32[1, 16, 4] = zeros grows along 1
method prefill
  %0 = input x: float32[1, seq, 4]
  %1 = aten::sum.dim_IntList(%0, [1], False): float32[1, 4]
  %2 = aten::mul.Scalar(%0, 1): float32[1, seq, 4]
  state past = %2
  return %1
method decode
  %0 = input x: float32[1, seq, 4]
  %1 = state past: float32[1, past, 4]
  %2 = aten::cat([%1, %0], 1): float32[1, past+seq, 4]
  %3 = aten::sum.dim_IntList(%2, [1], False): float32[1, 4]
  state past = %2
  return %3
"""


def test_a_carried_argument_is_a_state_that_grows():
    program = imported(PREFILL, DECODE)
    assert program_text(program).strip() == EXPECTED.strip()


def test_argument_and_result_disappear_from_the_call():
    (decode,) = imported(DECODE).methods
    assert decode.input_names == ("x",)
    assert decode.input_tree == '{"parameters":["x"],"arguments":[["x",0]]}'
    assert decode.output_tree == '{"dict":[["sum",0]]}'


def test_the_type_of_the_old_value_has_its_own_length():
    (decode,) = imported(DECODE).methods
    ((old, name),) = decode.state_in
    assert (str(old.type), name) == ("float32[1, past, 4]", "past")


def test_the_length_may_be_nought_whatever_the_dim_says():
    program = imported(carrying("decode", past_dim=Dim("past", 4, 16)))
    assert program.symbols[0].lower == 0


@pytest.mark.parametrize("slots", [0, 1, 5])
def test_the_example_of_the_past_may_have_any_length(slots):
    program = imported(carrying("decode", past=torch.ones(1, slots, 4)))
    assert str(program.states[0].type) == "float32[1, 16, 4]"


def test_a_whole_container_is_carried():
    past = [(PAST, PAST * 2), (PAST, PAST * 2)]
    paths = ["past[0][0]", "past[0][1]", "past[1][0]", "past[1][1]"]
    dynamic = {"x": {1: SEQ}} | {path: {1: LENGTH} for path in paths}
    carry = {"past": "present"}
    program = imported(Method("layers", (X, past), dynamic=dynamic, carry=carry))
    assert [s.name for s in program.states] == paths
    assert [name for _, name in program.methods[0].state_out] == paths
    assert program.methods[0].input_tree == (
        '{"parameters":["x","scale"],"arguments":[["x",0],["scale",{"constant":1.0}]]}'
    )
    assert program.methods[0].output_tree == '{"dict":[["sum",0]]}'


def test_results_may_be_named_by_number_and_arguments_by_path():
    method = Method(
        "pair",
        (X, Pair(PAST, PAST)),
        dynamic={"x": {1: SEQ}, "past.key": {1: LENGTH}, "past.value": {1: LENGTH}},
        carry={"past.value": 2, "past.key": 1},
    )
    program = imported(method)
    (pair,) = program.methods
    cats = {n.inputs[0].id: n.outputs[0].id for n in pair.nodes if "cat" in n.op}
    old = {name: value.id for value, name in pair.state_in}
    new = {name: value.id for value, name in pair.state_out}
    assert new == {name: cats[old[name]] for name in ("past.key", "past.value")}
    assert pair.input_names == ("x",)
    assert pair.output_tree == '{"tuple":[0]}'


def test_one_of_several_tensors_may_be_carried():
    method = Method(
        "pair",
        (X, [PAST, PAST]),
        dynamic={"x": {1: SEQ}, "past[0]": {1: LENGTH}, "past[1]": {1: LENGTH}},
        carry={"past[0]": "[1]"},
    )
    (pair,) = imported(method).methods
    assert pair.input_names == ("x", "past[1]")
    assert pair.input_tree == (
        '{"parameters":["x","past"],"arguments":[["x",0],["past",{"list":[1]}]]}'
    )
    assert pair.output_tree == '{"tuple":[0,1]}'
    assert [str(value.type) for value in pair.outputs][1] == "float32[1, past+seq, 4]"


def test_an_argument_of_fixed_size_is_a_plain_state_of_zeros():
    program = imported(Method("recurrent", (X, X), carry={"state": 1}))
    (state,) = program.states
    assert (str(state.type), state.initial, state.grows) == (
        "float32[1, 2, 4]",
        None,
        None,
    )


def test_a_batch_that_all_of_them_share_is_fixed_by_the_session():
    batch = Dim("batch", 1, 4)
    method = Method(
        "recurrent",
        (X, X),
        dynamic={"x": {0: batch}, "state": {0: batch}},
        carry={"state": 1},
    )
    program = imported(method)
    assert str(program.states[0].type) == "float32[batch, 2, 4]"
    assert program.symbols[0].lower == 1


def test_a_state_that_stays_what_it_is_is_not_written():
    (method,) = imported(carrying("unchanged", carry={"past": 1}), DECODE).methods[:1]
    assert method.state_out == ()
    assert [name for _, name in method.state_in] == ["past"]


def test_a_method_may_return_nothing_but_its_state():
    (method,) = imported(carrying("only_state", carry={"past": 0})).methods
    assert (method.outputs, method.output_tree) == ((), '{"constant":null}')
    assert len(method.state_out) == 1


def test_writes_into_a_carried_argument_end_with_the_call():
    (method,) = imported(carrying("writes", carry={"past": 1})).methods
    assert method.input_out == ()
    assert [name for _, name in method.state_out] == ["past"]


def test_a_state_gets_another_name_where_a_buffer_has_it():
    model = HasPast()
    program = imported(DECODE, model=model)
    assert [s.name for s in program.states] == ["carry.past"]
    assert [c.name for c in program.constants] == ["past"]


def test_without_carry_the_caller_owns_it():
    method = Method("decode", (X, PAST), dynamic=DECODE.dynamic)
    program = imported(method)
    assert program.states == ()
    assert program.methods[0].input_names == ("x", "past")
    assert len(program.methods[0].outputs) == 2


def test_an_unknown_argument_is_refused_with_those_that_exist():
    message = refusal(CaptureError, carrying("decode", carry={"pats": "present"}))
    assert "carry names the argument 'pats'; its tensors are x, past" in message


def test_an_unknown_result_is_refused_with_those_that_exist():
    message = refusal(CaptureError, carrying("decode", carry={"past": "presents"}))
    assert "the result 'presents'" in message
    assert "returns are sum (or 0), present (or 1)" in message


@pytest.mark.parametrize("value", [2, -1, True])
def test_a_number_that_is_no_result_is_refused(value):
    message = refusal(CaptureError, carrying("decode", carry={"past": value}))
    assert f"the result {value!r}; the tensors that it returns are sum" in message


def test_containers_of_another_shape_are_refused():
    method = Method(
        "pair",
        (X, [PAST, PAST]),
        dynamic={"x": {1: SEQ}, "past[0]": {1: LENGTH}, "past[1]": {1: LENGTH}},
        carry={"past": 1},
    )
    message = refusal(CaptureError, method)
    assert "holds one tensor and the argument [0], [1]" in message


def test_a_result_that_is_carried_twice_is_refused():
    message = refusal(CaptureError, carrying("decode", carry={"past": 1, "x": 1}))
    assert "carry names the result 'present' twice" in message


def test_a_state_that_nobody_takes_is_refused():
    message = refusal(CaptureError, PREFILL)
    assert "carry names the argument 'past'; its tensors are x, and methods" in message


def test_methods_that_disagree_are_named_with_their_types():
    wide = carrying("prefill", past=None, x=torch.ones(1, 2, 6))
    message = refusal(StateConflict, DECODE, wide)
    assert "method decode takes float32[1, past, 4]" in message
    assert "method prefill makes float32[1, seq, 6]" in message


def test_a_method_that_changes_the_dtype_is_refused():
    message = refusal(StateConflict, carrying("halves", carry={"past": 1}))
    assert "method halves makes float16[1, past+seq, 4]" in message


def test_two_axes_that_change_are_refused():
    message = refusal(StateConflict, carrying("two_axes", carry={"past": 1}))
    assert "not along 1 and 2" in message


def test_bounds_that_differ_are_refused():
    other = carrying("only_state", past_dim=Dim("past", 0, 32), carry={"past": 0})
    message = refusal(StateConflict, DECODE, other)
    assert "of up to 16 along axis 1" in message
    assert "of up to 32" in message


def test_a_fixed_length_that_changes_is_refused():
    method = Method("only_state", (X, PAST), carry={"past": 0})
    message = refusal(StateConflict, method)
    assert "of fixed size along axis 1" in message
    assert "give that axis a Dim" in message


def test_code_that_does_not_hold_for_an_empty_past_is_refused():
    message = refusal(CaptureError, carrying("index", carry={"past": 1}))
    assert "with past = 0" in message


def test_a_question_about_an_empty_past_is_refused():
    message = refusal(CaptureError, carrying("long", carry={"past": 1}))
    assert "takes another way for past = 0" in message


def test_a_dim_that_something_else_has_must_start_at_nought():
    both = {"x": {1: Dim("past", 1, 16)}, "past": {1: Dim("past", 1, 16)}}
    method = Method("only_state", (X, X), dynamic=both, carry={"past": 0})
    message = refusal(CaptureError, method)
    assert "give its Dim past the lower bound 0" in message


def test_a_batch_with_two_bounds_is_refused():
    def recurrent(name, batch):
        dynamic = {"x": {0: batch}, "state": {0: batch}}
        return Method(name, (X, X), dynamic=dynamic, carry={"state": 1})

    batch, other = Dim("batch", 1, 4), Dim("batch", 1, 8)
    double = Method("prefill", (X,), dynamic={"x": {0: other}})
    message = refusal(CompileError, recurrent("recurrent", batch), double)
    assert "Dim batch is a size of a state" in message
    assert "1..4 in method recurrent and 1..8 in method prefill" in message
