"""Counts of tokens in each row: everything that can be wrong with them is refused."""

from dataclasses import replace

import pytest
from ragged_models import RaggedBranches, ragged_methods, ragged_specs
from ragged_programs import ragged_program
from stateful_programs import (
    BATCH,
    CAPACITY,
    SEQ,
    Builder,
    rows_type,
    state,
    write_method,
)

from kvc.compiler import compile_program
from kvc.runtime import load
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.model import (
    CursorKind,
    Graph,
    Instruction,
    Program,
    Ref,
    StateKind,
    StateSlot,
)
from kvc.schema.types import Dim, TensorType
from kvc.schema.verify import verify_program

P, _ = ragged_program()
WRITE, STEP = P.methods
UPDATE, CAST = 0, 0  # instructions of `write` and of `step`


def refuse(program: Program, text: str) -> None:
    with pytest.raises(BadProgram, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def with_write(**changes: object) -> Program:
    return replace(P, methods=(replace(WRITE, **changes), STEP))


def with_step(**changes: object) -> Program:
    return replace(P, methods=(WRITE, replace(STEP, **changes)))


def counted_by(graph: Graph, index: int, counts: object) -> Graph:
    """Return a graph whose cache update has other counts."""
    steps = list(graph.instructions)
    arguments = (*steps[index].arguments[:-1], counts)
    steps[index] = replace(steps[index], arguments=arguments)
    return replace(graph, instructions=tuple(steps))


def test_counts_of_both_kinds_are_accepted():
    verify_program(P, "m.kvc", thorough=True)


def test_the_input_must_be_there():
    refuse(with_write(counts=2), "method 'write': no input 2 to count by")


def test_the_input_must_be_of_rows():
    refuse(with_write(counts=0), "it counts by 'x', float32.*, not int64 or bool")


def test_a_method_that_counts_advances():
    graph = replace(WRITE.graph, instructions=(), values=WRITE.graph.values[:2])
    quiet = {"reads": (), "writes": (), "updates": (), "advance": None}
    refuse(with_write(graph=graph, **quiet), "it counts by .*, but does not advance")


def test_a_bool_counts_one_token():
    refuse(with_step(advance=2), "it counts by 'counts', bool.*, but advances by 2")


def other_rows(rows: Dim) -> Program:
    """Return a program whose method `write` counts by an input of other rows."""
    b = Builder()
    x = b.scratch(rows_type(SEQ, BATCH, width=2))
    counts = b.scratch(TensorType(DType.INT64, (rows,)))
    position = b.value(TensorType(DType.INT64, (BATCH,)), StateSlot(0))
    b.over("aten::add.Scalar", position, SEQ, 1)
    inputs = {"x": x, "counts": counts}
    method = b.method("write", inputs, [x], advance=SEQ, counts=1)
    return replace(P, methods=(method, STEP))


def test_the_rows_are_those_of_the_position():
    refuse(other_rows(2), r"int64\[2\], but its position is of \[batch\]")
    refuse(other_rows(SEQ), r"int64\[seq\], but its position is of \[batch\]")
    verify_program(other_rows(BATCH), "m.kvc")


def test_rows_have_no_places_of_all_tokens():
    counts = replace(P.position, kind=CursorKind.LENGTH, state=None, capacity=None)
    grown = rows_type(CAPACITY, BATCH, width=2)
    grows = state("grown", grown, StateKind.APPEND, 2)
    states = (*P.states, grows)
    plain = replace(P, position=counts, states=states)
    refuse(plain, "but its position is of nothing")


def _unplaced(program: Program):
    return replace(program.states[1], at_position=False)


@pytest.mark.parametrize("counts", [None, Ref(2)])
def test_a_state_at_the_position_is_written_by_the_counts(counts):
    graph = counted_by(WRITE.graph, UPDATE, counts)
    refuse(with_write(graph=graph), "state 1 at the position, but not with the method")


def test_a_cast_that_loses_counts_is_none():
    steps = list(STEP.graph.instructions)
    values = (*STEP.graph.values, *STEP.graph.values[4:5])
    assert STEP.graph.values[4].type.dtype is DType.INT64
    twice = replace(
        steps[CAST], op="aten::mul.Scalar", arguments=(Ref(1), 2), results=(4,)
    )
    steps[CAST] = twice
    graph = replace(STEP.graph, values=values[:-1], instructions=tuple(steps))
    refuse(with_step(graph=graph), "not with the method's counts")


def test_a_method_in_which_all_tokens_count_writes_them_all():
    refuse(with_write(counts=None), "state 1 at the position, but not with no counts")
    method = write_method("write", SEQ, BATCH, 1, 2)
    verify_program(replace(P, methods=(method, STEP)), "m.kvc")


def test_a_check_of_counts_makes_none():
    check = Instruction("kvc::check_rows", (Ref(1), Ref(1), 64, 64), (), "model:9")
    graph = replace(WRITE.graph, instructions=(*WRITE.graph.instructions, check))
    verify_program(with_write(graph=graph), "m.kvc", thorough=True)


@pytest.mark.parametrize("changes", [{"axis": 3}, {"kind": StateKind.RING}])
def test_a_state_at_the_position_is_written_along_its_slots(changes):
    """These are what a failure or a rewind puts back."""
    states = (P.states[0], replace(P.states[1], **changes))
    refuse(replace(P, states=states), "state 1 along axis 2, linear, .* declared")


def test_what_is_not_at_the_position_may_count_by_anything():
    states = (P.states[0], _unplaced(P))
    graph = counted_by(WRITE.graph, UPDATE, None)
    verify_program(replace(with_write(graph=graph), states=states), "m.kvc")


def test_a_write_in_a_branch_counts_as_the_method_does(tmp_path):
    methods, path = ragged_methods()[:1], tmp_path / "m.kvc"
    compile_program(RaggedBranches(), methods, states=ragged_specs()).save(path)
    with load(path) as opened:
        program = opened._engine.program
    verify_program(program, "m.kvc")
    (method,) = program.methods
    writes = [
        (number, index)
        for number, block in enumerate(method.blocks)
        for index, step in enumerate(block.graph.instructions)
        if step.op == "kvc::cache_update"
    ]
    assert len(writes) == 8  # two caches, two branches, two layers
    for number, index in writes:
        blocks = list(method.blocks)
        graph = counted_by(blocks[number].graph, index, None)
        blocks[number] = replace(blocks[number], graph=graph)
        wrong = replace(method, blocks=tuple(blocks))
        refuse(replace(program, methods=(wrong,)), "but not with the method's")
