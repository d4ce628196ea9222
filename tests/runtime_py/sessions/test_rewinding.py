"""Going back, and giving memory back."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hand_built import cache_program, sized_program
from hand_built import program as build_program
from resident_memory import LINUX, is_resident, resident_nbytes
from session_contents import contents, random_rows
from stateful_programs import (
    BATCH,
    carry_program,
    copied_program,
    linear_program,
    mixed_program,
    session_program,
    state,
)

from kvc.runtime import BadSetting, CannotRewind, NoPosition, NotRewindable
from kvc.runtime.sessions.rewinding import _check_rows
from kvc.runtime.states.counter import Counter
from kvc.runtime.states.owner import group_states
from kvc.schema.dtypes import DType
from kvc.schema.model import StateKind
from kvc.schema.types import TensorType

RANDOM = np.random.default_rng(0)
rows = partial(random_rows, width=64)


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize(("width", "kept", "more"), [(2, 5, 3), (64, 40, 60)])
def test_what_was_rewound_has_never_run(opened, layout, width, kept, more):
    program = opened(linear_program(2, width=width, layout=layout, capacity=256))
    first, second, third = rows(kept, width=width), rows(more, width=width), rows(1)
    third = third[..., :width]
    with program.session() as session, program.session() as other:
        for each in (session, other):
            each.write(first)
        session.write(second)
        session.step(third)
        session.rewind(more + 1)
        assert contents(session) == contents(other)
        assert session.position == kept
        for each in (session, other):
            each.write(second)
        assert contents(session) == contents(other)


def test_a_full_cache_can_go_all_the_way_back(opened):
    with opened(linear_program(capacity=64)).session() as session:
        session.write(rows(64))
        session.rewind(64)
        assert session.position == 0
        assert not session.state["cache0"].any()


def test_slots_get_their_initial_content_again(opened):
    start = RANDOM.standard_normal((1, 1, 8, 2), np.float32)
    made, _ = cache_program()
    built = build_program(
        made.methods,
        {"start": start},
        symbols=made.symbols,
        states=(replace(made.states[0], initial=0), made.states[1]),
        cursors=made.cursors,
    )
    with opened(built).session() as session:
        session.prefill(np.full((1, 1, 5, 2), 9, np.float32))
        session.rewind(3)
        assert (session.state["cache"][0, 0, :2] == 9).all()
        assert np.array_equal(session.state["cache"][0, 0, 2:], start[0, 0, 2:])


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (2, 0, 1, 3), (1, 2, 0, 3)])
def test_each_row_goes_back_by_its_own_count(opened, layout):
    program = opened(linear_program(1, BATCH, layout=layout, capacity=128))
    given = rows(64, batch=3)
    with program.session(batch=3) as session:
        session.write(given)
        session.rewind(np.array([0, 64, 37]))
        assert session.position.tolist() == [64, 0, 27]
        cache = session.state["cache0"]
        for row, end in enumerate([64, 0, 27]):
            assert np.array_equal(cache[row, :, :end], given[row, :, :end])
            assert not cache[row, :, end:].any()
        session.write(given[:, :, :2])
        assert np.array_equal(cache[2, :, 27:29], given[2, :, :2])
        session.rewind(2)
        assert session.position.tolist() == [64, 0, 27]
        assert not cache[1].any()


def test_what_grows_becomes_shorter(opened):
    with opened(carry_program()).session() as session:
        first, second = rows(5), rows(3)
        session.grow(first)
        session.rewind(2)
        assert session.position == 3
        grown = session.grow(second)
        expected = np.concatenate([first[:, :, :3], second], 2)
        assert np.array_equal(grown, expected)


@LINUX
def test_what_becomes_shorter_gives_its_memory_back(opened):
    with opened(carry_program()).session() as session:
        for _ in range(16):
            session.grow(rows(64))
        v = session._states.buffers[1]
        assert is_resident(v[0, 2, 64:].ctypes.data)
        session.rewind(1000)
        assert not is_resident(v[0, 2, 64:].ctypes.data)
        assert session.state["v"].shape[2] == 24


def test_a_cache_that_is_copied_back_as_a_whole_goes_back_too(opened):
    with opened(copied_program()).session() as session:
        session.write(rows(5, width=2))
        session._states.buffers[1][:, :, 60] = 7  # a whole copy may have written there
        session.rewind(2)
        assert session.state["cache"][:, :, :3].all()
        assert not session.state["cache"][:, :, 3:].any()


def test_a_tensor_may_say_how_many(opened):
    import torch

    with opened(linear_program()).session() as session:
        session.write(rows(5))
        session.rewind(torch.tensor([2]))
        session.rewind(np.int64(1))
        assert session.position == 2


@pytest.mark.parametrize(
    "count", [-1, 6, 1.0, True, "1", None, [1], np.array([1, 1]), np.array([1.5])]
)
def test_an_impossible_count_changes_nothing(opened, count):
    with opened(linear_program()).session() as session:
        session.write(rows(5))
        before = contents(session)
        with pytest.raises(BadSetting, match="count: expected"):
            session.rewind(count)
        assert contents(session) == before
        assert session.position == 5


@pytest.mark.parametrize("count", ["a", -1, 1.5, np.array([-1])])
def test_an_impossible_count_is_named_where_nothing_goes_back(opened, count):
    with opened(mixed_program(StateKind.PLAIN)).session() as session:
        session.run(rows(1, width=4))
        with pytest.raises(BadSetting, match="count: expected an int of 0 or more"):
            session.rewind(count)


def test_rows_of_one_length_go_back_together(opened):
    program = opened(linear_program(1, BATCH))
    with program.session(batch=2) as session:
        session.write(rows(2, batch=2))
        with pytest.raises(
            BadSetting, match=r"0\.\.2, the tokens of this session in row 1"
        ):
            session.rewind(np.array([2, 3]))
        assert session.position.tolist() == [2, 2]


def test_a_counter_without_rows_goes_back_as_one(opened):
    count = state("count", TensorType(DType.INT64, ()), StateKind.COUNTER)
    (group,) = group_states([count], rows=[BATCH])
    counter = Counter(group, None, [])
    with opened(session_program((BATCH,), BATCH)) as program:
        session = program.session(batch=2)
        session.write(rows(3, batch=2, width=2))
        with pytest.raises(CannotRewind, match="count has no rows of its own"):
            _check_rows(session._engine.program, [*session._states.kinds, counter])


@pytest.mark.parametrize(
    ("kind", "word"), [(StateKind.PLAIN, "plain"), (StateKind.RING, "a ring")]
)
def test_a_state_that_cannot_go_back_is_named_and_nothing_changes(opened, kind, word):
    with opened(mixed_program(kind)).session() as session:
        session.run(rows(3, width=4))
        before = contents(session)
        with pytest.raises(NotRewindable, match=f"state total cannot.*it is {word}"):
            session.rewind(1)
        assert contents(session) == before
        assert session.position == 3


def test_other_counters_go_back_too(opened):
    with opened(mixed_program(None)).session() as session:
        session.run(rows(3, width=4))
        session.run(rows(2, width=4))
        session.rewind(2)
        assert session.state["count"].tolist() == [3]
        assert session.position == 3


def test_a_counter_that_not_all_methods_count_does_not_go_back():
    made = mixed_program(None)[0]
    other = replace(made.methods[0], name="other", writes=(0, 1))
    built = replace(made, methods=(*made.methods, other))
    group = group_states(built.states, built.methods)[2]
    counting = frozenset({"run", "other"})
    reason = Counter(group, None, []).why_lost(counting)
    assert reason == "method other does not advance it together with the position"


def test_a_plain_state_that_no_method_writes_does_not_matter(opened):
    made, arrays = linear_program()
    total = mixed_program()[0].states[3]
    built = replace(made, states=(*made.states, total)), arrays
    with opened(built).session() as session:
        session.write(rows(3))
        session.rewind(1)
        assert session.position == 2


def test_without_position_nothing_goes_back(opened):
    with (
        opened(sized_program()).session() as session,
        pytest.raises(NoPosition, match="no state of this program counts"),
    ):
        session.rewind(1)


@LINUX
def test_memory_appears_with_tokens_and_goes_with_them(opened):
    program = opened(linear_program(8))
    with program.session() as session:
        session.write(rows(64))
        start = resident_nbytes()
        for _ in range(63):
            session.write(rows(64))
        grown = resident_nbytes() - start
        payload = 63 * 64 * 8 * 3 * 64 * 4
        assert 0.9 * payload < grown < 1.3 * payload
        session.rewind(63 * 64)
        assert resident_nbytes() - start < 0.1 * payload


@LINUX
def test_what_grows_gives_memory_back_too(opened):
    with opened(carry_program()).session() as session:
        session.grow(rows(64))
        for _ in range(255):
            session.lopsided(rows(64))
        session.restart(rows(64))
        session.trim()
        pages = [
            session._states.buffers[0][0, head, 4096:].ctypes.data for head in range(3)
        ]
        assert not any(is_resident(page) for page in pages)


@LINUX
def test_opening_a_session_is_quick_and_uses_no_memory(opened):
    program = opened(linear_program(60))
    with program.session() as session:
        session.step(rows(1))
    times, sessions, before = [], [], resident_nbytes()
    for _ in range(20):
        start = time.thread_time()
        sessions.append(program.session())
        times.append(time.thread_time() - start)
    assert min(times) < 0.1  # what walks all rows takes a second
    assert resident_nbytes() - before < 20 << 20
    assert sessions[0].state["cache59"].nbytes == 3 * 32768 * 64 * 4


@LINUX
def test_a_rewind_of_a_few_tokens_is_quick(opened):
    with opened(linear_program(60)).session() as session:
        session.write(rows(64))
        times = []
        for _ in range(20):
            session.write(rows(4))
            start = time.thread_time()
            session.rewind(4)
            times.append(time.thread_time() - start)
        assert min(times) < 0.1  # what walks all rows takes a second
        assert not session.state["cache59"][:, :, 64:].any()


@LINUX
def test_trim_gives_back_what_lies_behind_the_position(opened):
    with opened(linear_program(4)).session() as session:
        session.write(rows(64))
        memory = session._states
        start = resident_nbytes()
        memory.buffers[1][:, :, 64:4096] = 0  # pages that hold nothing
        assert resident_nbytes() - start > 2 << 20
        session.trim()
        assert resident_nbytes() - start < 1 << 20
        assert session.state["cache0"][:, :, :64].all()


def test_trim_gives_back_idle_scratch_and_the_session_goes_on(opened):
    with opened(linear_program()).session() as session:
        given = rows(3)
        session.write(given)
        (idle,) = session._engine._pool._idle
        assert idle.scratch.read(0, 64) != bytes(64)
        session.trim()
        assert idle.scratch.read(0, 64) == bytes(64)
        session.write(given)
        assert session.position == 6
