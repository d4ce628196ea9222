"""Where inputs, states that grow and results that are written over memory may lie."""

from dataclasses import replace

import pytest
from growing_programs import (
    CAPACITY,
    F32,
    PAST,
    ROW,
    growing_program,
    positioned_program,
    rows,
)
from sample_programs import SEQ, in_place, sample_program, with_graph

from kvc.schema.dtypes import DType
from kvc.schema.errors import FormatError
from kvc.schema.graph import Alias, Caller, Instruction, Ref, Scratch, StateSlot, Value
from kvc.schema.model import StateKind
from kvc.schema.types import Symbol, TensorType, affine
from kvc.schema.verify import verify_program

P = growing_program()
GROW, RESTART = P.methods[0].graph, P.methods[1].graph
CHECK, APPEND, MEAN, ADD = range(4)


def put(things, index, **changes):
    listed = list(things)
    listed[index] = replace(listed[index], **changes)
    return tuple(listed)


def refuse(text, program):
    with pytest.raises(FormatError, match=text):
        verify_program(program, "m.kvc", thorough=True)


def refuse_grow(text, **changes):
    refuse(text, with_graph(P, 0, replace(GROW, **changes)))


def refuse_value(text, index, **changes):
    refuse_grow(text, values=put(GROW.values, index, **changes))


def refuse_step(text, index, **changes):
    refuse_grow(text, instructions=put(GROW.instructions, index, **changes))


@pytest.mark.parametrize("program", [P, positioned_program()])
def test_the_samples_pass(program):
    verify_program(program, "m.kvc", thorough=True)


def test_only_inputs_lie_in_the_caller_s_array():
    refuse_value("may not lie at Caller", 5, storage=Caller())
    extra = Value(ROW, Caller())
    refuse_grow("value 7: is never defined", values=(*GROW.values, extra))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (rows(affine(0, {"past": 2})), "neither a number nor a symbol"),
        (rows(affine(1, {"past": 1})), "neither a number nor a symbol"),
        (rows(affine(0, {"past": 1, "seq": 1})), "neither a number nor a symbol"),
        (rows(65), "its length can be 65, the state's only 64"),
        (rows(affine(0, {"past": 1})).dims[:2], "state 0 is"),
        ((1, PAST, 5), "state 0 is"),
        ((2, PAST, 4), "state 0 is"),
        ((1, PAST, 4, 1), "state 0 is"),
        ((), "state 0 is"),
    ],
)
def test_a_growing_state_is_only_of_another_length(kind, text):
    kind = kind if isinstance(kind, TensorType) else TensorType(F32, kind)
    refuse_value(text, 1, type=kind)


def test_a_growing_state_keeps_its_dtype():
    kind = TensorType(DType.FLOAT16, (1, PAST, 4))
    refuse_value("state 0 is", 1, type=kind)


def test_the_length_s_symbol_may_not_grow_beyond_the_state():
    symbols = put(P.symbols, 1, upper=65)
    refuse("its length can be 65", replace(P, symbols=symbols))


@pytest.mark.parametrize("length", [0, 3, CAPACITY])
def test_a_length_may_be_a_number(length):
    values = put(RESTART.values, 1, type=rows(length))
    changed = with_graph(P, 1, replace(RESTART, values=values))
    verify_program(changed, "m.kvc")


def test_a_state_that_does_not_grow_has_its_own_type_only():
    program = positioned_program()
    graph = program.methods[0].graph
    values = put(graph.values, 2, type=rows(32))
    changed = with_graph(program, 0, replace(graph, values=values))
    refuse(r"state 0 is float32\[1, capacity, 4\], not float32\[1, 32, 4\]", changed)


def test_an_append_is_always_in_place():
    scratch = Scratch(GROW.scratch_nbytes, 1 * 72 * 4 * 4)
    changed = put(GROW.values, 4, storage=scratch)
    refuse_grow("may not lie at", values=changed, scratch_nbytes=1 << 20)
    refuse_value("may not lie at", 4, storage=Alias(0))


