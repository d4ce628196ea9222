"""`GoingBack`: what code needs that runs tokens which it may have to forget.

In: the usage of a session of one row. Out: whether its calls can be forgotten, and the
session at an earlier position, the first of several to which its states can go.
"""

from collections.abc import Callable, Iterable

from kvc.runtime.sessions.rewinding import forgettable_calls, rewind_to_one
from kvc.runtime.sessions.usage import Usage, Use


class GoingBack:
    """How one session goes back."""

    def __init__(self, usage: Usage, note_change: Callable[[], None]) -> None:
        """Take the usage of a session, and what is to be called when it changes."""
        self._usage, self._note_change = usage, note_change

    def forgettable_calls(self, methods: Iterable[str]) -> int | None:
        """Return how many of the last calls of these methods can be forgotten.

        Returns:
            None where nothing limits it but rings.

        Raises:
            NotRewindable: a state that one of them writes cannot go back.
            NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            program = usage.engine.program
            return forgettable_calls(program, usage.states, frozenset(methods))

    def to_one_of(self, ends: Iterable[int]) -> int:
        """Rewind to the first of these positions where that is possible; return it.

        Raises:
            NotRewindable: a state can go back to none of them; nothing has changed.
            NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            end, changed = rewind_to_one(usage.engine.program, usage.states, ends)
            if changed:
                self._note_change()
            return end

    def give_up(self, method: str) -> None:
        """Have the session refused until a reset: what a call left cannot be undone.

        Raises:
            Busy, Closed, Forked: as `Session.rewind`.
        """
        with Use(self._usage, "rewind"):
            self._usage.states.poisoned = method
            self._note_change()
