"""What fails or is killed while a bundle is saved; the old pair keeps working."""

import errno
import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from asked_locks import asked_to_share
from named_bytes import SMALL, data_program, names, read_blobs, save_data

from kvc.schema.container import (
    AtomicFile,
    BundleFile,
    Content,
    new_data_file,
    save_bundle,
    verify_bundle,
    verify_data_file,
)
from kvc.schema.errors import BadProgram, CannotWrite, FileProblem, Unsynced

NEW = SMALL | {"new": b"new bytes"}
CALLS = ("open", "write", "fsync", "link", "rename", "lseek", "ftruncate")
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def contents_of(path):
    """What a bundle holds, by name."""
    blobs = read_blobs(path)
    with BundleFile(path) as bundle:
        return {named.name: blobs[named.blob] for named in bundle.program.names}


def test_a_wrong_program_leaves_nothing(path, tmp_path):
    program = data_program(SMALL)
    wrong = replace(program, names=(*program.names, program.names[0]))

    def content(name):
        return Content(240, lambda: iter([memoryview(SMALL["a"])]), name)

    for external in (False, True):
        with pytest.raises(BadProgram):
            save_bundle(path, wrong, content, external=external)
        assert names(tmp_path) == []


@pytest.mark.parametrize("external", [False, True])
def test_a_content_that_fails_leaves_the_old_pair(path, tmp_path, external):
    save_data(path, SMALL, external=True)
    before = names(tmp_path)

    def chunks():
        yield memoryview(b"123")
        raise KeyError("the checkpoint")

    def content(name):
        return Content(6, chunks, name)

    with pytest.raises(KeyError):
        save_bundle(path, data_program({"a": b"123456"}), content, external=external)
    assert names(tmp_path) == before
    assert contents_of(path) == SMALL


def fail_at(monkeypatch, call, nth, error):
    original, count = getattr(os, call), [0]

    def failing(*args, **kwargs):
        count[0] += 1
        if count[0] == nth + 1:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(os, call, failing)
    return count


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("external", [False, True])
def test_each_failing_call_leaves_a_working_bundle_and_no_temporary(
    path, tmp_path, monkeypatch, call, external
):
    """Every call of the kind fails once, in turn, until none is left to fail."""
    for nth in range(40):
        for entry in tmp_path.iterdir():
            entry.unlink()
        save_data(path, SMALL, external=True)
        before = names(tmp_path)
        full = OSError(errno.ENOSPC, "No space left on device")
        count = fail_at(monkeypatch, call, nth, full)
        with suppress(CannotWrite, Unsynced, FileProblem):
            save_data(path, NEW, external=external)
        monkeypatch.undo()
        found = contents_of(path)
        verify_bundle(path)
        assert found in (SMALL, NEW)
        assert not any(name.endswith(".tmp") for name in names(tmp_path))
        if found == SMALL:
            assert names(tmp_path) == before
        if count[0] <= nth:
            return
    pytest.fail("it never ran through")


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_behind_each_call_leaves_a_working_bundle(
    path, tmp_path, monkeypatch, call
):
    for nth in range(40):
        for entry in tmp_path.iterdir():
            entry.unlink()
        save_data(path, SMALL, external=True)
        original, count = getattr(os, call), [0]

        def interrupted(*args, original=original, count=count, nth=nth, **kwargs):
            result = original(*args, **kwargs)
            count[0] += 1
            if count[0] == nth + 1:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(os, call, interrupted)
        with suppress(KeyboardInterrupt):
            save_data(path, NEW, external=True)
        monkeypatch.undo()
        assert contents_of(path) in (SMALL, NEW)
        assert not any(name.endswith(".tmp") for name in names(tmp_path))
        if count[0] <= nth:
            return
    pytest.fail("it never ran through")


def test_a_file_system_without_hard_links_gets_the_file_by_rename(
    path, tmp_path, monkeypatch
):
    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert save_data(path, SMALL, external=True).data_is_new
    assert not save_data(path, SMALL, external=True).data_is_new
    verify_bundle(path)
    assert len(names(tmp_path)) == 2


def test_without_hard_links_a_failed_writer_takes_nobody_s_data_along(
    path, tmp_path, monkeypatch
):
    """Another writer takes the name just before the rename, and is done first."""
    lexists, others = os.path.lexists, []

    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    def free_at_first(name):
        was_there = lexists(name)
        if not others:
            others.append(name)
            save_data(path, SMALL, external=True)
            path.rename(tmp_path / "good.kvc")
            monkeypatch.setattr(AtomicFile, "commit", fail_to_commit)
        return was_there

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os.path, "lexists", free_at_first)
    with pytest.raises(CannotWrite, match="disk full"):
        save_data(path, SMALL, external=True)
    verify_bundle(tmp_path / "good.kvc")


def fail_to_commit(self, start=b""):
    raise CannotWrite(path=self.path, reason="disk full")


def test_a_link_that_was_made_and_is_told_as_taken_is_no_obstacle(path, monkeypatch):
    """As NFS does where the answer to the first request was lost."""
    link = os.link

    def told_twice(*args, **kwargs):
        link(*args, **kwargs)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", told_twice)
    monkeypatch.setattr(new_data_file, "open_locked", None)  # it would wait for ever
    assert save_data(path, SMALL, external=True).data_is_new
    verify_bundle(path)


