"""The process that runs one chat template; `rendering.py` starts it as a script.

In, on stdin: the text and limits of a template, then the variables for each text to
render; each request is its length, then JSON. Out, on stdout: for each request a
letter, a length, and bytes of that length.

    t  text              f  error               m  reason why jinja2 cannot be used
    c  too many characters                      n  too much memory

When the processor time is used up, the system ends the process. The module imports
nothing of kvc, so that the process starts quickly.
"""

import json
import resource
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jinja2 import Template

_SANDBOX: Final = str(Path(__file__).with_name("sandbox.py"))
_LEAST: Final = (3, 1, 6)  # sandboxes of earlier versions have known escapes
_LENGTH_NBYTES: Final = 8


def main() -> None:
    """Parse a template, then render it for each request."""
    start = _next_request()
    assert start is not None
    runner = Runner(start["seconds"], start["characters"])
    try:
        import jinja2

        numbers = tuple(
            int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal()
        )
        if numbers < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise ImportError(
                f"version {jinja2.__version__} is installed, {least} or later is needed"
            )
        new_template = runpy.run_path(_SANDBOX)["new_template"]
    except ImportError as error:
        _answer(b"m", str(error).encode("utf-8", "replace"))
        return
    _limit_memory(start["nbytes"])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    read = partial(runner.read, new_template, start["text"])
    if not runner.answer(read):
        return
    while (variables := _next_request()) is not None:
        runner.answer(partial(runner.render, variables))


class _TooLongError(Exception):
    """A rendered text has more characters than the limit."""


class Runner:
    """Keeps one template, and runs the template within the limits."""

    def __init__(self, seconds: float, characters: int) -> None:
        """Store the limits: the seconds of a request, and the characters of a text."""
        self._seconds, self._characters = seconds, characters
        self._template: Template | None = None

    def answer(self, make: Callable[[], bytes]) -> bool:
        """Send the result of `make`, or the error; return whether `make` succeeded."""
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        try:
            kind, content = b"t", make()
        except _TooLongError:
            kind, content = b"c", b""
        except MemoryError:
            kind, content = b"n", b""
        except Exception as error:  # code of the template may raise any error
            reason = str(error) or type(error).__name__
            kind, content = b"f", reason.encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(kind, content)
        return kind == b"t"

    def read(self, new_template: "Callable[[str], Template]", text: str) -> bytes:
        """Parse the template.

        Raises:
            Exception: any error of parsing.
        """
        self._template = new_template(text)
        return b""

    def render(self, variables: Mapping[str, object]) -> bytes:
        """Return the text that the template renders.

        Raises:
            Exception: any error of the template.
        """
        assert self._template is not None
        pieces, length = [], 0
        for piece in self._template.generate(variables):
            pieces.append(piece)
            length += len(piece)
            if length > self._characters:
                raise _TooLongError
        return "".join(pieces).encode("utf-8", "surrogatepass")


def _limit_memory(nbytes: int) -> None:
    """Limit the memory of this process, where the system supports it."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        nbytes = min(nbytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, most))


def _next_request() -> dict[str, Any] | None:
    head = sys.stdin.buffer.read(_LENGTH_NBYTES)
    if len(head) < _LENGTH_NBYTES:
        return None
    found: dict[str, Any] = json.loads(
        sys.stdin.buffer.read(int.from_bytes(head, "little"))
    )
    return found


def _answer(kind: bytes, content: bytes) -> None:
    out = sys.stdout.buffer
    out.write(kind + len(content).to_bytes(_LENGTH_NBYTES, "little"))
    out.write(content)
    out.flush()


if __name__ == "__main__":
    main()
