"""Calls of some rows of a session; parts of rows; one binding for many sessions."""

import threading

import numpy as np
import pytest
from drafting_rows import write_checked
from made_once import MadeOnce
from ragged_models import VOCAB
from session_contents import random_rows
from stateful_programs import BATCH, linear_program, mixed_program

from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    NotRewindable,
    StateMismatch,
    load,
)
from kvc.runtime.execution import frames
from kvc.runtime.states.addresses import StateAddresses

KINDS = ("cache", "rings", "sums")
CAPACITY = {"cache": 32, "sums": 32}
TOKENS = np.random.default_rng(2).integers(0, VOCAB, (4, 20))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("some-rows")
    made = MadeOnce(lambda kind: load(write_checked(folder / f"{kind}.kvc", kind)))
    yield made
    for program in made.values():
        program.close()


def contents(session, row):
    return [array[row].tobytes() for array in session.state.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_called_apart_are_as_rows_called_together(programs, kind):
    program = programs[kind]
    with program.session(batch=4) as whole, program.session(batch=4) as parts:
        prompt, counts = TOKENS[:, :9], np.array([9, 4, 1, 7])
        together = whole.prefill(prompt, counts)
        for first, count in ((2, 2), (0, 1), (1, 1)):
            rows = slice(first, first + count)
            before = [contents(parts, row) for row in range(4)]
            some = parts.some_rows(first, count)
            made = some.prefill(prompt[rows], counts[rows])
            np.testing.assert_array_equal(made, together[rows])
            assert some.position.tolist() == counts[rows].tolist()
            others = [row for row in range(4) if not first <= row < first + count]
            assert [contents(parts, row) for row in others] == [
                before[o] for o in others
            ]
        for turn in range(9, 13):
            token = TOKENS[:, turn : turn + 1]
            active = np.array([True, turn % 2 == 0, True, True])
            together = whole.decode(token, active)
            made = parts.some_rows(1, 3).decode(token[1:], active[1:])
            np.testing.assert_array_equal(made[active[1:]], together[1:][active[1:]])
            parts.some_rows(0).decode(token[:1])
        assert [contents(parts, r) for r in range(4)] == [
            contents(whole, r) for r in range(4)
        ]


def test_one_binding_serves_sessions_forks_and_rows(programs, monkeypatch):
    program, bound = programs["cache"], []
    bind = frames.bind_graph
    monkeypatch.setattr(
        "kvc.runtime.calls.contexts.bind_graph",
        lambda *given: (bound.append(given), bind(*given))[1],
    )
    token, expected = TOKENS[:1, :1], None
    for rows in (1, 4):
        bound.clear()
        with program.session(batch=rows, capacity=32) as session:
            for number in range(rows):
                logits = session.some_rows(number).prefill(TOKENS[:1, :3])
                expected = logits if expected is None else expected
                np.testing.assert_array_equal(logits, expected)
            for number in range(rows):
                session.some_rows(number).decode(token)
            with session.fork() as fork:
                fork.some_rows(0).decode(token)
                assert fork.position.tolist() == [5, *[4] * (rows - 1)]
            assert session.position.tolist() == [4] * rows
        with program.session(batch=rows, capacity=32) as session:
            session.some_rows(0).prefill(TOKENS[:1, :3])
        assert len(bound) == 2  # one of each method


def test_what_stands_in_for_states_is_reserved_once(programs, monkeypatch):
    """A frame for each of many sizes would else take the addresses of all states."""
    made, stand_in = [], StateAddresses.stand_in
    monkeypatch.setattr(
        StateAddresses,
        "stand_in",
        lambda places: (made.append(places), stand_in(places))[1],
    )
    with programs["cache"].session(batch=4, capacity=40) as session:
        for count in (1, 2, 3, 4):
            session.some_rows(0, count).prefill(TOKENS[:count, :count])
        session.decode(TOKENS[:, :1])
        assert session.position.tolist() == [11, 10, 8, 5]
    assert len(made) == 1


def test_what_is_prepared_need_not_be_bound_at_a_call(programs, monkeypatch):
    program, bound = programs["rings"], []
    bind = frames.bind_graph
    monkeypatch.setattr(
        "kvc.runtime.calls.contexts.bind_graph",
        lambda *given: (bound.append(given), bind(*given))[1],
    )
    with program.session(batch=3) as session, program.session(batch=3) as plain:
        session.prepare("prefill", np.zeros((3, 11), int))
        session.some_rows(1, 2).prepare("decode", np.zeros((2, 1), int))
        assert session.position.tolist() == [0, 0, 0]
        assert len(bound) == 2
        made = session.prefill(TOKENS[:3, :11])
        made = session.some_rows(0, 2).decode(TOKENS[:2, 12:13])
        assert len(bound) == 2
        plain.prefill(TOKENS[:3, :11])
        expected = plain.decode(TOKENS[:3, 12:13])
        np.testing.assert_array_equal(made, expected[:2])


def test_a_call_of_rows_that_fails_changes_no_row(programs):
    program = programs["cache"]
    with program.session(batch=2, capacity=8) as session:
        session.prefill(TOKENS[:2, :6])
        before = [contents(session, row) for row in range(2)]
        with pytest.raises(CacheOverflow) as caught:
            session.some_rows(1).prefill(TOKENS[:1, :3])
        assert (caught.value.row, caught.value.start) == (1, 6)
        assert [contents(session, row) for row in range(2)] == before
        session.some_rows(1).prefill(TOKENS[:1, :2])
        assert session.position.tolist() == [6, 8]


@pytest.mark.parametrize(
    ("first", "count", "said"),
    [(4, 1, "first: expected 0..3"), (3, 2, "count: expected 1..1"),
     (0, 0, "count: expected 1..4"), ("0", 1, "first"), (0, 1.5, "count")],
)  # fmt: skip
def test_rows_that_are_not_there_are_refused(programs, first, count, said):
    refused = pytest.raises(BadSetting, match=said)
    with programs["cache"].session(batch=4) as session, refused:
        session.some_rows(first, count)


def test_methods_that_change_all_rows_are_refused(opened):
    program = opened(linear_program(2, BATCH, capacity=64))
    with program.session(batch=2) as session:
        with pytest.raises(StateMismatch, match="row lengths"):
            session.some_rows(0).write(random_rows(3, batch=1, width=64))
        assert session.position.tolist() == [0, 0]


@pytest.mark.parametrize("layout", [(2, 0, 1, 3)])
def test_rows_that_lie_between_others_are_refused(opened, layout):
    program = opened(linear_program(2, BATCH, layout=layout, capacity=64))
    refused = pytest.raises(StateMismatch, match="one after the other")
    with program.session(batch=2) as session, refused:
        session.some_rows(0)


def test_a_position_of_all_rows_has_no_rows(opened):
    refused = pytest.raises(StateMismatch, match="rows of its own")
    with opened(mixed_program()).session() as session, refused:
        session.some_rows(0)


@pytest.mark.parametrize("kind", ["cache", "rings"])
@pytest.mark.parametrize("tokens", [0, 3, 6, 7])
def test_the_first_tokens_of_a_row_are_copied(programs, kind, tokens):
    program, prompt = programs[kind], TOKENS[:1, :7]
    with program.session(batch=3) as session, program.session() as alone:
        session.prefill(TOKENS[:3, :5])
        alone.prefill(prompt)
        session.admit(1, alone, tokens=tokens)
        assert session.position.tolist() == [5, tokens, 5]
        session.copy_row(1, 2, tokens=tokens)
        assert session.position.tolist() == [5, tokens, tokens]
        with program.session() as fresh:
            if tokens:
                fresh.prefill(prompt[:, :tokens])
            expected = fresh.decode(TOKENS[:1, 9:10])
        for row in (1, 2):
            made = session.some_rows(row).decode(TOKENS[:1, 9:10])
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_copies_of_a_row_do_not_go_with_a_part_of_it(programs, kind):
    with programs[kind].session(batch=2, snapshots=4) as session:
        session.prefill(TOKENS[:2, :5])
        for turn in range(5, 20):
            session.some_rows(0).decode(TOKENS[:1, turn : turn + 1])
        before = contents(session, 1)
        if kind == "sums":
            with pytest.raises(NotRewindable, match="do not go with it"):
                session.copy_row(0, 1, tokens=18)
            assert contents(session, 1) == before
            assert session.position.tolist() == [20, 5]
        else:
            session.copy_row(0, 1, tokens=18)
            assert session.position.tolist() == [20, 18]
        session.copy_row(0, 0, tokens=18)  # the row itself has them
        assert session.position.tolist()[0] == 18


def test_a_part_that_a_row_cannot_go_back_to_is_refused(programs):
    program = programs["sums"]
    with program.session(batch=2) as session:
        session.prefill(TOKENS[:2, :5])
        before = [contents(session, row) for row in range(2)]
        with pytest.raises(NotRewindable):
            session.copy_row(0, 1, tokens=3)
        with pytest.raises(BadSetting, match=r"tokens: expected 0\.\.5"):
            session.copy_row(0, 1, tokens=6)
        assert [contents(session, row) for row in range(2)] == before
        session.copy_row(0, 1, tokens=5)
        assert contents(session, 1) == contents(session, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_go_from_session_to_session_in_several_threads(programs, kind):
    """Sessions that fork and close, and rows of larger ones, get what one gets."""
    program, found = programs[kind], []

    def logits(session, row):
        made = [session.prefill(TOKENS[row : row + 1, :5])]
        places = range(5, 9)
        return made + [session.decode(TOKENS[row : row + 1, n : n + 1]) for n in places]

    expected = []
    for row in range(4):
        with program.session(batch=1, capacity=CAPACITY.get(kind)) as session:
            expected.append(logits(session, row))

    def works(number):
        for turn in range(12):
            row, batch = (number + turn) % 4, 1 + turn % 3
            with program.session(batch=batch, capacity=CAPACITY.get(kind)) as session:
                with session.fork() as fork:
                    made = logits(fork.some_rows(batch - 1), row)
                again = logits(session.some_rows(0), row)
            pairs = zip(expected[row] * 2, made + again, strict=True)
            found.extend(np.array_equal(one, other) for one, other in pairs)
            if turn % 5 == number:
                program.release()

    threads = [threading.Thread(target=works, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 * 12 * 10
    assert all(found)
