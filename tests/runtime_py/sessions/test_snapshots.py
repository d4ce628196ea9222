"""Sessions on disk: as they were, or a clear refusal."""

import os
import re
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from changed_snapshots import LEAD, change_header, reseal
from hand_built import cache_program, write_bundle
from resident_memory import LINUX
from session_contents import contents
from session_contents import random_rows as rows
from stateful_programs import (
    BATCH,
    carry_program,
    linear_program,
    mixed_program,
    session_program,
    total_program,
)

from kvc.runtime import (
    BadSetting,
    BadSnapshot,
    CacheOverflow,
    CannotWrite,
    Closed,
    FileProblem,
    Poisoned,
)
from kvc.runtime.sessions import snapshots
from kvc.runtime.sessions.snapshots import Snapshot
from kvc.schema.model import ResetRule, StateKind


@pytest.mark.parametrize("kind", [None, StateKind.PLAIN, StateKind.RING])
def test_a_restored_session_goes_on_as_the_saved_one(opened, tmp_path, kind):
    program, file = opened(mixed_program(kind)), tmp_path / "s.kvs"
    first, second = rows(5), rows(3)
    with program.session(capacity=64) as session:
        session.run(first)
        session.save(file)
        with program.restore(file) as other:
            assert contents(other) == contents(session)
            assert np.array_equal(other.run(second), session.run(second))
            assert contents(other) == contents(session)
            with pytest.raises(CacheOverflow):
                other.run(rows(57))


def test_what_grows_comes_back(opened, tmp_path):
    program, file = opened(carry_program()), tmp_path / "s.kvs"
    with program.session() as session:
        session.grow(rows(5, 64))
        session.lopsided(rows(2, 64))
        session.save(file)
        with program.restore(file) as other:
            for name in ("k", "v"):
                assert np.array_equal(other.state[name], session.state[name])
            assert [other.state[name].shape[2] for name in ("k", "v")] == [7, 5]


def test_rows_of_a_batch_come_back(opened, tmp_path):
    program, file = opened(session_program((BATCH,), BATCH)), tmp_path / "s.kvs"
    with program.session(batch=3, capacity=100) as session:
        session.write(rows(9, 2, batch=3))
        session.rewind(np.array([0, 2, 9]))
        session.save(file)
        with program.restore(file) as other:
            assert contents(other) == contents(session)
            given = rows(1, 2, batch=3)
            assert other.write(given).tolist() == [9, 7, 0]


def test_kept_states_and_a_new_session_come_back(opened, tmp_path):
    made, arrays = mixed_program()
    kept = replace(made.states[3], reset=ResetRule.KEEP)
    program = opened((replace(made, states=(*made.states[:3], kept)), arrays))
    with program.session() as session:
        session.run(rows(2))
        session.reset()
        session.save(tmp_path / "s.kvs")
        with program.restore(tmp_path / "s.kvs") as other:
            assert contents(other) == contents(session)
            assert other.state["total"].any()


def test_a_capacity_of_fixed_states_comes_back(opened, tmp_path):
    program = opened(cache_program())
    with program.session(capacity=5) as session:
        session.save(tmp_path / "s.kvs")
    assert program.restore(tmp_path / "s.kvs").capacity == 5


def test_a_restored_session_can_go_back(opened, tmp_path):
    program = opened(linear_program(2))
    with program.session() as session:
        session.write(rows(40, 64))
        session.write(rows(20, 64))
        session.save(tmp_path / "s.kvs")
        session.rewind(25)
        with program.restore(tmp_path / "s.kvs") as other:
            other.rewind(25)
            assert contents(other) == contents(session)


def test_a_file_is_as_long_as_the_conversation(opened, tmp_path):
    program, file = opened(linear_program(4)), tmp_path / "s.kvs"
    sizes = []
    with program.session() as session:
        for count in (1, 63):
            session.write(rows(count, 64))
            session.save(file)
            sizes.append(file.stat().st_size)
    token = 4 * 3 * 64 * 4
    assert sizes[0] < token + 2048
    assert sizes[1] - sizes[0] == pytest.approx(63 * token, abs=32)


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize("nbytes", [4, 300, 5000])
def test_a_small_buffer_makes_the_same_file(
    opened, tmp_path, monkeypatch, layout, nbytes
):
    program = opened(linear_program(2, BATCH, 5, layout=layout))
    with program.session(batch=2, capacity=100) as session:
        session.write(rows(9, 5, batch=2))
        session.save(tmp_path / "whole.kvs")
        monkeypatch.setattr(snapshots, "_BUFFER_NBYTES", nbytes)
        session.save(tmp_path / "parts.kvs")
        whole = (tmp_path / "whole.kvs").read_bytes()
        assert (tmp_path / "parts.kvs").read_bytes() == whole
        with program.restore(tmp_path / "whole.kvs") as other:
            assert contents(other) == contents(session)


