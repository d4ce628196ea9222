"""Forks of sessions, one case at a time, in every way in which they come about."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fork_ways import WAYS
from hand_built import affine_program, cache_program
from hand_built import program as build_program
from session_contents import contents, random_rows
from stateful_programs import (
    BATCH,
    carry_program,
    linear_program,
    mixed_program,
    session_program,
    state,
)

from kvc.runtime import Busy, Closed, Poisoned
from kvc.runtime.sessions.engine import Engine
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, StateKind
from kvc.schema.types import TensorType

rows = partial(random_rows, width=64)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    WAYS[request.param](monkeypatch)
    return request.param


def wide_program(**settings):
    """Sixteen slots are a page, so that 100 tokens are mapped and not copied."""
    return linear_program(2, capacity=256, **settings)


def test_a_fork_holds_what_its_parent_held_and_goes_its_own_way(opened, way):
    program = opened(wide_program())
    first, left, right = rows(60), rows(30), rows(40)
    with program.session() as parent:
        parent.write(first)
        parent.write(rows(50))
        before = contents(parent)
        with parent.fork() as child:
            assert contents(child) == before
            child.write(left)
            assert contents(parent) == before
            parent.write(right)
            assert np.array_equal(child.state["cache0"][:, :, 110:140], left)
            assert np.array_equal(parent.state["cache0"][:, :, 110:150], right)
            assert np.array_equal(child.state["cache1"][:, :, :60], first)


def test_a_parent_may_be_closed_before_its_children(opened, way):
    program = opened(wide_program())
    parent = program.session()
    parent.write(rows(64))
    child = parent.fork()
    grandchild = child.fork()
    before = contents(parent)
    parent.close()
    assert contents(child) == before
    child.close()
    assert contents(grandchild) == before
    grandchild.write(rows(3))
    grandchild.close()


@pytest.mark.parametrize("kept", [5, 15, 16, 64, 99])
def test_a_second_fork_brings_no_forgotten_tokens_back(opened, way, kept):
    program = opened(wide_program())
    first, second = rows(50), rows(50)
    with program.session() as parent, program.session() as like:
        for session in (parent, like):
            session.write(first)
            session.write(second)
        parent.fork().close()
        for session in (parent, like):
            session.rewind(100 - kept)
        with parent.fork() as child:
            assert contents(child) == contents(like)
            child.rewind(kept)
            assert not child.state["cache0"].any()


@pytest.mark.parametrize("caches", [1, 3])
def test_nor_does_one_of_caches_smaller_than_a_page(opened, way, caches):
    program = opened(linear_program(caches, width=2, capacity=32))
    with program.session() as parent, program.session() as like:
        tokens = random_rows(10, width=2)
        for session in (parent, like):
            session.write(tokens)
        with parent.fork() as before:
            for session in (parent, like):
                session.rewind(4)
            with parent.fork() as after:
                assert contents(after) == contents(like)
            assert before.position == 10
            assert np.array_equal(before.state["cache0"][:, :, :10], tokens)


def test_a_fork_of_a_fork_that_was_written_holds_what_was_written(opened, way):
    program = opened(wide_program())
    parent = program.session()
    parent.write(rows(64))
    child = parent.fork()
    for _ in range(3):
        child.write(rows(1))
        before = contents(child)
        older, child = child, child.fork()
        older.close()
        assert contents(child) == before
        with child.fork() as untouched:
            assert contents(untouched) == before
    child.close()
    parent.close()


def test_a_fork_rewinds_below_its_prefix_and_writes_there(opened, way):
    program = opened(wide_program())
    with program.session() as parent, program.session() as like:
        first, second, third = rows(60), rows(40), rows(64)
        for session in (parent, like):
            session.write(first)
        parent.write(second)
        before = contents(parent)
        with parent.fork() as child:
            child.rewind(40)
            assert contents(child) == contents(like)
            for session in (child, like):
                session.write(third)
            assert contents(child) == contents(like)
            child.reset()
            assert child.position == 0
            assert not child.state["cache1"].any()
            child.trim()
        assert contents(parent) == before


def test_the_parent_may_be_reset_and_read_anew(opened, way):
    program = opened(wide_program())
    with program.session() as parent:
        parent.write(rows(64))
        before = contents(parent)
        with parent.fork() as child:
            parent.reset()
            parent.write(rows(64))
            with parent.fork() as other:
                assert contents(other) == contents(parent)
            assert contents(child) == before


def test_initial_content_is_kept_and_comes_back(opened, way):
    start = np.random.default_rng(0).standard_normal((1, 1, 8, 2), np.float32)
    made, _ = cache_program()
    built = build_program(
        made.methods,
        {"start": start},
        symbols=made.symbols,
        states=(replace(made.states[0], initial=0), made.states[1]),
        cursors=made.cursors,
    )
    with opened(built).session() as parent:
        parent.prefill(np.full((1, 1, 5, 2), 9, np.float32))
        with parent.fork() as child:
            assert contents(child) == contents(parent)
            child.rewind(3)
            assert np.array_equal(child.state["cache"][:, :, 2:], start[:, :, 2:])
            child.reset()
            assert np.array_equal(child.state["cache"], start)
        assert (parent.state["cache"][:, :, :5] == 9).all()


def test_large_initial_content_is_shared(opened, way):
    start = np.arange(1 << 16, dtype=np.float32)
    made, _ = affine_program()
    kind = TensorType(DType.FLOAT32, start.shape)
    table = state("table", kind, StateKind.PLAIN, initial=1)
    data = {"scale": np.ones(4, np.float32), "start": start}
    built = build_program(made.methods, data, symbols=made.symbols, states=[table])
    with opened(built).session() as parent, parent.fork() as child:
        assert np.array_equal(child.state["table"], start)
        with child.fork() as grandchild:
            child.reset()
            assert np.array_equal(child.state["table"], start)
            assert np.array_equal(grandchild.state["table"], start)
        if way == "apart":
            assert parent.residency().own == 0


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (2, 0, 1, 3)])
def test_rows_that_end_apart_are_forked_each(opened, way, layout):
    program = opened(linear_program(1, BATCH, layout=layout, capacity=128))
    given = rows(64, batch=3)
    with program.session(batch=3) as parent:
        parent.write(given)
        parent.fork().close()
        parent.rewind(np.array([0, 64, 37]))
        with parent.fork() as child:
            assert contents(child) == contents(parent)
            child.write(given[:, :, :2])
            assert child.position.tolist() == [66, 2, 29]
            with child.fork() as grandchild:
                assert contents(grandchild) == contents(child)
        assert not parent.state["cache0"][1].any()


@pytest.mark.parametrize("kind", [StateKind.PLAIN, StateKind.RING])
def test_states_that_are_overwritten_are_each_sessions_own(opened, way, kind):
    program = opened(mixed_program(kind))
    with program.session() as parent:
        parent.run(random_rows(3))
        with parent.fork() as child, parent.fork() as other:
            before = contents(parent)
            child.run(random_rows(2))
            assert contents(parent) == contents(other) == before
            assert child.state["count"] == 5
            with child.fork() as grandchild:
                assert contents(grandchild) == contents(child)


def test_what_a_reset_keeps_is_forked_too(opened, way):
    built, data = mixed_program()
    kept = tuple(
        replace(state, reset=ResetRule.KEEP)
        if state.name in ("count", "cache")
        else state
        for state in built.states
    )
    program = opened((replace(built, states=kept), data))
    with program.session() as parent:
        parent.run(random_rows(3))
        with parent.fork() as child:
            child.reset()
            assert child.state["count"] == 3
            assert np.array_equal(child.state["cache"], parent.state["cache"])
            assert not child.state["total"].any()


def test_states_that_grow_keep_their_length(opened, way):
    program = opened(carry_program())
    with program.session(capacity=256) as parent:
        parent.grow(rows(64))
        parent.grow(rows(36))
        before = contents(parent)
        with parent.fork() as child:
            assert contents(child) == before
            more = rows(9)
            longer = child.grow(more)
            assert longer.shape == (1, 3, 109, 64)
            assert np.array_equal(longer[:, :, 100:], more)
            assert contents(parent) == before
            child.restart(rows(2))
            assert child.position == 2
            with child.fork() as grandchild:
                assert contents(grandchild) == contents(child)
        assert contents(parent) == before


def test_a_position_that_the_session_counts_goes_along(opened, way):
    program = opened(session_program((1,)))
    with program.session(capacity=64) as parent:
        parent.write(random_rows(5, width=2))
        with parent.fork() as child:
            assert child.write(random_rows(1, width=2)) == 5
            assert child.position == 6
            assert child.capacity == parent.capacity == 64
        assert parent.position == 5


def test_a_fork_is_saved_and_restored(opened, way, tmp_path):
    program = opened(wide_program())
    with program.session() as parent:
        parent.write(rows(64))
        with parent.fork() as child:
            child.write(rows(5))
            child.save(tmp_path / "child.kvcs")
            with program.restore(tmp_path / "child.kvcs") as again:
                assert contents(again) == contents(child)
                with again.fork() as other:
                    assert contents(other) == contents(child)


def test_a_fork_is_transactional_like_its_parent_or_as_told(opened):
    program = opened(mixed_program())
    with program.session(transactional=True) as parent, parent.fork() as like:
        assert like._states.copies.transactional
        with parent.fork(transactional=False) as other:
            assert not other._states.copies.transactional


def test_a_session_that_is_half_written_is_not_forked(opened):
    with opened(mixed_program()).session() as parent:
        parent._states.poisoned = "run"
        with pytest.raises(Poisoned):
            parent.fork()


def test_a_closed_session_is_not_forked(opened):
    session = opened(mixed_program()).session()
    session.close()
    with pytest.raises(Closed):
        session.fork()


def test_frames_stay_bound_where_the_first_fork_moves_memory(opened, way):
    with opened(wide_program()).session() as parent:
        parent.step(rows(1))
        look = parent.state["cache0"]
        address = look.ctypes.data
        parent.write(rows(64))
        parent.fork().close()
        new = rows(1)
        parent.step(new)
        assert np.array_equal(look[:, :, 65:66], new)
        assert parent.state["cache0"].ctypes.data == address


def test_forks_in_many_threads_disturb_nobody(opened):
    program = opened(wide_program())
    with program.session() as parent:
        parent.write(rows(64))
        before = contents(parent)
        children = [parent.fork() for _ in range(8)]

        def talk(child):
            mine = rows(30)
            for i in range(30):
                child.step(mine[:, :, i : i + 1])
                with child.fork() as other:
                    other.rewind(20)
            return np.array_equal(child.state["cache0"][:, :, 64:94], mine)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(talk, children))
        assert contents(parent) == before
        for child in children:
            child.rewind(30)
            assert contents(child) == before
            child.close()


def test_a_session_that_runs_is_not_forked(opened, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()
    call = Engine.call

    def slow(*arguments):
        inside.set()
        assert go_on.wait(20)
        return call(*arguments)

    with opened(wide_program()).session() as session, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(Engine, "call", slow)
        running = pool.submit(session.call, "write", rows(3))
        try:
            assert inside.wait(20)
            for use in (session.fork, session.residency):
                with pytest.raises(Busy, match="running write"):
                    use()
        finally:
            go_on.set()
        running.result()
