"""Owners of states, the host and another: spans that are read, written and filled."""

import numpy as np
import pytest
from opaque_backend import Keeper
from stateful_programs import state

from kvc.runtime.memory.arrays import parts_of
from kvc.runtime.states.host import HostMemory
from kvc.runtime.states.owner import WHOLE, Span, group_states
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, StateKind
from kvc.schema.types import TensorType

ROWS, SLOTS, WIDTH = 3, 600, 5
OWNERS = pytest.mark.parametrize("owner", [HostMemory.allocate, Keeper])
SPANS = [
    WHOLE,
    Span(2, 9),
    Span(0, 600, 1),
    Span(7, 1 << 62, 2, 1),
    Span(5, 5),
    Span(9, 700, None, 0),
]


def allocate(owner, layout=(0, 1, 2), initial=None, dtype=DType.FLOAT32, **fields):
    """Two states [rows, slots, width]; they begin as `initial`, a number each."""
    kind = TensorType(dtype, (ROWS, SLOTS, WIDTH))
    begins = [None, None] if initial is None else [0, 1]
    states = [
        state("s", kind, StateKind.LINEAR, 1, True, layout, number, **fields)
        for number in begins
    ]

    def value(name):
        return np.full((ROWS, SLOTS, WIDTH), initial[name], dtype.numpy)

    return owner(group_states(states), {}, value)


def where(span):
    """Index a span of an array [states, rows, slots, width]; a row stays an axis."""
    row = slice(None) if span.row is None else slice(span.row, span.row + 1)
    state = slice(None) if span.state is None else span.state
    return state, row, slice(span.low, span.high)


@OWNERS
@pytest.mark.parametrize("layout", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("initial", [None, (3, 4)])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_a_span_is_read_written_and_filled_and_nothing_else(
    owner, layout, initial, span
):
    (store,) = allocate(owner, layout, initial).stores
    begins = store.read()
    assert begins[0, 0, 0, 0] == (0 if initial is None else 3)
    content = np.random.default_rng(0).normal(size=begins.shape).astype(np.float32)
    store.write(WHOLE, content)
    found = store.read(span)
    assert np.array_equal(found, content[where(span)])
    found += 1
    store.write(span, found)
    content[where(span)] += 1
    assert np.array_equal(store.read(), content)
    store.fill(span)
    content[where(span)] = begins[where(span)]
    assert np.array_equal(store.read(), content)
    store.give_back(span)
    assert np.array_equal(store.read(), content)


@OWNERS
@pytest.mark.parametrize("layout", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("span", SPANS[2:], ids=str)
@pytest.mark.parametrize("most", [1, 7, 50, 4000, 1 << 20])
def test_parts_are_all_of_a_span_in_its_order(owner, layout, span, most):
    (store,) = allocate(owner, layout).stores
    size = 2 * ROWS * SLOTS * WIDTH
    store.write(WHOLE, np.arange(size, dtype=np.float32).reshape(store.read().shape))
    held = store.read(span)
    parts = []
    for part, shape in parts_of(held.shape, most):
        content = store.read(span, part)
        assert content.shape == shape
        assert content.size <= most
        parts.append(content.reshape(-1))
        store.write(span, content + 1, part)
    assert np.array_equal(np.concatenate(parts or [held.reshape(-1)]), held.reshape(-1))
    assert np.array_equal(store.read(span), held + 1)


@OWNERS
def test_what_is_read_is_a_copy_in_any_dtype(owner):
    (store,) = allocate(owner, dtype=DType.BFLOAT16).stores
    found = store.read()
    found[:] = 2
    assert not store.read().astype(np.float32).any()
    store.write(WHOLE, found)
    found[:] = 3  # which is not what was written
    assert (store.read().astype(np.float32) == 2).all()


@OWNERS
def test_states_without_axes_are_read_and_written(owner):
    scalar = state("n", TensorType(DType.INT64, ()), StateKind.COUNTER)
    (store,) = owner(group_states([scalar, scalar]), {}, None).stores
    store.write(WHOLE, np.array([4, 5]))
    store.write(Span(state=1), np.array(7))
    assert store.read().tolist() == [4, 7]
    assert store.read(Span(state=0)).shape == ()
    assert list(parts_of((), 3)) == [((), ())]
    assert store.first(0) == 0
    store.fill(WHOLE)
    assert not store.read().any()


@OWNERS
def test_a_clone_holds_the_same_and_goes_its_own_way(owner):
    memory = allocate(owner)
    memory.stores[0].write(Span(0, 40), np.ones((2, ROWS, 40, WIDTH), np.float32))
    twin = memory.clone([40])
    again = twin.clone([40])
    for made in (twin, again):
        assert np.array_equal(made.stores[0].read(), memory.stores[0].read())
    twin.stores[0].fill(Span(0, 20, 1))
    memory.stores[0].fill(WHOLE)
    assert twin.stores[0].read(Span(0, 40)).sum() == 2 * (ROWS * 40 - 20) * WIDTH
    assert again.stores[0].read(Span(0, 40)).all()
    assert not memory.stores[0].read().any()


@OWNERS
def test_what_is_discarded_begins_anew(owner):
    memory = allocate(owner, initial=(3, 4), reset=ResetRule.KEEP)
    (store,) = memory.stores
    store.write(Span(0, 1), np.zeros((2, ROWS, 1, WIDTH), np.float32))
    memory.discard(ResetRule.INITIAL)
    assert not store.read(Span(0, 1)).any()
    memory.discard(ResetRule.KEEP)
    assert (store.read(Span(state=0)) == 3).all()
    assert (store.read(Span(state=1)) == 4).all()
