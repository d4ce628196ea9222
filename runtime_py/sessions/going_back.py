"""`GoingBack`: the interface by which generations and chats undo tokens.

In: the usage of a session. Out: the session at an earlier position, or copies of states
that a later rewind needs. `rewinding.py` and `states/kept.py` do the work.
"""

from collections.abc import Callable, Iterable, Sequence

from kvc.runtime.sessions.rewinding import forgettable_calls, rewind_rows
from kvc.runtime.sessions.usage import Usage, Use
from kvc.runtime.states.kept import (
    keep_copies,
    kept_nbytes,
    kept_positions,
    needing_copies,
)


class GoingBack:
    """Undoes the last tokens of one session."""

    def __init__(self, usage: Usage, note_change: Callable[[], None]) -> None:
        """Store the session's usage, and a function to call after a change."""
        self._usage, self._note_change = usage, note_change

    def forgettable_calls(self, methods: Iterable[str]) -> int | None:
        """Return how many of the last calls of `methods` can be undone.

        Returns:
            The number of calls; None if nothing but the length of ring buffers limits
            that number.

        Raises:
            NotRewindable: a state that one of the methods writes cannot go back.
            CannotRewind: several rows would have to go back by the same number.
            NoPosition, Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            program = usage.engine.program
            return forgettable_calls(program, usage.states, frozenset(methods))

    def to_one_of(self, ends: Sequence[Sequence[int]]) -> Sequence[int]:
        """Rewind each row to the first position in its list that the states can reach.

        Returns:
            These positions.

        Raises:
            NotRewindable: a row can reach no position of its list; nothing has changed.
            CannotRewind, NoPosition: as `Session.rewind`.
            Poisoned, Busy, Closed, Forked: as `Session.rewind`.
        """
        usage = self._usage
        with Use(usage, "rewind"):
            found, changed = rewind_rows(usage.engine.program, usage.states, ends)
            if changed:
                self._note_change()
            return found

    @property
    def needs_copies(self) -> bool:
        """Tell whether a rewind to some position needs a copy that is kept there."""
        with Use(self._usage, "rewind"):
            return bool(needing_copies(self._usage.states))

    @property
    def kept(self) -> Sequence[int]:
        """Return the positions at which copies are kept, the greatest first."""
        with Use(self._usage, "rewind"):
            return kept_positions(self._usage.states)

    @property
    def kept_nbytes(self) -> int:
        """Return how many bytes the kept copies take."""
        with Use(self._usage, "rewind"):
            return kept_nbytes(self._usage.states.kinds)

    def keep_at(self, position: int | None, most: int = 1) -> None:
        """Have the next prompt of a generation keep copies where it comes by.

        Args:
            position: where to keep copies of the states that need them; None for
                nowhere.
            most: the greatest number of positions with copies; the oldest are dropped.
        """
        with Use(self._usage, "rewind"):
            states = self._usage.states
            states.keep_at = None if position is None else (position, most)

    @property
    def keeps_at(self) -> int | None:
        """Return the position that `keep_at` has set, None for none."""
        found = self._usage.states.keep_at
        return None if found is None else found[0]

    def keep(self) -> None:
        """Keep copies if the session is at the position that `keep_at` has set."""
        with Use(self._usage, "rewind"):
            states = self._usage.states
            if states.keep_at is not None and states.position()[0] == self.keeps_at:
                keep_copies(states, states.keep_at[1])
                states.keep_at = None

    def give_up(self, method: str) -> None:
        """Poison the session, since a call of `method` cannot be undone.

        The session refuses calls until a reset.

        Raises:
            Busy, Closed, Forked: as `Session.rewind`.
        """
        with Use(self._usage, "rewind"):
            self._usage.states.poisoned = method
            self._note_change()
