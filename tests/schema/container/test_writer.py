import errno
import fcntl
import os
from contextlib import suppress

import pytest
from sample_programs import SAMPLE_BLOBS, tiny_program, write_tiny

from kvc.schema.container import BundleFile, BundleWriter, default_align
from kvc.schema.errors import BadProgram, OutputProblem, OutputUnsynced

CALLS = ("open", "write", "fsync", "rename", "lseek")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_blobs_lie_at_multiples_of_their_alignment(path):
    with BundleWriter(path) as writer:
        assert writer.append(b"a", 64) == 128
        assert writer.append(b"b", 64) == 192
        assert writer.append(memoryview(b"c" * 10), 4096) == 4096
        assert writer.append(b"", 64) == 4160


def test_default_alignment_grows_with_the_blob():
    sizes = (0, 4095, 4096, (4 << 20) - 1, 4 << 20)
    assert [default_align(n) for n in sizes] == [64, 64, 4096, 4096, 65536]


def test_leaving_without_finish_leaves_nothing(path, tmp_path):
    with BundleWriter(path) as writer:
        writer.append(b"a", 64)
    assert names(tmp_path) == []


def fail_after_a_blob(path):
    with BundleWriter(path) as writer:
        writer.append(b"a", 64)
        raise KeyError


def test_an_exception_leaves_the_old_file(path, tmp_path):
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        fail_after_a_blob(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.kvc"]


def test_a_program_that_does_not_fit_its_blobs_is_refused(path, tmp_path):
    with BundleWriter(path) as writer:
        writer.append(SAMPLE_BLOBS[1], 4096)
        with pytest.raises(BadProgram):
            writer.finish(tiny_program())
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nth", range(6))
def test_a_failing_call_leaves_the_old_file_and_no_temporary(
    path, tmp_path, monkeypatch, call, nth
):
    path.write_bytes(b"old")
    original, count = getattr(os, call), [0]

    def failing(*args, **kwargs):
        count[0] += 1
        if count[0] == nth + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(os, call, failing)
    with suppress(OutputProblem, OutputUnsynced):
        write_tiny(path)
    monkeypatch.undo()
    assert names(tmp_path) == ["model.kvc"]
    if path.read_bytes() != b"old":
        # Only after the rename: the new file is whole.
        with BundleFile.open(path) as bundle:
            assert bundle.read_blob(0) == SAMPLE_BLOBS[1]
        assert call in ("fsync", "open") or count[0] <= nth


def test_a_full_disk_is_named(path, monkeypatch):
    def full(fd, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputProblem, match="No space left"), BundleWriter(path):
        pass


def test_short_writes_are_continued(path, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda fd, raw: original(fd, raw[:7]))
    write_tiny(path)
    monkeypatch.undo()
    with BundleFile.open(path) as bundle:
        assert bundle.read_blob(0) == SAMPLE_BLOBS[1]


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for name, text in (
        ("missing/model.kvc", "no folder"),
        ("file/model.kvc", ""),
        ("", "folder"),
        ("x" * 300, "long"),
        ("a\0b", "null"),
    ):
        with pytest.raises(OutputProblem, match=text or "."):
            BundleWriter(f"{tmp_path}/{name}")
    with pytest.raises(OutputProblem, match="plain file"):
        BundleWriter("/dev/null")


def test_a_link_keeps_pointing(path, tmp_path):
    (tmp_path / "link.kvc").symlink_to(path)
    write_tiny(tmp_path / "link.kvc")
    assert (tmp_path / "link.kvc").is_symlink()
    BundleFile.open(path).close()


def test_a_temporary_file_that_nobody_holds_is_removed(path, tmp_path):
    left = tmp_path / f".kvc-{os.getpid()}-0123abcd.tmp"
    other = tmp_path / ".kvc-x.tmp"
    for entry in (left, other):
        entry.write_bytes(b"")
    write_tiny(path)
    assert names(tmp_path) == [other.name, path.name]


def test_a_temporary_file_that_is_held_stays_whatever_its_process(path, tmp_path):
    held = tmp_path / ".kvc-999999999-0123abcd.tmp"
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_tiny(path)
        assert names(tmp_path) == [held.name, path.name]


def test_a_writer_holds_its_file_against_another(path, tmp_path):
    with BundleWriter(path) as writer:
        write_tiny(tmp_path / "other.kvc")
        assert len(names(tmp_path)) == 2
        assert writer.append(b"a", 64) == 128


def test_a_file_taken_away_before_it_was_locked_is_made_again(
    path, tmp_path, monkeypatch
):
    original, taken = fcntl.flock, []

    def lock(fd, how):
        if not taken:
            taken.extend(names(tmp_path))
            (tmp_path / taken[0]).unlink()
        return original(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    write_tiny(path)
    assert len(taken) == 1
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("call", ["open", "write", "fstat"])
def test_an_interrupt_while_it_starts_leaves_nothing(path, tmp_path, monkeypatch, call):
    original = getattr(os, call)

    def interrupted(*args, **kwargs):
        original(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        BundleWriter(path).__enter__()
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_only_with_makes_a_file(path, tmp_path):
    writer = BundleWriter(path)
    assert names(tmp_path) == []
    with pytest.raises(OutputProblem, match="not open"):
        writer.append(b"a", 64)


def test_a_folder_that_cannot_be_synced_is_told_apart(path, monkeypatch):
    path.write_bytes(b"old")
    original, count = os.fsync, [0]

    def failing(fd):
        count[0] += 1
        if count[0] == 2:
            raise OSError(errno.EIO, "Input/output error")
        original(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputUnsynced, match="replaced by the new bundle"):
        write_tiny(path)
    with BundleFile.open(path) as bundle:
        assert bundle.read_blob(0) == SAMPLE_BLOBS[1]
