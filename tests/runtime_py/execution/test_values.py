"""Arrays and tensors of a frame, and how they change with sizes."""

import numpy as np
import pytest
import torch
from hand_built import F32
from stateful_programs import LONGER, PAST, rows_type

from kvc.runtime.execution.dependents import Dependence
from kvc.runtime.execution.values import GraphMemory, Values
from kvc.runtime.memory.arenas import Arena
from kvc.schema.graph import Alias, Graph, Scratch, StateSlot, Value
from kvc.schema.types import TensorType

# state, the same written over, a fresh value, a fixed one
VALUES = (
    Value(rows_type(PAST), StateSlot(0)),
    Value(rows_type(PAST), Alias(0)),
    Value(TensorType(F32, (2, LONGER)), Scratch(0, 160)),
    Value(TensorType(F32, (2, 4)), Scratch(192, 64)),
)
GRAPH = Graph(VALUES, (), (), (), 256, 0)


@pytest.fixture
def memory():
    state = np.arange(1 * 3 * 8 * 64, dtype=np.float32).reshape(1, 3, 8, 64)
    return GraphMemory(Arena(256), lambda _: state, states=[state])


@pytest.fixture
def values(memory):
    return Values(GRAPH, {"past": 2, "seq": 1}, memory)


def resize(values, past):
    changed = Dependence(GRAPH, ()).of(frozenset({"past"}), False)
    values.resize({"past": past, "seq": 1}, None, changed)


def test_a_tensor_stays_the_object_it_is(values, memory):
    state, fresh = values.tensor(0), values.tensor(2)
    for past in (5, 8, 0, 3):
        resize(values, past)
        assert state.shape == (1, 3, past, 64)
        assert fresh.shape == (2, past + 1)
        assert fresh.is_contiguous()
        expected = memory.states[0][:, :, :past]
        assert np.array_equal(state.numpy(), expected)
        assert values.tensor(0) is state


def test_arrays_are_made_anew(values):
    before = [values.array(i) for i in (0, 2, 3)]
    resize(values, 4)
    assert values.array(0).shape == (1, 3, 4, 64)
    assert values.array(2).shape == (2, 5)
    assert values.array(3) is before[2]
    assert values.array(0).ctypes.data == before[0].ctypes.data


def test_array_and_tensor_are_the_same_memory(values):
    tensor = values.tensor(2)
    resize(values, 4)
    values.array(2)[:] = 7
    assert (tensor == 7).all()


def test_a_value_never_becomes_longer_than_its_memory(values):
    values.tensor(2)
    with pytest.raises(RuntimeError):
        resize(values, 60)


def test_a_fixed_value_has_a_storage_of_its_size(values):
    assert values.tensor(3).untyped_storage().nbytes() == 32


def test_a_view_is_defined_again_in_place(values):
    first = values.tensor(3).T
    values.define(1, first)
    values.define(1, values.tensor(3)[:1])
    assert values.tensor(1) is first
    assert first.shape == (1, 4)
    assert first.data_ptr() == values.tensor(3).data_ptr()


def test_what_shares_memory_keeps_its_own_tensor(values):
    values.share(1, 0)
    over, state = values.tensor(1), values.tensor(0)
    values.share(1, 0)
    assert values.tensor(1) is over
    torch.testing.assert_close(over, state)
