import errno
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from sample_programs import SAMPLE_BLOBS, tiny_program, write_tiny

from kvc.schema.container import BundleFile, BundleWriter, default_align
from kvc.schema.errors import BadProgram, OutputProblem

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
    with suppress(OutputProblem):
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
    with pytest.raises(OutputProblem, match="No space left"):
        BundleWriter(path)


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


def test_leftovers_of_dead_processes_are_removed(path, tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    dead = tmp_path / f".kvc-{child.stdout.strip()}-0123abcd.tmp"
    alive = tmp_path / f".kvc-{os.getppid()}-0123abcd.tmp"
    other = tmp_path / ".kvc-x.tmp"
    for entry in (dead, alive, other):
        entry.write_bytes(b"")
    write_tiny(path)
    assert names(tmp_path) == sorted([alive.name, other.name, path.name])
