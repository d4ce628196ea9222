"""Each check of delegates, and of the blocks that they run, broken one by one."""

from dataclasses import replace

import pytest
from block_programs import (
    branching_delegate,
    changed_step,
    delegated_branches,
    nested_delegates,
    with_block,
    with_method,
    with_value,
)
from sample_programs import declared, sample_program

from kvc.schema.errors import FormatError
from kvc.schema.graph import (
    Access,
    AccessMode,
    Alias,
    Caller,
    Constant,
    Ref,
    Scratch,
    StateSlot,
)
from kvc.schema.model import Block, Update
from kvc.schema.ops import DELEGATE
from kvc.schema.verify import verify_program

P = sample_program()
PREFILL, DECODE = P.methods
(INSIDE,) = (block.graph for block in PREFILL.blocks)
OUTER = PREFILL.graph
(CALL,) = (i for i, s in enumerate(OUTER.instructions) if s.op == DELEGATE)
NESTED, BRANCHING = delegated_branches(), branching_delegate()


def refuse(program, text):
    with pytest.raises(FormatError, match=text) as caught:
        verify_program(program, "m.kvc", thorough=True)
    assert str(caught.value).startswith("m.kvc: ")


def with_prefill(**changes):
    return replace(P, methods=(replace(PREFILL, **changes), DECODE))


def with_inside(*updates, **changes):
    """Return the sample with the code of its delegate changed."""
    return with_prefill(blocks=(Block(replace(INSIDE, **changes), updates),))


def with_delegate(program=P, **changes):
    return replace(program, delegates=(replace(program.delegates[0], **changes),))


def with_call(index, argument):
    """Return the sample with an argument of its delegate's call changed."""
    arguments = list(OUTER.instructions[CALL].arguments)
    arguments[index] = argument
    return with_prefill(graph=changed_step(OUTER, CALL, arguments=tuple(arguments)))


@pytest.mark.parametrize("program", [P, NESTED, BRANCHING])
def test_the_samples_pass(program):
    verify_program(program, "m.kvc", thorough=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"backend": ""}, "empty"),
        ({"method": 1}, "they run the blocks"),
        ({"method": 7}, "they run the blocks"),
        ({"block": 1}, "they run the blocks"),
        ({"block": -1}, "they run the blocks"),
        ({"names": (1, 1)}, "names"),
        ({"names": (2, 1)}, "names"),
        ({"names": (1, 3)}, "names"),
        ({"names": (-1, 1)}, "names"),
        ({"workspace_nbytes": 2**41}, "its workspace .*limit"),
        ({"tail_nbytes": 2**41}, "its tail .*limit"),
    ],
)
def test_a_bad_delegate_is_refused(change, text):
    refuse(with_delegate(**change), text)


def test_a_block_that_two_delegates_run_is_refused():
    refuse(replace(P, delegates=P.delegates * 2), "they run the blocks")


def test_a_call_that_is_no_delegate_s_is_refused():
    refuse(replace(P, delegates=()), "they run the blocks")


def test_a_block_that_a_cond_runs_is_no_delegate_s():
    refuse(with_delegate(NESTED, block=1), "they run the blocks")


def test_a_call_runs_a_block_that_there_is():
    refuse(with_call(0, 1), "there is no block 1")
    refuse(with_call(0, -1), "there is no block -1")


def test_two_calls_of_one_block_are_refused():
    again = OUTER.instructions[CALL]
    place, spare = Scratch(OUTER.scratch_nbytes, 256), len(OUTER.values)
    graph = replace(
        OUTER,
        values=(*OUTER.values, replace(OUTER.values[again.results[0]], storage=place)),
        instructions=(*OUTER.instructions, replace(again, results=(spare,))),
        scratch_nbytes=OUTER.scratch_nbytes + 256,
    )
    refuse(with_prefill(graph=graph), "block 0 is run elsewhere too")


def test_a_block_that_nobody_runs_is_refused():
    refuse(with_prefill(blocks=PREFILL.blocks * 2), "no instruction runs block 1")


