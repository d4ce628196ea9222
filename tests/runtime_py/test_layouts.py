"""Where the states of a session lie."""

import numpy as np
import pytest
from stateful_programs import state

from kvc.runtime.arenas import Arena
from kvc.runtime.layouts import StateLayout
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, StateKind
from kvc.schema.types import Affine, TensorType


def linear(dims, layout=None, **fields):
    kind = TensorType(DType.INT8, dims)
    return state("s", kind, StateKind.LINEAR, 1, True, layout, **fields)


COUNTER = state("n", TensorType(DType.INT64, (1,)), StateKind.COUNTER)


def test_counters_lie_first_and_each_arena_has_its_own_states():
    kept = linear((2, 3), reset=ResetRule.KEEP)
    layout = StateLayout([linear((2, 40)), COUNTER, kept], {})
    assert [place.offset for place in layout.placements] == [64, 0, 0]
    assert layout.nbytes == {ResetRule.INITIAL: 192, ResetRule.KEEP: 64}
    assert layout.counters == {ResetRule.INITIAL: 64, ResetRule.KEEP: 0}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_runs_are_where_the_slots_lie(order):
    declared = linear((2, 6, 3), order)
    layout = StateLayout([COUNTER, declared], {})
    arena = Arena(layout.nbytes[ResetRule.INITIAL])
    place = layout.placements[1]
    array = place.array(arena)
    array[:, 2:4] = 7
    nbytes = 2 * array.strides[1]
    found = np.zeros(len(arena.bytes), np.int8)
    for start in place.runs(declared, 2).tolist():
        found[start : start + nbytes] = 7
    assert np.array_equal(found, arena.bytes.view(np.int8))


def test_states_of_one_shape_are_together_and_sizes_are_the_sessions():
    length = Affine(0, (("capacity", 1),))
    states = [linear((2, length)), COUNTER, linear((2, length)), linear((2, 5))]
    layout = StateLayout(states, {"capacity": 9})
    groups = {alike.states: alike for alike in layout.alike[ResetRule.INITIAL]}
    assert groups.keys() == {(0, 2), (1,), (3,)}
    assert groups[0, 2].slots == 9
    assert groups[0, 2].runs.tolist() == [64, 73, 128, 137]
    assert groups[1,].runs.tolist() == []
