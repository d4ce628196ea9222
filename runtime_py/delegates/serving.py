"""The subprocess that calls a vendor's library; `subprocesses.py` starts it.

In, on a socket: requests. A request is a length of 4 bytes, little-endian, and a JSON
text of this length; some requests carry a file descriptor of shared memory. Out, on the
same socket: an answer to each request, in order: `{"made": ...}`, or
`{"error": "why"}`. `Server` answers these requests:

    open    run the backend's script, whose class `Work` loads the library
    bind    map shared memory, and let `Work.bind` bind a built model to arrays
    run     call the function that `Work.bind` returned
    forget  release a bound model

For any other request, such as `build`, `Server` calls the method of `Work` with the
request's name.

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
        """Return the result of a request.

        Args:
            do: the name of the request.
            descriptors: the file descriptors that came with the request.
            facts: the other arguments of the request, by name.
        """
        handler = getattr(self if do in _SHARED else self._work, do)
        return handler(*descriptors, **facts)

    def open(self, paths: list[str], folder: str) -> None:
        """Load the library.

        Args:
            paths: the folders in which Python finds packages.
            folder: the folder to work in, also for temporary files.
        """
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
        """Bind a built model to arrays.

        Args:
            memory: file descriptor of the shared memory, which this method closes.
            name: the name of the model.
            number: the number of the bound model, for `run` and `forget`.
            nbytes: the size of the memory in bytes.
            places: the arrays in the memory, by use, such as "inputs".
        """
        import numpy as np  # `open` sets the path of numpy

        held = mmap.mmap(memory, nbytes)
        os.close(memory)
        arrays = {
            use: {n: np.ndarray(shape, kind, held, at) for n, kind, at, shape in some}
            for use, some in places.items()
        }
        self._bound[number] = self._work.bind(name, **arrays), arrays

    def run(self, number: int) -> None:
        """Run the bound model with a number."""
        self._bound[number][0]()

    def forget(self, number: int) -> None:
        """Release the bound model with a number, if there is such a model."""
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
    if server.folder:  # a killed parent leaves the folder
        shutil.rmtree(server.folder, ignore_errors=True)


def send(connection: socket.socket, message: object, fd: int | None = None) -> None:
    """Send a message as JSON, and the file descriptor `fd` if not None."""
    raw = json.dumps(message).encode()
    head = len(raw).to_bytes(LENGTH_NBYTES, "little")
    socket.send_fds(connection, [head], [] if fd is None else [fd])
    connection.sendall(raw)


def receive(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive a message and file descriptors; None once the socket is closed."""
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