LIMITED = """
import resource, sys
from pathlib import Path
from kvc.runtime import (load)

def allow(nbytes):
    lines = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) for line in lines if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + nbytes, -1))

file, room = sys.argv[1] + ".kvs", 40 << 20
with load(sys.argv[1]) as program, program.session() as session:
    session.add()
    allow(room)
    session.save(file)
    allow(room + session.state["total"].nbytes)
    with program.restore(file) as other:
        assert (other.state["total"][:: 1 << 16] == 1).all()
        assert len(other.state["total"]) == 1 << 25
"""


@LINUX
def test_a_state_is_saved_and_restored_in_less_memory_than_it_has(tmp_path):
    bundle = write_bundle(tmp_path / "p.kvc", total_program(1 << 25))
    command = [sys.executable, "-c", LIMITED, str(bundle)]
    subprocess.run(command, check=True, timeout=300)


def test_a_poisoned_session_is_not_saved(opened, tmp_path):
    with opened(mixed_program()).session() as session:
        session._states.poisoned = "run"
        with pytest.raises(Poisoned):
            session.save(tmp_path / "s.kvs")
        assert not (tmp_path / "s.kvs").exists()


def test_a_file_of_another_program_names_both(opened, tmp_path):
    one, other = opened(linear_program()), opened(linear_program(2), "q.kvc")
    with one.session() as session:
        session.save(tmp_path / "s.kvs")
    with pytest.raises(BadSnapshot) as caught:
        other.restore(tmp_path / "s.kvs")
    assert one.identity[:16] in str(caught.value)
    assert other.identity[:16] in str(caught.value)


def test_a_file_from_before_there_were_identities_goes_on(opened, tmp_path):
    """It belongs to the digest of the very bundle that it was saved with."""
    program, path = opened(linear_program()), tmp_path / "s.kvs"
    with program.session() as session:
        session.save(path)
    change_header(path, lambda header: header.update(program=program.digest))
    assert program.digest != program.identity
    program.restore(path).close()
    change_header(path, lambda header: header.update(program="0" * 64))
    with pytest.raises(BadSnapshot, match="it is of program 0000000000000000, this"):
        program.restore(path)


@pytest.fixture
def saved(opened, tmp_path):
    """Return a program, and the file of a session of it."""
    program = opened(mixed_program())
    with program.session(capacity=16) as session:
        session.run(rows(3))
        session.save(tmp_path / "s.kvs")
    return program, tmp_path / "s.kvs"


def test_every_flipped_byte_is_noticed(saved):
    program, file = saved
    raw = file.read_bytes()
    for at in range(0, len(raw), 7):
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(BadSnapshot):
            program.restore(file)


def test_every_shorter_and_longer_file_is_noticed(saved):
    program, file = saved
    raw = file.read_bytes()
    for end in [*range(60), *range(60, len(raw), 11)]:
        file.write_bytes(raw[:end])
        with pytest.raises(BadSnapshot):
            program.restore(file)
    file.write_bytes(raw + b"\0")
    with pytest.raises(BadSnapshot):
        program.restore(file)
    file.write_bytes(reseal(raw[:-32] + bytes(4) + raw[-32:]))
    with pytest.raises(BadSnapshot, match=r"its states have \d+ bytes, not"):
        program.restore(file)


def test_a_text_file_and_another_version_say_so(saved):
    program, file = saved
    raw = file.read_bytes()
    file.write_bytes(b"hello" * 20)
    with pytest.raises(BadSnapshot, match="it is not a saved session"):
        program.restore(file)
    file.write_bytes(reseal(raw[:8] + struct.pack("<I", 9) + raw[12:]))
    with pytest.raises(BadSnapshot, match="it has version 9, this kvc reads 0 to 1"):
        program.restore(file)


@pytest.mark.parametrize("nbytes", [2**63, 2**64 - 1, 10**6])
def test_a_header_longer_than_the_file_is_refused(saved, nbytes):
    program, file = saved
    raw = file.read_bytes()
    file.write_bytes(reseal(raw[:12] + struct.pack("<Q", nbytes) + raw[20:]))
    with pytest.raises(BadSnapshot, match="its header has"):
        program.restore(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sizes", {"capacity": 2**40}),
        ("sizes", {"capacity": -1}),
        ("sizes", {"capacity": 17}),
        ("sizes", {"capacity": "16"}),
        ("sizes", {"capacity": 16, "seq": 3}),
        ("sizes", {}),
        ("sizes", [16]),
        ("capacity", 17),
        ("capacity", None),
        ("capacity", "16"),
        ("counted", []),
        ("counted", [-1]),
        ("counted", {}),
        ("lengths", [0, 0, 0]),
        ("lengths", [3, 0, 0, 0]),
        ("lengths", [0, 0, 0, 2**70]),
        ("lengths", None),
        ("written", -1),
        ("written", 2**80),
        ("written", 4),
        ("written", 2.0),
        ("written", True),
        ("states", []),
        ("states", None),
        ("position", [4]),
        ("position", []),
        ("position", 3),
        ("pending", [[1], [2]]),
        ("pending", [[-1]]),
        ("pending", [[1.5]]),
        ("pending", [7]),
        ("pending", None),
        ("pending", [["a"]]),
        ("program", 7),
        ("other", 7),
    ],
)
def test_a_hostile_header_is_refused(saved, name, value):
    program, file = saved
    change_header(file, lambda header: header.update({name: value}))
    with pytest.raises(BadSnapshot):
        program.restore(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(name="x"),
        lambda state: state.update(dtype="int8"),
        lambda state: state.update(shape=[1, 3, -3, 4]),
        lambda state: state.update(nbytes=2**62),
        lambda state: state.clear(),
    ],
)
def test_hostile_states_are_refused(saved, change):
    program, file = saved
    change_header(file, lambda header: change(header["states"][1]))
    with pytest.raises(BadSnapshot, match="its states are not the program's"):
        program.restore(file)


