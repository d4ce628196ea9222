"""The memory of states."""

import numpy as np

from kvc.runtime.states.host import HostMemory
from kvc.runtime.states.owner import group_states
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, State, StateKind
from kvc.schema.types import Affine, TensorType


def state(dims, layout=None, initial=None, reset=ResetRule.INITIAL, dtype=DType.INT8):
    order = layout or tuple(range(len(dims)))
    kind = TensorType(dtype, dims)
    return State("s", kind, StateKind.PLAIN, None, order, initial, reset, False)


def memory(*states, sizes=None, initial=None):
    groups = group_states(states)
    owner = HostMemory.allocate(groups, sizes or {}, initial)
    return StateMemory(states, groups, owner, sizes or {})


def test_states_begin_at_multiples_of_64_bytes_and_do_not_touch():
    made = memory(state((3,)), state((65,)), state((2,)))
    addresses = [array.ctypes.data for array in made.buffers]
    assert [address - addresses[0] for address in addresses] == [0, 64, 192]
    made.buffers[1][:] = 1
    assert not made.buffers[0].any()
    assert not made.buffers[2].any()


def test_a_layout_gives_the_order_in_memory():
    (array,) = memory(state((2, 3, 4), layout=(1, 2, 0))).buffers
    assert array.shape == (2, 3, 4)
    assert array.strides == (1, 8, 2)


def test_symbolic_dims_take_the_sessions_sizes():
    (array,) = memory(state((Affine(1, (("n", 2),)),)), sizes={"n": 5}).buffers
    assert array.shape == (11,)


def test_reset_keeps_addresses():
    made = memory(state((4,), initial=0), initial=lambda _: np.arange(4, dtype=np.int8))
    address = made.buffers[0].ctypes.data
    made.buffers[0][:] = 9
    made.reset()
    assert made.buffers[0].tolist() == [0, 1, 2, 3]
    assert made.buffers[0].ctypes.data == address


def test_reset_leaves_what_is_kept():
    made = memory(state((2,)), state((2,), reset=ResetRule.KEEP))
    for array in made.buffers:
        array[:] = 5
    made.reset()
    assert [array.tolist() for array in made.buffers] == [[0, 0], [5, 5]]


def test_a_scalar_state_is_fine():
    (array,) = memory(state((), dtype=DType.INT64)).buffers
    assert array.shape == ()
