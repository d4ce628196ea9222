"""`Renderer`: run a chat template in a subprocess, within limits.

    text of a template --Renderer--> process of `template_process.py`
    variables of the template --render--> text

In: the text of a template, limits, variables. Out: the rendered text, or an error that
names the exceeded limit. The process lives as long as the renderer. A template can
compute forever within a single operation of Python, and only the end of the process
stops it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from kvc.schema.errors import (
    BadChatTemplate,
    BadSetting,
    KvcError,
    MissingPackage,
    TemplateLimit,
    reason_of,
)
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import check_count, check_penalty

_SCRIPT: Final = Path(__file__).with_name("template_process.py")
# Sets the module path of this process, and runs the script given after it.
_START: Final = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_path(sys.argv[2], run_name='__main__')"
)
_INSTALL: Final = "pip install 'jinja2>=3.1.6'"
_KIND_NBYTES: Final = 1
_LENGTH_NBYTES: Final = 8
_MOST_SECONDS: Final = 1_000_000


@frozen
class Limits:
    """The limits of a template.

    Attributes:
        max_seconds: the greatest processor time for parsing, and for rendering each
            text.
        max_characters: the greatest length of a rendered text.
        max_nbytes: the greatest memory of the process, on Linux.
    """

    max_seconds: float = 2.0
    max_characters: int = 10_000_000
    max_nbytes: int = 512 << 20

    def checked(self) -> "Limits":
        """Return the limits, checked, as numbers.

        Raises:
            BadSetting: a limit is not a number or is negative; or the time is zero, or
                exceeds the range of a system timer.
        """
        seconds = check_penalty("max_seconds", self.max_seconds)
        if seconds > _MOST_SECONDS:
            expected = f"a number above 0, at most {_MOST_SECONDS:,}"
            raise BadSetting(
                name="max_seconds", expected=expected, found=repr(self.max_seconds)
            )
        return Limits(
            seconds,
            check_count("max_characters", self.max_characters),
            check_count("max_nbytes", self.max_nbytes),
        )


class Renderer:
    """A parsed template; safe to use from many threads.

    Attributes:
        text: the text of the template.
    """

    def __init__(self, file: str, text: str, limits: Limits) -> None:
        """Start a process, which parses the template.

        Args:
            file: the file of the template, for messages.
            text: the text of the template.
            limits: the limits of the template.

        Raises:
            MissingPackage: jinja2 is not installed, or too old to be safe.
            BadChatTemplate: the template is invalid, or no process can be started.
            TemplateLimit: parsing exceeds a limit.
        """
        self.text = text
        self._file, self._limits = file, limits
        self._process: _Process | None = None
        self._lock = threading.Lock()
        _RENDERERS.add(self)
        with self._lock:
            self._running()

    def renew_lock(self) -> None:
        """Replace the lock after a fork, since a parent's thread may have held it."""
        self._lock = threading.Lock()

    def render(self, variables: Mapping[str, object]) -> str:
        """Return the text that the template renders.

        Raises:
            BadSetting: the variables cannot be written as JSON.
            BadChatTemplate: the template or its process fails.
            TemplateLimit: rendering exceeds a limit.
        """
        try:
            request = json.dumps(variables).encode()
        except (TypeError, ValueError, RecursionError) as error:
            expected = f"texts, lists and mappings of them ({error})"
            name = next(filter(lambda n: not _is_json(variables[n]), variables), "")
            found = repr(type(variables.get(name)).__name__)
            raise BadSetting(name=name, expected=expected, found=found) from error
        with self._lock:
            return self._ask(self._running(), request)

    def _running(self) -> "_Process":
        """Return the process of the template.

        A new process is started at the first call, after a fork, and if the last
        process has ended.
        """
        if self._process is None or self._process.of_other_process():
            self._process, limits = None, self._limits
            start = {
                "text": self.text,
                "seconds": limits.max_seconds,
                "characters": limits.max_characters,
                "nbytes": limits.max_nbytes,
            }
            process = self._started()
            try:
                self._ask(process, json.dumps(start).encode())
            except KvcError:
                process.end()
                raise
            self._process = process
        return self._process

    def _started(self) -> "_Process":
        try:
            return _Process()
        except (OSError, ValueError) as error:
            reason = f"its process cannot be started: {reason_of(error)}"
            raise BadChatTemplate(file=self._file, reason=reason) from error

    def _ask(self, process: "_Process", request: bytes) -> str:
        """Send a request to the process, and return the text that the process answers.

        If the process does not answer with a text, raise the error. The process is
        ended unless the error is one of the template itself.
        """
        try:
            kind, answer = process.ask(request)
        except BaseException:  # Ctrl-C too: the template may run forever
            self._process = None
            process.end()
            raise
        if kind == b"t":
            return answer.decode("utf-8", "surrogatepass")
        if kind != b"f":
            self._process = None
            process.end()
        raise self._problem(kind, answer.decode("utf-8", "replace"))

    def _problem(self, kind: bytes, reason: str) -> KvcError:
        """Return the error for an answer that is not a text.

        Args:
            kind: the letter of the answer, as in `template_process.py`; "s" if the
                processor time was used up, "e" if the process ended in another way.
            reason: the content of the answer.
        """
        limits = self._limits
        most = {
            b"s": (f"{limits.max_seconds:g} s of a processor", "max_seconds"),
            b"c": (f"{limits.max_characters:,} characters", "max_characters"),
            b"n": (f"{limits.max_nbytes:,} bytes of memory", "max_nbytes"),
        }
        if kind in most:
            limit, setting = most[kind]
            return TemplateLimit(file=self._file, limit=limit, setting=setting)
        if kind == b"m":
            what = "the bundle's chat template"
            facts = {"what": what, "package": "jinja2", "install": _INSTALL}
            return MissingPackage(**facts, reason=reason)
        return BadChatTemplate(file=self._file, reason=reason)