def test_a_replacement_is_always_in_place():
    values = put(RESTART.values, 2, storage=Scratch(128, 128))
    graph = replace(RESTART, values=values, scratch_nbytes=256)
    refuse("may not lie at", with_graph(P, 1, graph))


def test_growth_is_along_the_state_s_axis():
    wider = TensorType(F32, (1, PAST, 8))
    steps = put(GROW.instructions, APPEND, arguments=(Ref(1), Ref(1), 2))
    values = put(GROW.values, 4, type=wider)
    refuse_grow("does not grow along axis 2", instructions=steps[:2], values=values)


def test_an_axis_may_be_negative_but_is_a_number():
    arguments = (Ref(1), Ref(0), -2)
    steps = put(GROW.instructions, APPEND, arguments=arguments)
    changed = with_graph(P, 0, replace(GROW, instructions=steps))
    verify_program(changed, "m.kvc", thorough=True)
    symbols = (*P.symbols, Symbol("one", 1, 1))
    arguments = (Ref(1), Ref(0), affine(0, {"one": 1}))
    steps = put(GROW.instructions, APPEND, arguments=arguments)
    changed = with_graph(P, 0, replace(GROW, instructions=steps))
    refuse("an axis that is no number", replace(changed, symbols=symbols))


def test_only_a_state_that_appends_grows():
    kind = StateKind.LINEAR
    state = replace(P.states[0], type=rows(3), kind=kind, cursor=None)
    values = (
        Value(rows(1), Scratch(0, 16)),
        Value(rows(3), StateSlot(0)),
        Value(rows(4), Alias(1)),
    )
    step = Instruction("kvc::append", (Ref(1), Ref(0), 1), (2,))
    graph = replace(RESTART, values=values, instructions=(step,))
    changed = with_graph(replace(P, states=(state,), cursors=()), 1, graph)
    refuse("does not grow along axis 1", replace(changed, methods=changed.methods[1:]))


def test_scratch_and_constants_do_not_grow():
    refuse_grow(
        "does not grow along axis 1",
        values=(
            *put(GROW.values, 4, storage=Alias(0), type=rows(affine(0, {"seq": 2}))),
        ),
        instructions=put(GROW.instructions, APPEND, arguments=(Ref(0), Ref(0), 1)),
    )
    program = sample_program()
    graph = program.methods[1].graph
    grown = Value(TensorType(F32, (16,)), Alias(2))
    step = Instruction("kvc::append", (Ref(2), Ref(2), 0), (13,))
    graph = replace(
        graph,
        values=(*graph.values, grown),
        instructions=(*graph.instructions, step),
    )
    refuse("writes over a constant", with_graph(program, 1, graph))


def caller_graph(*steps):
    """Return `(x, past)` with steps over a past float32 [1, past, 4] of the caller.

    Values: 0 x [1, seq, 4], 1 past, then of each step its result.
    """
    types = [rows(SEQ), rows(PAST)]
    storages = [Scratch(0, 128), Caller()]
    made = []
    for op, arguments, kind, storage in steps:
        made.append(Instruction(op, arguments, (len(types),)))
        types.append(kind)
        storages.append(storage)
    return replace(
        RESTART,
        values=tuple(map(Value, types, storages)),
        inputs=(0, 1),
        instructions=tuple(made),
    )


def caller_program(*steps):
    """Return a program of the one method that `caller_graph` makes."""
    graph = caller_graph(*steps)
    method = replace(
        P.methods[1],
        graph=graph,
        input_names=("x", "past"),
        input_tree='{"parameters":["x","past"],"arguments":[["x",0],["past",1]]}',
        writes=(),
        updates=in_place(graph),
    )
    return replace(P, methods=(method,))


