"""Sessions: their own states, one thread at a time."""

import threading

import numpy as np
import pytest
from hand_built import (
    CACHE_TYPE,
    affine_program,
    cache_program,
    cache_states,
    copied_update_program,
    failing_program,
    look_graph,
    method,
    program,
    sized_program,
    write_bundle,
)

from kvc.runtime import (
    Busy,
    CacheOverflow,
    Closed,
    IndexOutOfRange,
    InputMismatch,
    NoPosition,
    UnknownName,
    load,
)
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, State, StateKind
from kvc.schema.types import TensorType


@pytest.fixture
def loaded(tmp_path):
    with load(write_bundle(tmp_path / "c.kvc", cache_program())) as opened:
        yield opened


@pytest.fixture
def session(loaded):
    with loaded.session() as opened:
        yield opened


def rows(*values):
    return np.repeat(np.array(values, np.float32), 2).reshape(1, 1, -1, 2)


def column(cache):
    return cache[0, 0, :, 0].tolist()


def test_decode_sees_the_cache_that_prefill_wrote(session):
    session.prefill(rows(1, 2, 3))
    assert column(session.decode(rows(4))) == [1, 2, 3, 4, 0, 0, 0, 0]
    assert session.position == 4


def test_another_method_sees_an_update_in_place(session):
    session.prefill(rows(1, 2))
    assert column(session.look()) == [2, 3, 1, 1, 1, 1, 1, 1]


def test_returned_states_are_copies(session):
    session.prefill(rows(1, 2))[:] = 7
    assert column(session.look()) == [2, 3, 1, 1, 1, 1, 1, 1]


def test_two_sessions_are_independent(loaded):
    with loaded.session() as a, loaded.session() as b:
        a.prefill(rows(1, 2))
        b.prefill(rows(9))
        assert column(a.decode(rows(3))) == [1, 2, 3, 0, 0, 0, 0, 0]
        assert column(b.decode(rows(8))) == [9, 8, 0, 0, 0, 0, 0, 0]


def test_two_threads_on_two_sessions_give_the_same_numbers(loaded):
    def run(results):
        with loaded.session() as session:
            session.prefill(rows(1, 2))
            for token in range(6):
                results.append(column(session.decode(rows(token))))
            session.reset()

    outcomes = [[] for _ in range(4)]
    threads = [threading.Thread(target=run, args=(o,)) for o in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes[0]) == 6
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_reset_brings_the_initial_state_back(session):
    session.prefill(rows(1, 2, 3))
    session.reset()
    assert session.position == 0
    assert column(session.look()) == [1] * 8
    assert column(session.decode(rows(5))) == [5, 0, 0, 0, 0, 0, 0, 0]


def test_reset_restores_an_initial_value_and_keeps_what_it_must(tmp_path):
    start = np.arange(16, dtype=np.float32).reshape(CACHE_TYPE.dims)
    _, other = cache_states(ResetRule.KEEP)
    cache = State(
        "cache",
        CACHE_TYPE,
        StateKind.PLAIN,
        None,
        (0, 1, 2, 3),
        0,
        ResetRule.INITIAL,
        cursor=None,
    )
    made = cache_program()[0]
    built = program(
        made.methods,
        {"start": start},
        symbols=made.symbols,
        states=(cache, other),
        cursors=made.cursors,
    )
    with load(write_bundle(tmp_path / "i.kvc", built)) as opened:
        session = opened.session()
        assert np.array_equal(session.state["cache"], start)
        session.prefill(rows(50, 60))
        session.reset()
        assert np.array_equal(session.state["cache"], start)
        assert session.state["position"].tolist() == [2]


def test_a_state_may_lie_in_memory_in_another_order(tmp_path):
    cache, position = cache_states()
    turned = State(
        cache.name, cache.type, cache.kind, 2, (0, 2, 1, 3), None, cache.reset, 0
    )
    made = cache_program()[0]
    built = program(
        made.methods,
        symbols=made.symbols,
        states=(turned, position),
        cursors=made.cursors,
    )
    with load(write_bundle(tmp_path / "l.kvc", built)) as opened:
        session = opened.session()
        session.prefill(rows(1, 2))
        assert column(session.decode(rows(3))) == [1, 2, 3, 0, 0, 0, 0, 0]


def test_overflow_passes_through_with_its_facts_and_writes_nothing(session):
    session.prefill(rows(1, 2, 3, 4, 5, 6))
    with pytest.raises(CacheOverflow) as caught:
        session.prefill(rows(7, 8, 9))
    assert (caught.value.start, caught.value.count, caught.value.capacity) == (6, 3, 8)
    assert session.position == 6
    assert column(session.decode(rows(7))) == [1, 2, 3, 4, 5, 6, 7, 0]


def test_a_failing_kernel_names_method_instruction_and_source_line(tmp_path):
    with load(write_bundle(tmp_path / "f.kvc", failing_program())) as opened:
        with pytest.raises(IndexOutOfRange) as caught:
            opened.pick(np.array([5]))
        assert "method pick, instruction 1, aten::index_select" in str(caught.value)
        assert " at model:31 (table): index 5 is out of range" in str(caught.value)
        assert opened.pick(np.array([1])).tolist() == [-1.0]


