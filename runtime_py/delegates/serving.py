"""The subprocess that calls a vendor's library; `subprocesses.py` starts it.

In, on a socket: requests. Each is a length and a JSON text of that length; some carry a
file descriptor of shared memory. Out, on the same socket: an answer to each request, in
order: `{"made": ...}`, or `{"error": "why"}`. `Server` answers these requests:

    open    run the backend's script, whose class `Work` loads the library
    bind    map shared memory, and let `Work.bind` bind a built model to arrays in it
    run     call the function that `Work.bind` returned
    forget  release a bound model

For another request, such as `build`, the method of `Work` with its name is called.

This module imports nothing of kvc, so a crash of the library stays in the subprocess.
"""

import contextlib
import json
import mmap
import os
import runpy
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

LENGTH_NBYTES: Final = 4
_SHARED: Final = ("open", "bind", "run", "forget")  # requests that `Server` answers

# Name, dtype, byte offset and shape of an array in shared memory.
Place = tuple[str, str, int, list[int]]


class Server:
    """The library's `Work`, and models that are bound to shared memory.

    Attributes:
        folder: the subprocess's folder, "" before `open`.
    """

    def __init__(self, script: str) -> None:
        """Set the path of the script that has the class `Work`."""
        self.folder, self._script = "", script
        self._work: Any = None
        self._bound: dict[int, tuple[Callable[[], None], object]] = {}

    def answer(self, do: str, descriptors: list[int], facts: dict[str, Any]) -> object:
        """Return the result of the request `do`."""
        handler = getattr(self if do in _SHARED else self._work, do)
        return handler(*descriptors, **facts)

    def open(self, paths: list[str], folder: str) -> None:
        """Load the library, given the paths of Python's packages; work in `folder`."""
        sys.path[:] = paths
        os.chdir(folder)
        self.folder = tempfile.tempdir = folder
        self._work = runpy.run_path(self._script)["Work"]()

    def bind(
        self,
        memory: int,
        name: str,
        number: int,
        nbytes: int,
        places: dict[str, list[Place]],
    ) -> None:
        """Bind a built model to arrays, which are listed by use, such as "inputs"."""
        import numpy as np  # only `open` tells where it is

        held = mmap.mmap(memory, nbytes)
        os.close(memory)
        arrays = {
            use: {n: np.ndarray(shape, kind, held, at) for n, kind, at, shape in some}
            for use, some in places.items()
        }
        self._bound[number] = self._work.bind(name, **arrays), arrays

    def run(self, number: int) -> None:
        """Run a bound model."""
        self._bound[number][0]()

    def forget(self, number: int) -> None:
        """Release a bound model, if there is one."""
        self._bound.pop(number, None)


def main(descriptor: int, script: str) -> None:
    """Answer requests until the parent process closes the socket."""
    connection, server = socket.socket(fileno=descriptor), Server(script)
    # The other end may have been killed while a request was being handled.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (found := receive(connection)) is not None:
            request, descriptors = found
            try:
                made = server.answer(request.pop("do"), descriptors, request)
                answer = {"made": made}
            except Exception as error:  # any error of the library
                answer = {"error": str(error) or type(error).__name__}
            send(connection, answer)
    if server.folder:  # a killed parent process has not removed it
        shutil.rmtree(server.folder, ignore_errors=True)


def send(connection: socket.socket, message: object, fd: int | None = None) -> None:
    """Send a message as JSON, with the file descriptor `fd` unless it is None."""
    raw = json.dumps(message).encode()
    head = len(raw).to_bytes(LENGTH_NBYTES, "little")
    socket.send_fds(connection, [head], [] if fd is None else [fd])
    connection.sendall(raw)


def receive(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive a message and its file descriptors; None once the socket is closed."""
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH_NBYTES, 1)
    head += _received(connection, LENGTH_NBYTES - len(head)) if head else b""
    if len(head) < LENGTH_NBYTES:
        return None
    nbytes = int.from_bytes(head, "little")
    raw = _received(connection, nbytes)
    return (json.loads(raw), list(descriptors)) if len(raw) == nbytes else None


def _received(connection: socket.socket, nbytes: int) -> bytes:
    """Receive `nbytes` bytes, or fewer if the sender closes the socket."""
    parts, rest = [], nbytes
    while rest and (part := connection.recv(min(rest, 1 << 20))):
        parts.append(part)
        rest -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # some libraries crash in an orderly shutdown