LONGER = rows(affine(0, {"past": 1, "seq": 1}))
LONGEST = rows(affine(0, {"past": 1, "seq": 2}))
FIRST = ("kvc::append", (Ref(1), Ref(0), 1), LONGER, Alias(1))


def test_a_caller_s_array_is_appended_to():
    second = ("kvc::append", (Ref(2), Ref(0), -2), LONGEST, Alias(2))
    verify_program(caller_program(FIRST, second), "m.kvc", thorough=True)


def test_a_caller_s_array_grows_along_one_axis():
    wider = rows(affine(0, {"past": 1, "seq": 1}))
    wider = replace(wider, dims=(2, *wider.dims[1:]))
    full = ("aten::full", ((1, LONGER.dims[1], 4), 0, F32), LONGER, Scratch(128, 1152))
    other = ("kvc::append", (Ref(2), Ref(3), 0), wider, Alias(2))
    program = caller_program(FIRST, full, other)
    graph = replace(program.methods[0].graph, scratch_nbytes=1280)
    refuse("does not grow along axis 0", with_graph(program, 0, graph))


def test_a_caller_s_array_is_not_replaced():
    step = ("kvc::replace", (Ref(1), Ref(0), 1), rows(SEQ), Alias(1))
    refuse("does not grow along axis 1", caller_program(step))


def test_the_axis_is_that_of_the_operand_when_the_input_is_a_scalar():
    kind = TensorType(F32, ())
    values = (
        Value(rows(SEQ), Scratch(0, 128)),
        Value(kind, Caller()),
        Value(TensorType(F32, (1,)), Alias(1)),
        Value(TensorType(F32, (2,)), Alias(2)),
    )
    program = caller_program()
    graph = replace(
        program.methods[0].graph,
        values=values,
        instructions=(
            Instruction("aten::unsqueeze", (Ref(1), 0), (2,)),
            Instruction("kvc::append", (Ref(2), Ref(2), 0), (3,)),
        ),
    )
    refuse("not the whole of its memory", with_graph(program, 0, graph))


def test_a_result_is_written_over_its_own_type_only():
    kind = TensorType(F32, (4,))
    values = put(GROW.values, 2, type=kind)
    refuse_grow("writes float32.* over a value of float32", values=values)


def test_a_result_that_is_not_pointwise_is_written_over_states_and_callers_only():
    values = put(GROW.values, 6, storage=Alias(5))
    mean = {"op": "aten::mean.dim", "arguments": (Ref(5), (0,), True)}
    steps = put(GROW.instructions, ADD, **mean)
    refuse_grow("fresh kind may not lie", values=values, instructions=steps)
    refuse_value("fresh kind may not lie", 6, storage=Alias(6))


def test_a_pointwise_result_is_not_written_over_an_output():
    refuse_value("the output 5 is overwritten before the end", 6, storage=Alias(5))


def test_a_result_is_not_written_over_a_constant():
    program = sample_program()
    graph = program.methods[1].graph
    kind = graph.values[2].type
    step = Instruction("aten::neg", (Ref(2),), (13,))
    changed = replace(
        graph,
        values=(*graph.values, Value(kind, Alias(2))),
        instructions=(*graph.instructions, step),
    )
    refuse("fresh kind may not lie at Alias", with_graph(program, 1, changed))


def test_a_result_is_written_over_what_is_defined():
    steps = GROW.instructions
    late = put(GROW.values, 5, storage=Alias(6))
    refuse_grow("fresh kind may not lie", values=late, instructions=steps)


def test_a_check_has_no_results():
    refuse_step("it gives 0 results, not 1", CHECK, results=(4,))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((Ref(0), 0, 1, 8), "as indices"),
        ((Ref(3), 1, 1, 8), "check_index"),
        ((Ref(3), 0, -1, 8), "check_index"),
        ((Ref(3), 0, 1, -1), "check_index"),
    ],
)
def test_a_check_takes_what_it_can_check(arguments, text):
    refuse_step(text, CHECK, arguments=arguments)
