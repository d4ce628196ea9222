"""Each check of what passes between blocks and what runs them, broken one by one."""

from dataclasses import replace

import pytest
from block_programs import (
    changed_step,
    control_program,
    nested_program,
    with_argument,
    with_block,
    with_method,
    with_value,
)

from kvc.schema.codec import PROGRAM, decode, encode
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.graph import Alias, Caller, Ref, Scratch
from kvc.schema.ops import COND, SCAN, WHILE
from kvc.schema.types import Affine, Symbol, TensorType
from kvc.schema.verify import blocks, verify_program

WHOLE = control_program()
METHOD = WHOLE.methods[0]
GRAPH = METHOD.graph
PLACES = {step.op: i for i, step in enumerate(GRAPH.instructions)}
CONDITION, LOOP, TURNS = PLACES[COND], PLACES[WHILE], PLACES[SCAN]
BLOCKS = [block.graph for block in METHOD.blocks]
P, X = GRAPH.inputs
SIZE = Affine(1, (("n", 1),))
SIZED = replace(WHOLE, symbols=(Symbol("n", 1, 4),))


def arguments(index):
    return GRAPH.instructions[index].arguments


def results(index):
    return GRAPH.instructions[index].results


def retyped(value, *dims, dtype=DType.FLOAT32):
    """Return the program with another type of a value of its method."""
    storage = GRAPH.values[value].storage
    kind = TensorType(dtype, dims)
    if isinstance(storage, Scratch):
        storage = replace(storage, nbytes=kind.max_nbytes({}))
    return with_method(
        WHOLE, graph=with_value(GRAPH, value, type=kind, storage=storage)
    )


def wants(program, text, thorough=False):
    with pytest.raises(BadProgram, match=text):
        verify_program(program, "x", thorough=thorough)


def test_the_program_is_sound_and_comes_back():
    verify_program(WHOLE, "x", thorough=True)
    assert decode(encode(WHOLE), "x") == WHOLE
    assert PROGRAM in encode(WHOLE)


def test_a_block_must_exist():
    wants(with_argument(WHOLE, CONDITION, 1, 9), "there is no block 9")


def test_a_block_is_run_at_one_place():
    wants(with_argument(WHOLE, CONDITION, 2, 0), "block 0 is run elsewhere too")


def test_every_block_is_run():
    more = (*METHOD.blocks, METHOD.blocks[-1])
    wants(with_method(WHOLE, blocks=more), "no instruction runs block 5")


def test_there_is_a_place_for_each_result():
    wants(with_argument(WHOLE, CONDITION, 4, (0, None)), "it says where")


@pytest.mark.parametrize("count", [-1, 3])
def test_a_scan_goes_through_operands_that_it_has(count):
    wants(with_argument(WHOLE, TURNS, 2, count), "operands")


def test_what_is_asked_is_one_bool():
    step = arguments(CONDITION)
    wants(with_argument(WHOLE, CONDITION, 0, step[3][1]), "which is not one bool")


def test_a_loop_lies_over_what_it_carries():
    wants(
        with_argument(WHOLE, LOOP, 4, (1, None)), "lies over|results over|may not lie"
    )


def test_what_is_carried_keeps_its_type():
    wants(retyped(results(LOOP)[0], 1, dtype=DType.INT64), "changes its type")


def test_a_result_without_an_operand_has_memory_of_its_own():
    wants(with_argument(WHOLE, CONDITION, 4, (None,)), "may not lie")


def test_a_result_lies_over_the_operand_that_is_said():
    wants(with_argument(WHOLE, CONDITION, 4, (1,)), "may not lie")
    wants(with_argument(WHOLE, CONDITION, 4, (7,)), "may not lie")


@pytest.mark.parametrize("over", [7, -1, 2])
def test_a_result_apart_lies_over_an_operand_that_there_is(over):
    made, end = results(CONDITION)[0], GRAPH.scratch_nbytes
    nbytes = GRAPH.values[made].type.max_nbytes({})
    graph = with_value(GRAPH, made, storage=Scratch(end, nbytes))
    graph = replace(graph, scratch_nbytes=end + nbytes, peak_nbytes=end + nbytes)
    program = with_method(WHOLE, graph=graph, writes=(), updates=())
    wants(with_argument(program, CONDITION, 4, (over,)), "of 2 operands")


@pytest.mark.parametrize(
    ("index", "place", "said"),
    [(CONDITION, 1, SIZE), (CONDITION, 4, (SIZE,)), (LOOP, 2, SIZE), (TURNS, 1, SIZE)],
)
def test_a_size_is_no_block_no_count_and_no_operand(index, place, said):
    wants(with_argument(SIZED, index, place, said), "depends on the sizes of calls")


def test_nothing_reads_the_scratch_memory_of_blocks():
    space, kept = results(LOOP)[-1], results(LOOP)[0]
    wants(
        with_method(WHOLE, graph=replace(GRAPH, outputs=(*GRAPH.outputs[:2], space))),
        "is scratch memory",
    )
    one, _ = arguments(TURNS)[3]
    assert one == Ref(results(LOOP)[1]) != Ref(kept)
    wants(with_argument(WHOLE, TURNS, 3, (Ref(space), one)), "reads scratch memory")


