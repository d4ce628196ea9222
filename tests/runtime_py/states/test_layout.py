"""Where the states of a session lie."""

from types import SimpleNamespace

import numpy as np
import pytest
from stateful_programs import state

from kvc.runtime.memory.arenas import Arena
from kvc.runtime.states.layout import lay_out
from kvc.runtime.states.owner import Span, group_states
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, StateKind
from kvc.schema.types import Affine, TensorType


def linear(dims, layout=None, **fields):
    kind = TensorType(DType.INT8, dims)
    return state("s", kind, StateKind.LINEAR, 1, True, layout, **fields)


COUNTER = state("n", TensorType(DType.INT64, (1,)), StateKind.COUNTER)


def test_each_arena_has_its_own_states():
    kept = linear((2, 3), reset=ResetRule.KEEP)
    layouts, nbytes = lay_out(group_states([linear((2, 40)), COUNTER, kept]), {})
    assert [layout.offset for layout in layouts] == [0, 128, 0]
    assert nbytes == {ResetRule.INITIAL: 192, ResetRule.KEEP: 64}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("row", [None, 1])
@pytest.mark.parametrize("state", [None, 0, 1])
def test_runs_are_where_the_slots_lie(order, row, state):
    declared = linear((2, 6, 3), order)
    layouts, nbytes = lay_out(group_states([COUNTER, declared, declared]), {})
    arena, layout = Arena(nbytes[ResetRule.INITIAL]), layouts[1]
    if row is not None and layout.mixes_rows():
        return  # a run of slots has other rows too
    states = slice(None) if state is None else slice(state, state + 1)
    rows = slice(None) if row is None else slice(row, row + 1)
    array = layout.all(arena)
    array[states, rows, 2:4] = 7
    expected, found = arena.bytes.copy(), np.zeros_like(arena.bytes)
    for start in layout.runs(Span(2, 4, row, state)).tolist():
        found[start : start + 2 * layout.slot_nbytes] = 7
    assert np.array_equal(found, expected)


def test_states_of_one_shape_are_together_and_sizes_are_the_sessions():
    length = Affine(0, (("capacity", 1),))
    states = [linear((2, length)), COUNTER, linear((2, length)), linear((2, 5))]
    layouts, nbytes = lay_out(group_states(states), {"capacity": 9})
    assert [layout.group.states for layout in layouts] == [(0, 2), (1,), (3,)]
    assert [layout.slots for layout in layouts] == [9, 0, 5]
    assert layouts[0].all_runs.tolist() == [0, 9, 64, 73]
    assert layouts[0].starts.tolist() == [0, 64]
    arena = Arena(nbytes[ResetRule.INITIAL])
    layouts[0].all(arena)[1] = 3
    assert (layouts[0].all(arena)[1] == 3).all()
    assert not layouts[0].all(arena)[0].any()


def test_states_that_other_methods_write_are_apart():
    state = linear((2, 4))
    method = SimpleNamespace(name="run", writes=(1,))
    groups = group_states([state, state, state], [method])
    assert [group.states for group in groups] == [(0, 2), (1,)]
    assert [group.writers for group in groups] == [frozenset(), frozenset({"run"})]
