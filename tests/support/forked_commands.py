"""Processes that are waited for, killed and traced: commands, and forks for kvc's own.

In: a command, and perhaps options of strace. Out: a process. A fork takes no time to
import: a server imports what `import_first` names, once, and each run is a fork of it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

COMPILER = ("torch._dynamo", "torch.export", "kvc.tools.model_names", "kvc.tools.cli")
ATTACH_SECONDS = 60
_SERVER = get_context("forkserver")


def import_first(names: Sequence[str]) -> None:
    """Let the server import modules; before the first fork."""
    _SERVER.set_forkserver_preload(list(names))


class Running(Protocol):
    """A process that was started."""

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raise TimeoutExpired if it runs on."""

    def kill(self) -> None:
        """End it with SIGKILL."""


class Spawned:
    """A command, as a new process; with options of strace, under strace."""

    def __init__(self, command: Sequence[str], tracing: Sequence[str] = ()) -> None:
        """Start it."""
        traced = ["strace", *tracing] if tracing else []
        self._process = subprocess.Popen(
            [*traced, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it."""
        self._process.kill()


class Forked:
    """A command of kvc by its arguments, as a fork of the server."""

    def __init__(self, arguments: Sequence[str], tracing: Sequence[str] = ()) -> None:
        """Start it; with options of strace, once that is attached."""
        self._arguments = list(arguments)
        self._tracer: subprocess.Popen[bytes] | None = None
        self._process = _SERVER.Process(
            target=_run, args=(self._arguments, bool(tracing))
        )
        self._process.start()
        if tracing:
            self._attach(tracing)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raise TimeoutExpired if it runs on."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        if self._tracer is not None:
            self._tracer.wait()  # it has written all of its log then
        return code

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def _attach(self, tracing: Sequence[str]) -> None:
        pid = self._process.pid
        assert pid is not None
        self._until(lambda: _status(pid)["State"].startswith("T"))
        command = ["strace", *tracing, "-p", str(pid)]
        self._tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._until(lambda: _status(pid)["TracerPid"] != "0")
        os.kill(pid, signal.SIGCONT)

    def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for something. It must not go on before it is traced, or stop after."""
        last = time.monotonic() + ATTACH_SECONDS
        while not holds():
            if time.monotonic() > last:
                self.kill()
                raise RuntimeError("strace did not attach")
            time.sleep(0.005)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in fields}


def _run(arguments: Sequence[str], stops: bool) -> None:
    """Be the command, from after its imports on."""
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    from kvc.tools.cli import main

    sys.argv = ["kvc", *arguments]
    main()