def test_a_block_runs_no_block_before_it():
    call = BRANCHING.methods[0].blocks[0].graph
    graph = changed_step(call, 0, arguments=(0, *call.instructions[0].arguments[1:]))
    refuse(with_block(BRANCHING, 0, graph), "block 0 comes before it")


def test_data_beside_a_delegate_s_names_is_refused():
    refuse(with_delegate(names=()), r"uses the data \[1\] beside its names")
    refuse(with_delegate(names=(0,)), r"uses the data \[1\] beside its names")


def test_data_beside_its_names_in_a_branch_is_refused():
    refuse(with_delegate(NESTED, names=()), r"uses the data \[0\] beside its names")


def test_data_that_is_not_there_is_refused():
    values = with_value(INSIDE, 1, storage=Constant(9)).values
    refuse(with_inside(values=values), "there is no named data 9")


def test_data_of_another_type_is_refused():
    values = with_value(INSIDE, 1, storage=Constant(0)).values
    refuse(with_inside(values=values), r"named data 0 is float32\[8, 8\]")


def test_packed_data_is_not_for_code():
    names = (P.names[0], replace(P.names[1], format="x:1:2"), P.names[2])
    names = (names[0], names[2], names[1])
    values = with_value(INSIDE, 1, storage=Constant(2)).values
    outer = with_value(OUTER, 2, storage=Constant(2))
    text = "it is packed, and only delegates may use it"
    changed = with_prefill(
        graph=outer, blocks=(Block(replace(INSIDE, values=values), ()),)
    )
    refuse(with_delegate(replace(changed, names=names), names=(2,)), text)


@pytest.mark.parametrize("in_branch", [False, True])
def test_a_delegate_that_calls_one_is_refused(in_branch):
    refuse(nested_delegates(in_branch), "delegate 0: it calls a delegate itself")


def test_a_workspace_that_is_too_small_for_the_code_is_refused():
    needed = INSIDE.scratch_nbytes
    verify_program(with_delegate(workspace_nbytes=needed), "m.kvc")
    text = f"a workspace of {needed - 1} bytes, its code needs {needed}"
    refuse(with_delegate(workspace_nbytes=needed - 1), text)


def test_a_block_takes_and_gives_what_its_call_does():
    refuse(with_inside(outputs=()), "block 0 gives")
    refuse(with_inside(outputs=(1,)), r"block 0 gives float32\[8\]")
    refuse(with_call(1, ()), "block 0 takes")
    refuse(with_call(2, ()), "it says where")


def test_code_of_a_delegate_touches_no_state():
    values = with_value(INSIDE, 1, storage=StateSlot(0)).values
    refuse(with_inside(values=values), "there is no state 0")


def test_what_a_delegate_reads_is_lent_to_it():
    own = with_value(INSIDE, 0, storage=Scratch(INSIDE.scratch_nbytes, 256))
    more = INSIDE.scratch_nbytes + 256
    program = with_inside(values=own.values, scratch_nbytes=more)
    refuse(with_delegate(program, workspace_nbytes=more), "lies in the wrong memory")


def test_undeclared_symbols_are_refused():
    refuse(replace(P, symbols=()), "undeclared")


def test_a_result_lies_over_the_operand_that_is_said():
    refuse(with_call(2, (0,)), "may not lie at Scratch|lies elsewhere")


HOME = Update(0, "", (), (Access(0, AccessMode.ANYWHERE),))
AT_HOME = {"values": with_value(INSIDE, 2, storage=Alias(0)).values}


def in_place(*blocks, over=(0,)):
    """Return the sample, with the delegate's result over its operand."""
    (made,), operand = OUTER.instructions[CALL].results, called_with()
    graph = with_call(2, over).methods[0].graph
    graph = with_value(graph, made, storage=Alias(operand))
    return with_prefill(graph=graph, blocks=blocks)


def called_with():
    return OUTER.instructions[CALL].arguments[1][0].value