_RENDERERS: Final[weakref.WeakSet[Renderer]] = weakref.WeakSet()


def _renew_locks() -> None:
    for renderer in list(_RENDERERS):
        renderer.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class _Process:
    """A process that runs one template; it ends when the object is freed."""

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError, ValueError: the system refuses, or the path of Python is unknown.
        """
        if not sys.executable:
            raise ValueError("sys.executable names no Python")
        entries: list[object] = list(sys.path)  # may hold objects of any type
        texts = [entry for entry in entries if isinstance(entry, str)]
        path = json.dumps([entry or str(Path.cwd()) for entry in texts])
        command = [sys.executable, "-I", "-S", "-c", _START, path, str(_SCRIPT)]
        self._owner = os.getpid()
        # In a new session, so that Ctrl-C at a terminal reaches only this process.
        # Without buffers, as another thread may hold their locks at a fork.
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self._process, self._owner)

    def of_other_process(self) -> bool:
        """Tell whether the process was started before a fork, by the parent process."""
        return os.getpid() != self._owner

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request; return the letter and the content of the answer.

        If the process ends without an answer, return a letter and a text that tell why.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            _write(requests, len(request).to_bytes(_LENGTH_NBYTES, "little") + request)
        except BrokenPipeError:
            return self._why_ended()
        head = _read(answers, _KIND_NBYTES + _LENGTH_NBYTES)
        nbytes = int.from_bytes(head[_KIND_NBYTES:], "little")
        answer = _read(answers, nbytes)
        if len(head) < _KIND_NBYTES + _LENGTH_NBYTES or len(answer) < nbytes:
            return self._why_ended()
        return head[:_KIND_NBYTES], answer

    def _why_ended(self) -> tuple[bytes, bytes]:
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return b"s", b""
        return b"e", f"its process ended with code {code}".encode()


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _write(requests: IO[bytes], text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[requests.write(left) :]


def _read(answers: IO[bytes], nbytes: int) -> bytes:
    """Return `nbytes` bytes; fewer if the process has closed its output."""
    found = bytearray()
    while len(found) < nbytes and (piece := answers.read(nbytes - len(found))):
        found += piece
    return bytes(found)


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """End a process; in a forked child, leave the parent's process alone."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # unwritten bytes of a closed pipe are lost
            pipe.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:
        process.returncode = 0  # only the parent may wait for the process
