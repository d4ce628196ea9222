"""What a session knows of its rings: numbers, slots, what a file must say of them."""

import hashlib
import json
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from ring_programs import SLOTS, WINDOW, ring_program
from session_contents import contents

from kvc.runtime import BadSnapshot, CallTooLong, NotRewindable
from kvc.runtime.states.owner import Group
from kvc.runtime.states.ring import Ring

LONGEST = SLOTS - WINDOW + 1
KEYS = ring_program()[0].states[1]
RING = Ring(Group((1,), (KEYS,), frozenset(), True), SimpleNamespace(slots=SLOTS), [])
LEAD = struct.Struct("<8sIQ")


def rows(count, seed=0):
    shape = (1, 2, count, 4)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attended(all_rows):
    """Return what a query at each position gives, in plain numpy."""
    out = []
    for place in range(all_rows.shape[2]):
        seen = all_rows[:, :, max(0, place - WINDOW + 1) : place + 1]
        scores = np.einsum("bhd,bhsd->bhs", all_rows[:, :, place], seen) / 2
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out.append(np.einsum("bhs,bhsd->bhd", shares, seen))
    return np.stack(out, 2)


@pytest.mark.parametrize(
    ("start", "reached", "most"),
    [(0, 0, None), (3, 12, None), (20, 20, 8), (15, 20, 3), (12, 20, 0), (5, 20, 0)],
)
def test_how_much_a_row_may_forget(start, reached, most):
    assert RING.longest == LONGEST == 8
    RING.reached = [reached]
    found = RING.most_rewindable([start])
    assert found == [start if most is None else most]


def test_calls_of_every_length_up_to_the_longest(opened):
    text = rows(80)
    expected, dice = attended(text), np.random.default_rng(2)
    with opened(ring_program()).session() as session:
        assert session.longest_call == LONGEST
        assert session.capacity is None
        while (start := session.position.item()) < 70:
            end = start + int(dice.integers(1, LONGEST + 1))
            found = session.run(text[:, :, start:end])
            np.testing.assert_allclose(found, expected[:, :, start:end], atol=1e-5)


def test_a_longer_call_is_refused_before_anything_is_written(opened):
    with opened(ring_program()).session() as session:
        session.run(rows(3))
        before = contents(session)
        with pytest.raises(CallTooLong) as caught:
            session.run(rows(LONGEST + 1))
        assert caught.value.longest == LONGEST
        assert caught.value.count == LONGEST + 1
        assert contents(session) == before


def test_a_ring_whose_window_is_not_said_goes_back_nowhere(opened):
    program, arrays = ring_program()
    states = tuple(replace(state, window=None) for state in program.states)
    unknown = replace(program, states=states), arrays
    with opened(unknown).session() as session:
        assert session.longest_call is None
        session.run(rows(SLOTS))
        for ask in (lambda: session.rewindable, lambda: session.rewind(1)):
            with pytest.raises(NotRewindable, match="it is a ring without a window"):
                ask()


def test_a_session_may_have_a_capacity(opened):
    with opened(ring_program(40)).session() as session:
        assert session.capacity == 40
    with opened(ring_program()).session(capacity=9) as session:
        assert session.capacity == 9


@pytest.mark.parametrize("start", [0, 1500, 4000, 5000, 8000])
def test_a_fork_has_what_was_written_round_the_end(opened, start):
    """The ring has many pages: those that were written since the last fork are few."""
    slots = 4096
    with opened(ring_program(slots=slots)).session() as session:
        for _ in range(start // 500):
            session.run(rows(500))
        session.fork().close()
        for count in (1, 200, 3):
            session.run(rows(count, count))
            with session.fork() as twin:
                assert contents(twin) == contents(session)
                assert twin.rewindable.tolist() == session.rewindable.tolist()
                twin.run(rows(7))
            with session.fork() as other:
                assert contents(other) == contents(session)


def changed(path, change):
    """Rewrite a file with another header, and the digest that belongs to it."""
    raw = path.read_bytes()
    magic, version, nbytes = LEAD.unpack(raw[: LEAD.size])
    header = json.loads(raw[LEAD.size : LEAD.size + nbytes])
    change(header)
    text = json.dumps(header).encode()
    whole = LEAD.pack(magic, version, len(text)) + text
    whole += raw[LEAD.size + nbytes : -32]
    path.write_bytes(whole + hashlib.sha256(whole).digest())


@pytest.mark.parametrize(
    ("reached", "text"),
    [
        ([], "its states are not the program's"),
        ([19], r"reached \[19\] at position \[20\]"),
        ([20, 20], r"reached \[20, 20\] at position"),
        ([-1], r"reached is \[-1\]"),
        ([2.5], r"reached is \[2.5\]"),
        (20, "reached is 20"),
        (None, "reached is None"),
        ([11], "its states are not the program's"),
    ],
)
def test_a_file_that_says_something_else_is_refused(opened, tmp_path, reached, text):
    path = tmp_path / "s.kvcs"
    program = opened(ring_program())
    with program.session() as session:
        for _ in range(4):
            session.run(rows(5))
        session.save(path)
    changed(path, lambda header: header.update(reached=reached))
    with pytest.raises(BadSnapshot, match=text):
        program.restore(path)


def test_a_file_that_says_nothing_is_refused(opened, tmp_path):
    path = tmp_path / "s.kvcs"
    program = opened(ring_program())
    with program.session() as session:
        session.save(path)
    changed(path, lambda header: header.update(reached=[]))
    with pytest.raises(BadSnapshot, match=r"reached \[\] at position \[0\]"):
        program.restore(path)


def test_a_file_holds_slots_that_have_been_written(opened, tmp_path):
    path = tmp_path / "s.kvcs"
    program = opened(ring_program())
    sizes = []
    for count in (0, 4, 8, 20):
        with program.session() as session:
            for start in range(0, count, 4):
                session.run(rows(4, start))
            session.save(path)
            sizes.append(path.stat().st_size)
            with program.restore(path) as again:
                assert again.rewindable.tolist() == session.rewindable.tolist()
                for name in session.state:
                    assert np.array_equal(again.state[name], session.state[name])
    slot = 2 * 2 * 4 * 4  # both rings
    assert sizes[2] - sizes[1] == pytest.approx(4 * slot, abs=8)
    assert sizes[3] - sizes[0] == pytest.approx(SLOTS * slot, abs=24)
