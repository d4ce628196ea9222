"""What becomes of a process that has the library: it refuses, ends or hangs."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kvc.runtime.delegates import subprocesses as module
from kvc.runtime.delegates.subprocesses import Process, _signal_name
from kvc.schema.errors import NativeCallFailed, WorkerLost


def started(script: Path) -> Process:
    return Process(script, "a library", "kvc-test-")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A worker whose library is a few lines of Python."""
    path = tmp_path / "worker.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            class Work:
                def work(self, number):
                    if number == 1:
                        os.abort()
                    if number == 2:
                        time.sleep(60)
                    if number == 3:
                        raise RuntimeError("no such graph")
                    if number == 4:
                        os._exit(7)
                    if number == 5:
                        parent = os.getppid()
                        open("begun", "w").close()
                        while os.getppid() == parent:
                            time.sleep(0.01)
                    return os.getpid()
            """
        )
    )
    return path


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_request_is_answered_in_another_process(script: Path):
    process = started(script)
    pid = process.ask("work", 20, number=0)
    assert pid != os.getpid()
    folder = process.folder
    process.close()
    assert is_gone(pid)
    assert not folder.exists()


def test_a_library_that_cannot_be_loaded_leaves_no_process(
    script: Path, monkeypatch: pytest.MonkeyPatch
):
    text = script.read_text()
    script.write_text(text + "raise OSError('no device')\n")
    ended: list[Process] = []
    end = Process.end
    monkeypatch.setattr(Process, "end", lambda self: (ended.append(self), end(self)))
    with pytest.raises(NativeCallFailed, match="open: no device"):
        started(script)
    (process,) = ended
    assert process.is_lost
    assert process._process.returncode is not None
    assert not process.folder.exists()


def test_a_refusal_is_told_and_the_process_goes_on(script: Path):
    process = started(script)
    with pytest.raises(NativeCallFailed, match="work: no such graph"):
        process.ask("work", 20, number=3)
    assert not process.is_lost
    assert process.ask("work", 20, number=0)
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
    process = started(script)
    pid = process.ask("work", 20, number=0)
    with pytest.raises(WorkerLost, match=f"{what}.*the next call starts another"):
        process.ask("work", limit_s, number=number)
    assert process.is_lost
    assert is_gone(pid)
    assert not process.folder.exists()
    process.close()


def test_an_interrupt_ends_it(script: Path, monkeypatch: pytest.MonkeyPatch):
    process = started(script)

    def interrupted(connection: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.serving, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.ask("work", 20, number=0)
    assert process.is_lost


def test_a_fork_leaves_its_parents_process_alone(script: Path):
    process = started(script)
    pid = os.fork()
    if pid == 0:
        process.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert process.folder.exists()
    assert process.ask("work", 20, number=0)
    process.close()


def test_a_fork_that_ends_in_order_leaves_its_parents_folder(script: Path):
    process = started(script)
    pid = os.fork()
    if pid == 0:
        process._remove()  # as it is done at exit
        os._exit(0 if process.is_lost else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert process.folder.exists()
    process.close()
    assert not process.folder.exists()


KILLED = """
import os, sys, threading, time
from pathlib import Path
from kvc.runtime.delegates.subprocesses import (Process)
made = Process(Path(sys.argv[1]), "a library", "kvc-test-")
print(made.folder, made.ask("work", 20, number=0), flush=True)
"""
AT_WORK = """
work = threading.Thread(target=made.ask, args=("work", 20), kwargs={"number": 5})
work.start()
while not (made.folder / "begun").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("work", ["", AT_WORK], ids=["idle", "at work"])
def test_a_folder_goes_where_its_process_is_killed(script: Path, work: str):
    code = KILLED + work + "os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folder, worker = done.stdout.split()
    until = time.monotonic() + 60
    while not is_gone(int(worker)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(folder).exists()


def test_a_process_that_cannot_be_asked_is_ended(
    script: Path, monkeypatch: pytest.MonkeyPatch
):
    """It waits for what has never been sent."""
    monkeypatch.setattr(module, "_ENDING_S", 0.1)
    process = started(script)
    pid = process.ask("work", 20, number=0)
    with pytest.raises(WorkerLost, match="could not be asked"):
        process.ask("work", 20, descriptor=1 << 20, number=0)  # there is none
    assert is_gone(pid)


@pytest.mark.parametrize("nbytes", [1, 3, 4, 9])
def test_a_message_that_ends_early_is_the_end(nbytes: int):
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"\x09\0\0\0{}1234567"[:nbytes])
        one.close()
        assert module.serving.receive(other) is None


def test_messages_of_any_length_arrive(script: Path):
    process = started(script)
    with pytest.raises(NativeCallFailed):
        process.ask("work", 20, number=3, more="x" * 3_000_000)
    assert process.ask("work", 20, number=0)
    process.close()


def test_a_signal_without_a_name_is_told_by_its_number():
    assert [_signal_name(one) for one in (6, 40)] == ["SIGABRT", "signal 40"]
