"""Processes that tests wait for, kill, interrupt and trace.

They are new processes (`Spawned`), or for commands of kvc, forks (`Forked`).

In: a command, and perhaps options of strace. Out: a process. A fork takes no time to
import modules: a server imports the modules that `import_first` names once, and each
command is a fork of the server.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

COMPILER = ("torch._dynamo", "torch.export", "kvc.tools.model_names", "kvc.tools.cli")
ATTACH_SECONDS = 60
NOWHERE = Path(os.devnull)
COMMAND = "kvc-forked"  # how a fork is called once it is the command
_SERVER = get_context("forkserver")


def import_first(names: Sequence[str]) -> None:
    """Make the server import modules at its start; call before the first fork."""
    _SERVER.set_forkserver_preload(list(names))


class Running(Protocol):
    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit code.

        Raises:
            TimeoutExpired: the process still runs.
        """

    def kill(self) -> None: ...

    def interrupt(self) -> None:
        """Send SIGINT as soon as Python handles it, unless the process has ended."""


class Spawned:
    """A command that runs as a new process; under strace, if options are given.

    Its output is appended to a log file.
    """

    def __init__(self, command, tracing=(), log=NOWHERE) -> None:
        traced = ["strace", *tracing] if tracing else []
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*traced, *command], stdout=file, stderr=file
            )

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()

    def interrupt(self) -> None:
        _interrupt(self._process.pid, _handles)


class Forked:
    """A command of kvc that runs as a fork of the server.

    With options of strace, the command starts after strace has been attached.
    """

    def __init__(self, arguments, tracing=(), log=NOWHERE) -> None:
        self._arguments = list(arguments)
        self._tracer: subprocess.Popen[bytes] | None = None
        self._process = _SERVER.Process(
            target=_run, args=(self._arguments, bool(tracing), log)
        )
        self._process.start()
        if tracing:
            self._attach(tracing)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        if self._tracer is not None:
            self._tracer.wait()  # it has written all of its log then
        return code

    def kill(self) -> None:
        self._process.kill()

    def interrupt(self) -> None:
        assert self._process.pid is not None
        _interrupt(self._process.pid, lambda status: status["Name"] == COMMAND)

    def _attach(self, tracing: Sequence[str]) -> None:
        pid = self._process.pid
        assert pid is not None
        _until(lambda: _status(pid)["State"].startswith("T"), self.kill)
        command = ["strace", *tracing, "-p", str(pid)]
        self._tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        _until(lambda: _status(pid)["TracerPid"] != "0", self.kill)
        os.kill(pid, signal.SIGCONT)


def _interrupt(pid: int, begun: Callable[[Mapping[str, str]], bool]) -> None:
    def ready() -> bool:
        status = _status(pid)
        return status["State"].startswith("Z") or begun(status)

    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        _until(ready, lambda: None)
        os.kill(pid, signal.SIGINT)


def _handles(status: Mapping[str, str]) -> bool:
    """Tell from its status whether a process has a handler for SIGINT.

    Python sets such a handler when it starts.
    """
    return bool(int(status["SigCgt"], 16) >> (signal.SIGINT - 1) & 1)


def _until(holds: Callable[[], bool], give_up: Callable[[], None]) -> None:
    last = time.monotonic() + ATTACH_SECONDS
    while not holds():
        if time.monotonic() > last:
            give_up()
            raise RuntimeError(f"not within {ATTACH_SECONDS} s")
        time.sleep(0.005)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in fields}


def _run(arguments: Sequence[str], stops: bool, log: Path) -> None:
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    from kvc.tools.__main__ import start

    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.argv = ["kvc", *arguments]
    try:
        Path("/proc/self/comm").write_text(COMMAND)
        start()
    except KeyboardInterrupt:  # before or after all of it
        sys.exit(130)
