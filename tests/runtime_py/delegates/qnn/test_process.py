"""What becomes of a process that has the library: it refuses, ends or hangs."""

import os
import textwrap
from pathlib import Path

import pytest

from kvc.runtime.delegates.qnn import process as module
from kvc.runtime.delegates.qnn.process import Process
from kvc.schema.errors import NativeCallFailed, WorkerLost

WORKER = module._SCRIPT


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker whose library is a few lines of Python."""
    path = tmp_path / "worker.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import os, runpy, sys, time
            worker = runpy.run_path({str(WORKER)!r})
            class Work(worker["Work"]):
                def open(self, paths, folder):
                    os.chdir(folder)
                def run(self, number):
                    if number == 1:
                        os.abort()
                    if number == 2:
                        time.sleep(60)
                    if number == 3:
                        raise RuntimeError("no such graph")
                    if number == 4:
                        os._exit(7)
                    return os.getpid()
            worker["main"].__globals__["Work"] = Work
            worker["main"](int(sys.argv[1]))
            """
        )
    )
    monkeypatch.setattr(module, "_SCRIPT", path)
    return path


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_request_is_answered_in_another_process(script: Path):
    process = Process()
    pid = process.ask("run", 20, number=0)
    assert pid != os.getpid()
    folder = process.folder
    process.close()
    assert is_gone(pid)
    assert not folder.exists()


def test_a_library_that_cannot_be_loaded_leaves_no_process(
    script: Path, monkeypatch: pytest.MonkeyPatch
):
    text = script.read_text()
    script.write_text(text.replace("os.chdir(folder)", "raise OSError('no device')"))
    ended: list[Process] = []
    end = Process.end
    monkeypatch.setattr(Process, "end", lambda self: (ended.append(self), end(self)))
    with pytest.raises(NativeCallFailed, match="open: no device"):
        Process()
    (process,) = ended
    assert process.is_lost
    assert process._process.returncode is not None
    assert not process.folder.exists()


def test_a_refusal_is_told_and_the_process_goes_on(script: Path):
    process = Process()
    with pytest.raises(NativeCallFailed, match="run: no such graph"):
        process.ask("run", 20, number=3)
    assert not process.is_lost
    assert process.ask("run", 20, number=0)
    process.close()


@pytest.mark.parametrize(
    ("number", "limit_s", "what"),
    [
        (1, 20, "was ended by SIGABRT"),
        (2, 0.3, "no answer in 0.3 s"),
        (4, 20, "ended with status 7"),
    ],
)
def test_a_process_that_is_lost_is_told_of(
    script: Path, number: int, limit_s: float, what: str
):
    process = Process()
    pid = process.ask("run", 20, number=0)
    with pytest.raises(WorkerLost, match=f"{what}.*the next call starts another"):
        process.ask("run", limit_s, number=number)
    assert process.is_lost
    assert is_gone(pid)
    assert not process.folder.exists()
    process.close()


def test_an_interrupt_ends_it(script: Path, monkeypatch: pytest.MonkeyPatch):
    process = Process()

    def interrupted(connection: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.worker, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.ask("run", 20, number=0)
    assert process.is_lost


def test_a_fork_leaves_its_parents_process_alone(script: Path):
    process = Process()
    pid = os.fork()
    if pid == 0:
        process.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert process.folder.exists()
    assert process.ask("run", 20, number=0)
    process.close()


def test_messages_of_any_length_arrive(script: Path):
    process = Process()
    with pytest.raises(NativeCallFailed):
        process.ask("run", 20, number=3, more="x" * 3_000_000)
    assert process.ask("run", 20, number=0)
    process.close()
