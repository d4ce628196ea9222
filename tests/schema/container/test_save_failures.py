"""What fails or is killed while a bundle is saved; the old pair keeps working."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from named_bytes import SMALL, data_program, names, read_blobs, save_data

from kvc.schema.container import (
    BundleFile,
    Content,
    save_bundle,
    verify_bundle,
    verify_data_file,
)
from kvc.schema.errors import (
    BadProgram,
    FileProblem,
    OutputProblem,
    OutputUnsynced,
)

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
        with suppress(OutputProblem, OutputUnsynced, FileProblem):
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
    with pytest.raises(OutputProblem, match="not permitted"):
        save_data(path, SMALL, external=True)
    verify_bundle(path)
    assert len(names(tmp_path)) == 2


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
    assert b"OutputProblem" in errors
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
