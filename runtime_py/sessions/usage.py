"""Let one thread at a time use a session.

In: the engine and the states of a session. Out: a `Usage`. Each operation of a session
runs in a `with` block of a `Use`; until the block ends, operations of other threads
raise `Busy`.
"""

import threading
from collections.abc import Callable

from kvc.runtime.sessions.engine import Engine
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import Busy, Closed, StateMismatch


class Usage:
    """The lock of a session, and the checks before each use.

    Attributes:
        engine, states: the engine and the states of the session.
        lock: held while the session is used.
        running: the name of the running operation, "" if there is none.
        before: a function to run before the next use of the session, or None.
    """

    def __init__(self, engine: Engine, states: StateMemory) -> None:
        self.engine, self.states = engine, states
        self.lock = threading.Lock()
        self.running = ""
        self.before: Callable[[], None] | None = None

    def settle(self) -> None:
        """Check the process, and run the function in `before`.

        Raises:
            Forked: the session was opened by another process.
        """
        self.engine.check_process("session")
        if self.before is not None:
            self.before()

    def __str__(self) -> str:
        """Return the position of the session as text, or why it has none.

        For example "closed" or the name of the running method. The text is for
        messages, and does not use the session.
        """
        if self.states.closed or self.engine.closed:
            return "closed"
        if self.engine.forked:
            return "of another process"
        if not self.lock.acquire(blocking=False):
            return f"running {self.running or 'a method'}"
        try:
            return _position_text(self.states)
        finally:
            self.lock.release()


class Use:
    """A context manager for one use of a session; small, since every call has one."""

    __slots__ = ("_closing", "_name", "_usage")

    def __init__(self, usage: Usage, name: str, closing: bool = False) -> None:
        """Store the name of the operation; allow a closed program if `closing`.

        Entering the `with` block raises `Busy`, `Closed` or `Forked`.
        """
        self._usage, self._name, self._closing = usage, name, closing

    def __enter__(self) -> None:
        usage = self._usage
        if not self._closing:
            usage.settle()
        if not usage.lock.acquire(blocking=False):
            raise Busy(method=usage.running or "a method")
        try:
            if usage.states.closed:
                raise Closed(kind="session")
            if usage.engine.closed and not self._closing:
                raise Closed(kind="program")
            usage.running = self._name
        except BaseException:
            usage.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._usage.running = ""
        self._usage.lock.release()


def _position_text(states: StateMemory) -> str:
    """Return the position of open states as text, without raising errors."""
    if states.poisoned:
        return f"poisoned by {states.poisoned}"
    try:
        found = states.known_position()
    except StateMismatch:
        return "a position out of range"
    if found is None:
        return "no position"
    most = "" if states.capacity is None else f" of {states.capacity}"
    pending = sum(map(len, states.pending))
    rows = str(found[0]) if len(found) == 1 else str(list(found))
    return f"position {rows}{most}{f', {pending} pending' if pending else ''}"