def test_a_delegate_may_write_over_what_it_is_lent():
    block = Block(replace(INSIDE, **AT_HOME), (HOME,))
    verify_program(in_place(block), "m.kvc", thorough=True)


def test_a_result_over_an_operand_is_said():
    block = Block(replace(INSIDE, **AT_HOME), (HOME,))
    refuse(in_place(block, over=(None,)), "may not lie at Alias")


def test_a_delegate_leaves_a_result_over_an_operand_there():
    refuse(in_place(*PREFILL.blocks), "lies elsewhere")


def test_a_delegate_writes_over_nothing_else():
    refuse(with_inside(HOME, **AT_HOME), "may only read")


def test_there_is_a_verdict_for_each_write_of_a_delegate():
    refuse(with_inside(**AT_HOME), "verdicts on")


def test_a_method_tells_of_a_delegate_that_writes_over_a_caller_s_array():
    block = Block(replace(INSIDE, **AT_HOME), (replace(HOME, accesses=()),))
    graph = with_value(in_place(block).methods[0].graph, 0, storage=Caller())
    step = graph.instructions[CALL]
    operands = (step.arguments[0], (Ref(0),), step.arguments[2])
    graph = changed_step(graph, CALL, arguments=operands)
    graph = with_value(graph, step.results[0], storage=Alias(0))
    updates = (*PREFILL.updates, Update(CALL, "", ()))
    told = with_prefill(graph=graph, blocks=(block,), updates=updates)
    refuse(told, r"block 0: instruction 0 makes other accesses")
    far = Access(INSIDE.inputs[0], AccessMode.APPEND, 26, 1)  # along no axis
    strange = replace(block, updates=(replace(HOME, accesses=(far,)),))
    told_of_it = with_prefill(graph=graph, blocks=(strange,), updates=updates)
    refuse(told_of_it, r"block 0: instruction 0 makes other accesses")
    method = declared(told.methods[0])
    (access,) = method.updates[-1].accesses
    assert access == Access(0, AccessMode.ANYWHERE)
    verify_program(replace(told, methods=(method, DECODE)), "m.kvc", thorough=True)
    refuse(with_prefill(graph=graph, blocks=(block,)), "verdicts on")


def test_a_block_of_a_delegate_passes_the_check_of_memory():
    refuse(with_inside(HOME, **AT_HOME, outputs=(0,)), "overwritten before the end")


def test_the_arena_reaches_as_far_behind_a_call_s_values_as_the_delegate_reads():
    result = OUTER.values[OUTER.instructions[CALL].results[0]].storage
    room = OUTER.scratch_nbytes - result.offset - result.nbytes
    verify_program(with_delegate(tail_nbytes=room), "m.kvc")
    refuse(with_delegate(tail_nbytes=room + 1), "its tail end past the scratch arena")


def test_the_arena_reaches_as_far_behind_an_operand():
    """The operand changes places with what ends the arena."""
    operand = called_with()
    nbytes = OUTER.values[operand].storage.nbytes
    moved = Scratch(OUTER.scratch_nbytes, nbytes)
    graph = with_value(OUTER, operand, storage=moved)
    graph = replace(graph, scratch_nbytes=OUTER.scratch_nbytes + nbytes + 64)
    program = with_prefill(graph=graph)
    verify_program(with_delegate(program, tail_nbytes=64), "m.kvc")
    refuse(with_delegate(program, tail_nbytes=65), f"value {operand} and its tail")


@pytest.mark.parametrize("number", [None, 0, 1])
def test_all_arenas_of_a_method_reach_behind_what_blocks_lend_a_delegate(number):
    """One of them ends too early: the method's own, a branch's, the delegate's."""
    program = branching_delegate(tail_nbytes=64)
    verify_program(program, "m.kvc", thorough=True)
    method = program.methods[0]
    graph = method.graph if number is None else method.blocks[number].graph
    cut = replace(graph, scratch_nbytes=graph.scratch_nbytes - 64)
    changed = (
        with_method(program, graph=cut)
        if number is None
        else with_block(program, number, cut)
    )
    refuse(changed, "its tail end past the scratch arena")