def test_a_second_thread_finds_the_session_busy(session):
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        """An argument that stops in the middle of a call, while it is looked at."""

        @property
        def __class__(self):
            inside.set()
            go_on.wait(5)
            return float

    def run():
        with pytest.raises(Exception, match="expected"):
            session.decode(Slow())

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(5)
    with pytest.raises(Busy, match="is running decode in another thread"):
        session.look()
    for use in (
        session.close,
        session.reset,
        session.trim,
        lambda: session.rewind(0),
        lambda: session.save("never"),
        lambda: session.position,
    ):
        with pytest.raises(Busy):
            use()
    go_on.set()
    thread.join()
    session.look()


def test_a_closed_session_says_so(loaded):
    session = loaded.session()
    session.prefill(rows(1))
    session.close()
    session.close()
    with pytest.raises(Closed, match="the session has been closed"):
        session.look()
    with pytest.raises(Closed):
        _ = session.state["cache"]


def test_a_session_of_a_closed_program_says_so(loaded):
    session = loaded.session()
    loaded.close()
    with pytest.raises(Closed, match="the program has been closed"):
        session.look()
    session.close()


def test_a_look_at_a_state_is_live_and_read_only(session):
    look = session.state["cache"]
    session.prefill(rows(3))
    assert look[0, 0, 0, 0] == 3
    assert not look.flags.writeable
    with pytest.raises(UnknownName, match="no state 'kv'; it has: cache, position"):
        _ = session.state["kv"]


def test_capacity_and_position_come_from_the_program(tmp_path, session):
    assert session.capacity == 8
    with load(write_bundle(tmp_path / "a.kvc", affine_program())) as opened:
        other = opened.session()
        assert other.capacity is None
        with pytest.raises(NoPosition):
            _ = other.position


def test_a_method_does_not_take_the_place_of_the_classs_own_name(tmp_path):
    built = program(
        [method("close", look_graph(), [], reads=(0,))],
        states=cache_states(),
        cursors=cache_program()[0].cursors,
    )
    with load(write_bundle(tmp_path / "n.kvc", built)) as opened:
        session = opened.session()
        assert column(session.call("close")) == [1] * 8
        session.close()


def test_an_update_that_is_not_in_place_leaves_its_operand(tmp_path):
    path = write_bundle(tmp_path / "u.kvc", copied_update_program())
    with load(path) as opened, opened.session() as session:
        assert column(session.peek(rows(5))) == [5, 2, 4, 6, 8, 10, 12, 14]
        assert column(session.state["cache"]) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_session_chooses_the_sizes_of_its_states(tmp_path):
    with load(write_bundle(tmp_path / "s.kvc", sized_program())) as opened:
        assert opened.session().state["total"].shape == (1, 64)
        small = opened.session(capacity=4)
        assert small.add(np.ones((1, 4), np.float32)).tolist() == [[1, 1, 1, 1]]
        assert small.add(np.ones((1, 4), np.float32)).tolist() == [[2, 2, 2, 2]]
        with pytest.raises(Exception, match="here batch = 1, capacity = 4"):
            small.add(np.ones((1, 5), np.float32))
        with pytest.raises(Exception, match=r"capacity: expected 1\.\.64, got 65"):
            opened.session(capacity=65)
        with pytest.raises(UnknownName, match="it has: batch, capacity"):
            opened.session(length=3)


def test_opening_a_session_reserves_memory_without_using_it(tmp_path):
    huge = State(
        "huge",
        TensorType(DType.FLOAT32, (1 << 30,)),
        StateKind.PLAIN,
        None,
        (0,),
        None,
        ResetRule.INITIAL,
        cursor=None,
    )
    made = affine_program()[0]
    built = program(
        made.methods,
        {"scale": np.ones(4, np.float32)},
        symbols=made.symbols,
        states=[huge],
    )
    with load(write_bundle(tmp_path / "h.kvc", built)) as opened:
        sessions = [opened.session() for _ in range(8)]
        assert sessions[7].state["huge"][-1] == 0


def test_changes_count_what_changed_the_states(opened):
    session = opened(cache_program()).session()
    rows = np.ones((1, 1, 1, 2), np.float32)
    counts = [session.changes]
    for change in (
        lambda: session.decode(rows),
        lambda: session.look(),
        lambda: session.rewind(0),
        lambda: session.rewind(1),
        lambda: session.reset(),
        lambda: session.trim(),
        lambda: session.fork().decode(rows),
        lambda: session.position,
    ):
        change()
        counts.append(session.changes)
    assert counts == [0, 1, 1, 1, 2, 3, 3, 3, 3]
    with pytest.raises(InputMismatch):
        session.decode(rows[0])
    assert session.changes == 3


def test_something_may_run_before_whoever_uses_a_session(opened):
    session = opened(cache_program()).session()
    session.prefill(np.ones((1, 1, 5, 2), np.float32))
    session.before_use(lambda: session.before_use(None) or session.rewind(2))
    assert session.position == 3
    session.rewind(1)
    session.before_use(lambda: session.before_use(None) or session.rewind(2))
    assert session.state["position"][0] == 0
