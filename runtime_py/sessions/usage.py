"""Let one thread at a time use a session.

In: the engine and the states of a session. Out: `Usage`, of which a `Use` is entered
for whatever a session does; until it is left, others are refused.
"""

import threading
from collections.abc import Callable, Sequence

from kvc.runtime.sessions.engine import Engine
from kvc.runtime.states.memory import StateMemory
from kvc.schema.errors import Busy, Closed, StateMismatch


class Usage:
    """Who uses a session, and whether it can be used.

    Attributes:
        engine, states: of the session.
        lock: held while it is used.
        running: what uses it, "" for nothing.
        before: runs before the session is used next, None for nothing.
    """

    def __init__(self, engine: Engine, states: StateMemory) -> None:
        self.engine, self.states = engine, states
        self.lock = threading.Lock()
        self.running = ""
        self.before: Callable[[], None] | None = None

    def settle(self) -> None:
        """Do what comes before any look at the session, or use of it.

        Raises:
            Forked: the session is of another process.
        """
        self.engine.check_process("session")
        if self.before is not None:
            self.before()

    def __str__(self) -> str:
        """Say how far the session is, without using it."""
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
    """One use of a session; one is made for each, so it is small."""

    __slots__ = ("_closing", "_name", "_usage")

    def __init__(self, usage: Usage, name: str, closing: bool = False) -> None:
        """Give it a name for messages; `closing` one does without the program.

        Entering raises `Busy`, `Closed` or `Forked`.
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
    """Say how far open states are, which nothing else uses meanwhile; never fails."""
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
    return f"position {_rows(found)}{most}{f', {pending} pending' if pending else ''}"


def _rows(position: Sequence[int]) -> str:
    return str(position[0]) if len(position) == 1 else str(list(position))
