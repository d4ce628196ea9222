import errno
import fcntl
import os

import pytest
from named_bytes import names

from kvc.schema.container import AtomicFile, default_align
from kvc.schema.errors import CannotWrite, Unsynced


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def write(path, content=b"new"):
    with AtomicFile(path) as file:
        file.write(content)
        file.commit()


def test_default_alignment_grows_with_the_blob():
    sizes = (0, 4095, 4096, (4 << 20) - 1, 4 << 20)
    assert [default_align(n) for n in sizes] == [64, 64, 4096, 4096, 65536]


def test_what_was_cut_off_is_not_in_the_file(path):
    with AtomicFile(path) as file:
        file.write(b"????kept")
        file.write(b"dropped")
        file.cut(8)
        file.write(b", more")
        file.commit(b"1234")
    assert path.read_bytes() == b"1234kept, more"


def test_leaving_without_commit_leaves_nothing(path, tmp_path):
    with AtomicFile(path) as file:
        file.write(b"a")
    assert names(tmp_path) == []


def fail_after_a_write(path):
    with AtomicFile(path) as file:
        file.write(b"a")
        raise KeyError


def test_an_exception_leaves_the_old_file(path, tmp_path):
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        fail_after_a_write(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.kvc"]


def test_a_full_disk_is_named(path, monkeypatch):
    def full(fd, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CannotWrite, match="No space left"):
        write(path)


def test_short_writes_are_continued(path, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda fd, raw: original(fd, raw[:7]))
    write(path, bytes(range(100)))
    monkeypatch.undo()
    assert path.read_bytes() == bytes(range(100))


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for name, text in (
        ("missing/model.kvc", "no folder"),
        ("file/model.kvc", ""),
        ("", "folder"),
        ("x" * 300, "long"),
        ("a\0b", "null"),
    ):
        with pytest.raises(CannotWrite, match=text or "."):
            AtomicFile(f"{tmp_path}/{name}")
    with pytest.raises(CannotWrite, match="plain file"):
        AtomicFile("/dev/null")


def test_a_link_keeps_pointing(path, tmp_path):
    (tmp_path / "link.kvc").symlink_to(path)
    write(tmp_path / "link.kvc")
    assert (tmp_path / "link.kvc").is_symlink()
    assert path.read_bytes() == b"new"


def test_a_temporary_file_that_nobody_holds_is_removed(path, tmp_path):
    left = tmp_path / f".kvc-{os.getpid()}-0123abcd.tmp"
    other = tmp_path / ".kvc-x.tmp"
    for entry in (left, other):
        entry.write_bytes(b"")
    write(path)
    assert names(tmp_path) == [other.name, path.name]


def test_a_temporary_file_that_is_held_stays_whatever_its_process(path, tmp_path):
    held = tmp_path / ".kvc-999999999-0123abcd.tmp"
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(path)
        assert names(tmp_path) == [held.name, path.name]


def test_a_writer_holds_its_file_against_another(path, tmp_path):
    with AtomicFile(path) as file:
        write(tmp_path / "other.kvc")
        assert len(names(tmp_path)) == 2
        file.write(b"a")


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
    write(path)
    assert len(taken) == 1
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("call", ["open", "fstat"])
def test_an_interrupt_while_it_starts_leaves_nothing(path, tmp_path, monkeypatch, call):
    original = getattr(os, call)

    def interrupted(*args, **kwargs):
        original(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        AtomicFile(path).__enter__()
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_only_with_makes_a_file(path, tmp_path):
    file = AtomicFile(path)
    assert names(tmp_path) == []
    with pytest.raises(CannotWrite, match="not open"):
        file.write(b"a")


def test_a_folder_that_cannot_be_synced_is_told_apart(path, monkeypatch):
    path.write_bytes(b"old")
    original, count = os.fsync, [0]

    def failing(fd):
        count[0] += 1
        if count[0] == 2:
            raise OSError(errno.EIO, "Input/output error")
        original(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(Unsynced, match="is written and whole"):
        write(path)
    assert path.read_bytes() == b"new"