@pytest.mark.parametrize("text", [b"[]", b"{", b"\xff\xff", b"[" * 100_000, b""])
def test_a_header_that_is_no_object_is_refused(saved, text):
    program, file = saved
    raw = file.read_bytes()
    lead = LEAD.pack(raw[:8], 1, len(text))
    file.write_bytes(reseal(lead + text + raw[LEAD.size :]))
    with pytest.raises(BadSnapshot, match="its header is not a JSON object"):
        program.restore(file)


@pytest.mark.parametrize("position", [-1, 17, 2**62])
def test_a_hostile_position_is_refused(saved, position):
    program, file = saved
    raw = file.read_bytes()
    start = LEAD.size + LEAD.unpack(raw[: LEAD.size])[2]
    changed = raw[:start] + struct.pack("<q", position) + raw[start + 8 :]
    file.write_bytes(reseal(changed))
    with pytest.raises(BadSnapshot, match="of a capacity of 16"):
        program.restore(file)


def test_a_file_of_version_0_is_read_as_ever(saved):
    program, file = saved
    change_header(file, lambda header: (header.pop("pending"), header.pop("position")))
    raw = file.read_bytes()
    file.write_bytes(reseal(raw[:8] + struct.pack("<I", 0) + raw[12:]))
    with program.restore(file) as session:
        assert (session.position, session.pending) == ([3], ((),))
    with program.session(capacity=16) as other:
        other.run(rows(3))
        other.save(file)  # a header of today under the number of before
        raw = file.read_bytes()
    file.write_bytes(reseal(raw[:8] + struct.pack("<I", 0) + raw[12:]))
    with pytest.raises(BadSnapshot, match="its header has other parts"):
        program.restore(file)


def test_a_bundle_is_no_saved_session(saved, tmp_path):
    program, _ = saved
    with pytest.raises(BadSnapshot, match=r"it looks like a kvc bundle \(\.kvc\)"):
        program.restore(tmp_path / "p.kvc")


def test_pending_tokens_come_back_until_the_states_change(saved, tmp_path):
    program, file = saved
    with program.restore(file) as session:
        session.leave_pending([(5, 6)])
        session.save(file)
        with program.restore(file) as other, other.fork() as third:
            assert other.pending == third.pending == ((5, 6),)
            other.trim()
            assert other.pending == ((5, 6),)
            third.run(rows(1))
            assert third.pending == ((),)
        session.reset()
        assert session.pending == ((),)


def test_a_missing_file_and_a_folder_are_file_problems(saved, tmp_path):
    program, _ = saved
    with pytest.raises(FileProblem, match="No such file"):
        program.restore(tmp_path / "nothing")
    with pytest.raises(FileProblem):
        program.restore(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileProblem, match="not a plain file"):
        program.restore(tmp_path / "pipe")


@pytest.mark.parametrize("path", [5, None, 1.5, ["s.kvs"]])
def test_what_is_no_path_is_named(saved, path):
    program, _ = saved
    match = re.escape(f"path: expected a str or an os.PathLike, got {path!r}")
    with program.session() as session, pytest.raises(BadSetting, match=match):
        session.save(path)
    with pytest.raises(BadSetting, match=match):
        program.restore(path)


def test_what_cannot_be_written_leaves_the_old_file(saved, tmp_path, monkeypatch):
    program, file = saved
    old = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with program.session() as session:
        session.run(rows(1))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CannotWrite, match="No space left on device"):
            session.save(file)
        monkeypatch.undo()
        with pytest.raises(FileProblem, match=r"cannot write .*there is no folder"):
            session.save(tmp_path / "no" / "s.kvs")
    assert file.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.kvc", "s.kvs"]


def test_a_session_that_cannot_be_filled_is_closed(saved, monkeypatch):
    program, file = saved
    taken = []

    def broken(_, memory):
        taken.append(memory)
        raise KeyboardInterrupt

    monkeypatch.setattr(Snapshot, "load", broken)
    with pytest.raises(KeyboardInterrupt):
        program.restore(file)
    assert taken[0].closed


def test_a_restored_session_may_be_transactional_and_a_closed_program_has_none(saved):
    program, file = saved
    assert program.restore(file, transactional=True)._states.copies.transactional
    program.close()
    with pytest.raises(Closed):
        program.restore(file)
