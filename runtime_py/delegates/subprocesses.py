"""Ask a process that calls a vendor's library.

In: requests of `serving.py`, and the script whose `Work` answers them. Out: answers.
All calls of such a library are made there: it is large, perhaps closed, and may end its
process or never return. So what it breaks is that process, a call that never returns is
ended by its time limit, and the next request starts another one. What a call costs for
that is two messages on a socket; tensors lie in memory that both see.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Final

from kvc.runtime.delegates import serving
from kvc.schema.errors import NativeCallFailed, WorkerLost

OPENING_S: Final = 120.0
BUILDING_S: Final = 1800.0
RUNNING_S: Final = 600.0
_ENDING_S: Final = 5.0
_SCRIPT: Final = Path(serving.__file__)


class Process:
    """A process that has the library loaded, and a folder for files of both.

    Attributes:
        folder: the folder, which goes with the process.
    """

    def __init__(self, work: Path, library: str, prefix: str) -> None:
        """Start it.

        Args:
            work: a script that imports nothing of kvc, and has the class `Work`.
            library: what it calls, for messages.
            prefix: of the folder's name.

        Raises:
            NativeCallFailed: the library cannot be loaded.
            WorkerLost: it ended the process.
        """
        self._owner, self._is_ended = os.getpid(), False
        self._library = library
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._remove = weakref.finalize(self, _remove, self.folder, self._owner)
        self._socket, other = socket.socketpair()
        command = [sys.executable, "-I", str(_SCRIPT), str(other.fileno()), str(work)]
        with other:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        try:
            self.ask("open", OPENING_S, paths=sys.path, folder=str(self.folder))
        except NativeCallFailed:
            self.end()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, or is of the process that this one is a fork of."""
        return self._is_ended or self._owner != os.getpid()

    def ask(
        self, do: str, limit_s: float, descriptor: int | None = None, **facts: object
    ) -> object:
        """Have something done, and return what is made.

        Whatever interrupts this ends the process: its answer would be taken for that of
        the next request.

        Raises:
            NativeCallFailed: the library refuses.
            WorkerLost: the process has ended, or did not answer in time.
        """
        try:
            self._socket.settimeout(limit_s)
            serving.send(self._socket, {"do": do, **facts}, descriptor)
            found = serving.receive(self._socket)
        except TimeoutError as error:
            self.end()
            what = f"no answer in {limit_s:g} s, so that its process was ended"
            raise WorkerLost(library=self._library, what=do, reason=what) from error
        except OSError as error:  # the other end is gone
            raise self._lost(do) from error
        except BaseException:
            self.end()
            raise
        if found is None:
            raise self._lost(do)
        answer = found[0]
        if "error" in answer:
            reason = str(answer["error"])
            raise NativeCallFailed(library=self._library, what=do, reason=reason)
        return answer["made"]

    def _lost(self, do: str) -> WorkerLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        code = self._process.poll()
        self.end()
        what = f"its process ended with status {code}"
        if code is None:
            what = "its process could not be asked, so that it was ended"
        elif code < 0:
            what = f"its process was ended by {_signal_name(-code)}"
        return WorkerLost(library=self._library, what=do, reason=what)

    def end(self) -> None:
        """End the process, whatever it does, and remove the folder."""
        self._socket.close()
        self._is_ended = True
        if self._owner != os.getpid():  # a fork, whose parent goes on with it
            return
        self._process.kill()
        self._process.wait()
        self._remove()

    def close(self) -> None:
        """Let the process end by itself, if it does so soon."""
        self._socket.close()
        if not self.is_lost:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)
        self.end()


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder, where this is the process that made it, and no fork of it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    named = {int(each): each.name for each in signal.Signals}
    return named.get(number, f"signal {number}")
