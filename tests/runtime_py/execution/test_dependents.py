"""What depends on a length, told from the graph alone."""

import pytest
from hand_built import F32, SEQ, Built
from stateful_programs import LONGER, PAST, Builder, caller_program, rows_type

from kvc.runtime.execution.dependents import Dependence
from kvc.schema.graph import Caller, Graph, Instruction, Ref, Scratch, StateSlot, Value
from kvc.schema.ops import DELEGATE
from kvc.schema.types import TensorType

LENGTH, BOTH = frozenset({"past"}), frozenset({"past", "seq"})


def graph_of(built: Built, index: int) -> Graph:
    return built[0].methods[index].graph


@pytest.fixture
def builder():
    """Values: 0 x, 1 past, 2 past longer."""
    made = Builder()
    made.scratch(rows_type(SEQ))
    past = made.value(rows_type(PAST), StateSlot(0))
    made.over("kvc::append", past, Ref(0), 2, kind=rows_type(LONGER))
    return made


def dependents(builder, symbols=LENGTH):
    graph = builder.method("run", {"x": 0}, [0]).graph
    return Dependence(graph, ()).of(symbols, False)


def test_an_append_resizes_what_it_makes_and_is_not_bound_again(builder):
    found = dependents(builder)
    assert found.values == {1, 2}
    by_dims = dict(found.resized)
    assert by_dims == {
        rows_type(PAST).dims: ((1, 1),),
        rows_type(LONGER).dims: ((2, 1),),
    }
    assert (found.instructions, found.inputs, found.outputs) == ((), (), ())


def test_views_of_what_changes_are_bound_again_even_of_fixed_shape(builder):
    view = builder.over("aten::select.int", 2, 2, 0, kind=rows_type(1))
    fixed = builder.over("aten::select.int", 0, 2, 0, kind=rows_type(1))
    found = dependents(builder)
    assert found.instructions == (1,)
    assert view in found.values
    assert fixed not in found.values
    assert view not in [value for _, values in found.resized for value, _ in values]


def test_fresh_values_change_shape_without_being_bound_again(builder):
    out = builder.scratch(rows_type(LONGER))
    builder.step("aten::neg", (Ref(2),), out)
    assert dependents(builder).instructions == ()
    assert out in dependents(builder).values


def test_numbers_that_follow_a_length_are_bound_again(builder):
    out = builder.scratch(rows_type(SEQ))
    builder.step("aten::add.Scalar", (Ref(0), PAST, 1), out)
    builder.step("aten::full", ((SEQ, 1), 0, F32), builder.scratch(rows_type(SEQ)))
    assert dependents(builder).instructions == (1,)
    assert dependents(builder, BOTH).instructions == (1, 2)


def test_an_update_of_a_copy_is_bound_again_and_one_in_place_is_not(builder):
    longer = rows_type(LONGER)
    base, copied = builder.scratch(longer), builder.scratch(longer)
    builder.step("aten::neg", (Ref(2),), base)
    builder.step("aten::copy", (Ref(base), Ref(2)), copied)
    builder.over("aten::copy", base, Ref(2))
    assert dependents(builder).instructions == (2,)


def test_a_move_is_bound_again_where_its_step_holds_arrays(builder):
    longer = rows_type(LONGER)
    moved, other = builder.scratch(longer), builder.scratch(rows_type(SEQ))
    builder.step("aten::clone", (Ref(2),), moved)
    builder.over("aten::copy", moved, Ref(2))
    builder.step("aten::clone", (Ref(0),), other)
    graph = builder.method("run", {"x": 0}, [0]).graph
    found = Dependence(graph, (), uses_torch=False).of(LENGTH, False)
    assert found.instructions == (1, 2)
    assert dependents(builder).instructions == ()


def calls(builder, *blocks):
    """Return what is bound again of calls, each of x alone, of blocks 0 and 1."""
    for block in range(2):
        arguments = (block, (Ref(0),), (None,))
        builder.step(DELEGATE, arguments, builder.scratch(rows_type(SEQ)))
    graph = builder.method("run", {"x": 0}, [0]).graph
    return Dependence(graph, blocks).of(LENGTH, False).instructions


def block_of(*steps, length=SEQ):
    kinds = rows_type(SEQ), rows_type(length)
    values = (Value(kinds[0], Caller()), Value(kinds[1], Scratch(0, 4096)))
    return Graph(values, (0,), (0,), steps, 4096, 0)


PLAIN = block_of(Instruction("aten::neg", (Ref(0),), (1,)))


def test_what_runs_blocks_is_bound_again_where_their_values_depend_on_it(builder):
    longer = block_of(length=PAST)
    assert calls(builder, PLAIN, longer) == (2,)


def test_what_runs_blocks_is_bound_again_where_their_code_says_it(builder):
    told = block_of(Instruction("aten::add.Scalar", (Ref(0), PAST, 1), (1,)))
    assert calls(builder, told, PLAIN) == (1,)


def test_what_a_block_runs_counts_too(builder):
    outer = block_of(Instruction(DELEGATE, (2, (Ref(0),), (None,)), (1,)))
    assert calls(builder, PLAIN, outer, block_of(length=PAST)) == (2,)


def test_inputs_and_outputs_that_change_are_named(builder):
    mask = builder.scratch(TensorType(F32, (LONGER,)))
    method = builder.method("run", {"x": 0, "mask": mask}, [0, 2])
    found = Dependence(method.graph, ()).of(LENGTH, False)
    assert (found.inputs, found.outputs) == ((1,), (1,))


def test_a_callers_memory_takes_along_what_lies_over_it():
    graph = graph_of(caller_program(), 0)  # total, x, product, added
    found = Dependence(graph, ()).of(frozenset(), True)
    assert found.values == {0, 3}
    assert [values for _, values in found.resized] == [((0, 0),)]
    assert Dependence(graph, ()).of(frozenset(), False).values == frozenset()


def test_what_was_found_is_kept():
    dependence = Dependence(graph_of(caller_program(), 1), ())
    assert dependence.of(LENGTH, False) is dependence.of(LENGTH, False)
    assert dependence.of(LENGTH, True) is not dependence.of(LENGTH, False)


def test_the_root_of_a_view_of_a_view_is_the_memory(builder):
    view = builder.over("aten::transpose.int", 2, 1, 2)
    again = builder.over("aten::alias", view)
    graph = builder.method("run", {"x": 0}, [0]).graph
    assert [graph.root_of(value) for value in (again, view, 2, 0)] == [1, 1, 1, 0]
