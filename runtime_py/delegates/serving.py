"""The subprocess that calls a vendor's library; `subprocesses.py` starts it.

In, on a socket: requests. Each is a length and a JSON text of that length; some carry a
file descriptor of shared memory. Out, on the same socket: an answer to each request, in
order: `{"made": ...}`, or `{"error": "why"}`. Each backend has a script with a class
`Work`. The method of `Work` with the request's name is called with the request's
descriptors and arguments. `Work.folder` is the subprocess's folder, "" before a request
has set it.

This module imports nothing of kvc, so a crash of the library stays in the subprocess.
"""

import contextlib
import json
import os
import runpy
import shutil
import socket
import sys
from typing import Any, Final

LENGTH_NBYTES: Final = 4


def main(descriptor: int, script: str) -> None:
    """Answer requests until the parent process closes the socket."""
    connection = socket.socket(fileno=descriptor)
    work = runpy.run_path(script)["Work"]()
    # The other end may have been killed while a request was being handled.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (found := receive(connection)) is not None:
            request, descriptors = found
            try:
                do = getattr(work, request.pop("do"))
                answer = {"made": do(*descriptors, **request)}
            except Exception as error:  # any error of the library
                answer = {"error": str(error) or type(error).__name__}
            send(connection, answer)
    if work.folder:  # a killed parent process has not removed it
        shutil.rmtree(work.folder, ignore_errors=True)


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