def test_a_data_file_that_goes_is_locked_until_it_is_gone(path, tmp_path, monkeypatch):
    """A writer that waits for it must not find it whole and then lose it."""
    unlink, locked = Path.unlink, []

    def watched(self, missing_ok=False):
        if self.suffix == ".kvd":
            with self.open("rb") as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                pytest.fail("it is not locked")
            locked.append(self.name)
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    monkeypatch.setattr(AtomicFile, "commit", fail_to_commit)
    with pytest.raises(CannotWrite, match="disk full"):
        save_data(path, SMALL, external=True)
    assert len(locked) == 1
    assert names(tmp_path) == []


def test_a_writer_that_waited_for_a_failed_one_uses_what_a_third_has_made(
    path, monkeypatch
):
    data = Path(save_data(path, SMALL, external=True).data_path)
    raw = data.read_bytes()
    with ThreadPoolExecutor() as pool, data.open("rb") as failing:
        fcntl.flock(failing, fcntl.LOCK_EX)
        asked = asked_to_share(monkeypatch)
        waiting = pool.submit(save_data, path, SMALL, external=True)
        assert asked.wait(60)
        assert not waiting.done()
        data.unlink()
        data.write_bytes(raw)
        fcntl.flock(failing, fcntl.LOCK_UN)
        assert not waiting.result(60).data_is_new
    verify_bundle(path)


@pytest.mark.parametrize("external", [False, True])
def test_a_folder_that_cannot_be_synced_leaves_the_bundle_and_says_so(
    path, monkeypatch, external
):
    fsync = os.fsync

    def refuse(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(Unsynced, match="Invalid argument"):
        save_data(path, SMALL, external=external)
    verify_bundle(path)


def test_only_the_data_file_s_name_not_being_durable_is_told_too(path, monkeypatch):
    def refuse(folder):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(new_data_file, "sync_folder", refuse)
    with pytest.raises(Unsynced, match="its data file: Invalid argument"):
        save_data(path, SMALL, external=True)
    verify_bundle(path)


@pytest.mark.parametrize("external", [False, True])
def test_a_program_that_is_too_large_leaves_the_old_pair(
    path, tmp_path, monkeypatch, external
):
    save_data(path, SMALL, external=True)
    before = names(tmp_path)
    monkeypatch.setattr(os, "link", None)  # nothing gets a name, even for a moment
    large = replace(data_program({"a": b"1"}), metadata={"text": "t" * (64 << 20)})

    def content(name):
        return Content(1, lambda: iter([memoryview(b"1")]), name)

    with pytest.raises(CannotWrite, match="67108864 at most"):
        save_bundle(path, large, content, external=external)
    assert names(tmp_path) == before
    assert contents_of(path) == SMALL


CHILD = """
import sys
sys.path.insert(0, {support!r})
from named_bytes import save_data
{before}
save_data({path!r}, {{str(i): bytes([i]) * 300_000 for i in range(20)}}, external=True)
print("done")
"""


def run_child(path, before="", **options):
    code = CHILD.format(support=str(SUPPORT), path=str(path), before=before)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("external", [False, True])
def test_a_file_size_limit_leaves_the_old_bundle_and_no_temporary(
    path, tmp_path, external
):
    save_data(path, SMALL, external=external)
    before = names(tmp_path)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)"
    child = run_child(path, limit)
    _, errors = child.communicate()
    assert b"File too large" in errors
    assert b"CannotWrite" in errors
    assert names(tmp_path) == before
    assert contents_of(path) == SMALL


def test_a_killed_writer_leaves_a_working_bundle(path, tmp_path):
    save_data(path, SMALL, external=True)
    wait = "import os; os.fsync = lambda fd: print('sync', flush=True)"
    for seconds in (0, 0.01, 0.03, 0.1):
        child = run_child(path, wait)
        child.stdout.readline()  # it is about to name the data file
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        verify_bundle(path)
        save_data(tmp_path / "next.kvc", SMALL)
        assert not any(name.endswith(".tmp") for name in names(tmp_path))


@pytest.mark.exhaustive
def test_writers_killed_at_any_moment_leave_a_working_bundle(path, tmp_path):
    save_data(path, SMALL, external=True)
    moments = random.Random(1)
    for _ in range(200):
        child = run_child(path, "print('ready', flush=True)")
        child.stdout.readline()
        time.sleep(moments.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        verify_bundle(path)
        for entry in tmp_path.glob("*-*.kvd"):
            verify_data_file(entry)
            if moments.random() < 0.5:
                entry.unlink()
        save_data(path, SMALL, external=True)


def test_two_processes_saving_the_same_content_both_succeed(path, tmp_path):
    children = [run_child(path), run_child(path), run_child(tmp_path / "b.kvc")]
    for child in children:
        output, errors = child.communicate()
        assert (output, errors) == (b"done\n", b"")
    verify_bundle(path)
    verify_bundle(tmp_path / "b.kvc")
    assert len(names(tmp_path)) == 4