def test_a_while_gives_what_it_carries():
    wants(with_argument(WHOLE, LOOP, 2, 1), "more results than carried values")


def test_a_scan_goes_through_something():
    wants(with_argument(WHOLE, TURNS, 2, 0), "goes through nothing")


def test_a_scan_goes_through_one_length():
    wants(retyped(results(TURNS)[1], 4, 3), "different lengths")


def test_a_scan_does_not_stack_into_a_single_number():
    wants(retyped(results(TURNS)[1]), "a scan of a single number")


def test_a_method_has_so_many_blocks_at_the_most(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_BLOCKS", 4)
    with pytest.raises(LimitExceeded, match="the number of blocks"):
        verify_program(WHOLE, "x")


def test_blocks_lie_so_deep_within_each_other_at_the_most(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_DEPTH", 2)
    verify_program(nested_program(), "x")
    monkeypatch.setattr(blocks, "MAX_DEPTH", 1)
    with pytest.raises(LimitExceeded, match="the depth of blocks is 2"):
        verify_program(nested_program(), "x")


def test_blocks_have_scratch_memory():
    space = results(LOOP)[-1]
    assert GRAPH.values[space].storage.nbytes > 0
    wants(retyped(space, 0, dtype=DType.UINT8), "bytes of scratch memory")


def test_a_block_takes_what_is_passed():
    passed = arguments(CONDITION)[3]
    wants(with_argument(WHOLE, CONDITION, 3, passed[:1]), "block 0 takes")


def test_a_block_gives_what_is_taken():
    inside = replace(BLOCKS[3], outputs=BLOCKS[3].outputs[:1])
    wants(with_block(WHOLE, 3, inside), "gives")
    inside = replace(BLOCKS[2], outputs=BLOCKS[2].inputs[:1])
    wants(with_block(WHOLE, 2, inside), "which is not one bool")


def test_what_is_lent_is_not_filled():
    row = BLOCKS[4].inputs[1]
    inside = with_value(BLOCKS[4], row, storage=Caller())
    wants(with_block(WHOLE, 4, inside), "lies in the wrong memory")


def test_a_branch_writes_over_nothing_else():
    """With the result elsewhere, the branch writes to a read-only input."""
    space = GRAPH.values[results(CONDITION)[0]]
    nbytes = space.type.max_nbytes({})
    free = replace(space, storage=Scratch(GRAPH.scratch_nbytes, nbytes))
    values = list(GRAPH.values)
    values[results(CONDITION)[0]] = free
    graph = replace(
        GRAPH, values=tuple(values), scratch_nbytes=GRAPH.scratch_nbytes + 64
    )
    program = with_method(WHOLE, graph=graph, writes=(), updates=())
    wants(with_argument(program, CONDITION, 4, (None,)), "may only read")


def test_a_branch_leaves_its_output_at_home():
    inside = replace(BLOCKS[1], outputs=BLOCKS[1].inputs[1:])
    wants(with_block(WHOLE, 1, inside), "lies elsewhere")


def test_a_loop_leaves_what_it_carries_at_home():
    inside = BLOCKS[3]
    swapped = replace(inside, outputs=(inside.outputs[0], inside.inputs[2]))
    wants(with_block(WHOLE, 3, swapped), "lies elsewhere")


def test_there_is_a_verdict_for_each_write_of_a_block():
    blocks = [replace(block, updates=()) for block in METHOD.blocks]
    wants(with_method(WHOLE, blocks=tuple(blocks)), "verdicts on")


@pytest.mark.parametrize("thorough", [False, True])
def test_blocks_pass_the_check_of_memory(thorough):
    old = replace(BLOCKS[0], outputs=BLOCKS[0].inputs[:1])
    wants(with_block(WHOLE, 0, old), "overwritten before the end", thorough)


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_runs_blocks_behind_it(number):
    nested = nested_program()
    inside = nested.methods[0].blocks[1].graph
    step = inside.instructions[-1]
    assert step.op == COND
    named = (step.arguments[0], number, *step.arguments[2:])
    graph = changed_step(inside, -1, arguments=named)
    wants(with_block(nested, 1, graph), f"block {number} comes before it")


@pytest.mark.parametrize("thorough", [False, True])
def test_memory_that_is_written_is_passed_once(thorough):
    passed = arguments(CONDITION)[3]
    twice = (passed[0], passed[0])
    wants(with_argument(WHOLE, CONDITION, 3, twice), "another operand reads", thorough)


@pytest.mark.parametrize("thorough", [False, True])
def test_the_old_content_is_not_read_afterwards(thorough):
    old = arguments(CONDITION)[3][0]
    late = (arguments(TURNS)[3][0], old)
    program = with_argument(WHOLE, TURNS, 3, late)
    wants(program, "after it was overwritten", thorough)


def test_a_result_may_not_lie_over_a_constant_or_nothing():
    target = results(LOOP)[1]
    graph = with_value(GRAPH, target, storage=Alias(P))
    wants(with_method(WHOLE, graph=graph), "may not lie")


def test_a_method_says_what_its_branches_write():
    wants(with_method(WHOLE, writes=()), "it writes the states")
