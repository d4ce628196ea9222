"""Send requests to a subprocess that calls a vendor's library.

In: requests for `serving.py`, and the script whose `Work` handles them. Out: answers.
All calls of such a library are made in the subprocess: the library is large, perhaps
closed source, and can end its process or never return. So a crash ends only the
subprocess, a time limit ends a call that never returns, and the next request starts a
new subprocess. A call costs two messages on a socket; tensors lie in shared memory.
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
    """A subprocess that has loaded the library, and a folder that both processes use.

    Attributes:
        folder: path of the folder, which is removed when the subprocess ends.
    """

    def __init__(self, work: Path, library: str, prefix: str) -> None:
        """Start the subprocess.

        Args:
            work: a script that imports nothing of kvc, and has the class `Work`.
            library: name of the library, for messages.
            prefix: prefix of the folder's name.

        Raises:
            NativeCallFailed: the library cannot be loaded.
            WorkerLost: loading the library ended the process.
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
                start_new_session=True,  # Ctrl-C must reach only the parent process
            )
        try:
            self.ask("open", OPENING_S, paths=sys.path, folder=str(self.folder))
        except NativeCallFailed:
            self.end()
            raise

    @property
    def is_lost(self) -> bool:
        """Tell whether the subprocess has ended, or this process is a forked child."""
        return self._is_ended or self._owner != os.getpid()

    def ask(
        self, do: str, limit_s: float, descriptor: int | None = None, **facts: object
    ) -> object:
        """Send a request, and return the answer.

        If the wait is interrupted, the subprocess is ended. Otherwise the late answer
        would be read as the answer to the next request.

        Raises:
            NativeCallFailed: the library refuses the request.
            WorkerLost: the subprocess has ended, or did not answer in time.
        """
        try:
            self._socket.settimeout(limit_s)
            serving.send(self._socket, {"do": do, **facts}, descriptor)
            found = serving.receive(self._socket)
        except TimeoutError as error:
            self.end()
            what = f"no answer in {limit_s:g} s, so that its process was ended"
            raise WorkerLost(library=self._library, what=do, reason=what) from error
        except OSError as error:  # the other end is closed
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
        """End the subprocess at once, and remove the folder."""
        self._socket.close()
        self._is_ended = True
        if (
            self._owner != os.getpid()
        ):  # a forked child; its parent still uses the process
            return
        self._process.kill()
        self._process.wait()
        self._remove()

    def close(self) -> None:
        """Ask the subprocess to end; end it at once if this takes too long."""
        self._socket.close()
        if not self.is_lost:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)
        self.end()


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder, unless this process is a forked child.

    `owner` is the id of the process that made the folder.
    """
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    named = {int(each): each.name for each in signal.Signals}
    return named.get(number, f"signal {number}")
