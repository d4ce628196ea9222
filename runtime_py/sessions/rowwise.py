"""`Rowwise`: what sessions do with single rows; `SessionRows`: calls of some rows.

In: a session, its rows by number. Out: rows that are reset, copied, or called alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.adapted import AdaptedRows
from kvc.runtime.sessions.methods import Callables
from kvc.runtime.sessions.rows import choose_rows, reset_row, take_row
from kvc.runtime.sessions.usage import Use
from kvc.runtime.states.row_range import RowRange
from kvc.schema.errors import BadSetting


class Rowwise(AdaptedRows):
    """Base class of sessions, whose rows can be changed one by one."""

    def reset_row(self, row: int) -> None:
        """Reset one row of a batch; the other rows do not change.

        Raises:
            BadSetting: there is no such row.
            StateMismatch: a state, or the position, is shared by all rows.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "reset_row"):
            reset_row(self._engine.program, self._states, row)
            self._note_change()

    def copy_row(self, source: int, target: int, tokens: int | None = None) -> None:
        """Copy one row of a batch to another row; only the target row changes.

        Args:
            source: the row to copy.
            target: the row to write.
            tokens: how many of the row's first tokens to copy, None for all.

        Raises:
            KvcError: as `admit`.
        """
        with Use(self._usage, "copy_row"):
            program, states = self._engine.program, self._states
            names = "copy_row", "target", "source"
            take_row(program, states, target, states, source, names, tokens)
            self._note_change()

    def admit(
        self, row: int, other: "Rowwise", other_row: int = 0, tokens: int | None = None
    ) -> None:
        """Copy a row of another session into a row of this session.

        Nothing else changes. The other session must be of the same program and have
        the same sizes, except for the number of rows.

        Args:
            row: the row of this session to write.
            other: the other session.
            other_row: the row of that session to copy.
            tokens: how many of the row's first tokens to copy, None for all.

        Raises:
            BadSetting: no such row, `other` is not a session of this program, or the
                row has fewer tokens.
            StateMismatch: as `reset_row`, or the sessions have different sizes.
            CacheOverflow: the row has more tokens than this session's capacity.
            NotRewindable, CannotRewind: a row of fewer tokens cannot be had from it.
            NotLoaded: this program has not loaded the row's adapter.
            Poisoned, Busy, Closed, Forked: as `call`, of both sessions.
        """
        if other is self:
            self.copy_row(other_row, row, tokens)
            return
        if not isinstance(other, Rowwise):
            raise BadSetting(name="other", expected="a Session", found=repr(other))
        with Use(self._usage, "admit"), Use(other._usage, "admit"):
            mine, theirs = self._engine.identity, other._engine.identity
            if mine != theirs:
                expected = f"a session of program {mine}"
                raise BadSetting(name="other", expected=expected, found=theirs)
            names, states = ("admit", "row", "other_row"), other._states
            program = self._engine.program
            take_row(program, self._states, row, states, other_row, names, tokens)
            self._note_change()

    def some_rows(self, first: int, count: int = 1) -> "SessionRows":
        """Return some adjacent rows, whose methods can be called without the others.

        Only these rows are computed; the others stay as they are. They are those of
        this session: no state is copied.

        Args:
            first: the first row.
            count: the number of rows.

        Raises:
            BadSetting: there are no such rows.
            StateMismatch: a state, or the position, is shared by all rows.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "some_rows"):
            chosen = choose_rows(self._engine.program, self._states, first, count)
        return SessionRows(self, chosen)

    def prepare(self, name: str, *args: object) -> None:
        """Bind a method for arguments of these sizes, whatever they hold.

        Nothing runs. A later call of such sizes is as fast as one after it, on this
        session and, unless kernels of torch run, on others of its sizes.

        Raises:
            KvcError: as `call`.
        """
        self._prepare(name, args, None)

    @property
    def position(self) -> Array:
        """Return how many tokens each row holds, int64 [batch]."""
        raise NotImplementedError

    def _call(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        rows: RowRange | None,
    ) -> object:
        """Run a method for some rows, or for all."""
        raise NotImplementedError

    def _prepare(
        self, name: str, args: Sequence[object], rows: RowRange | None
    ) -> None:
        """Bind a method for some rows, or for all."""
        index = self._find(name)
        with Use(self._usage, name):
            self._engine.prepare(index, args, self._states, rows)

    def _note_change(self) -> None:
        """Note that the states have changed."""
        raise NotImplementedError


class SessionRows(Callables):
    """Some adjacent rows of a session.

    Attributes:
        first: the first row.
        count: the number of rows.
    """

    def __init__(self, session: Rowwise, rows: RowRange) -> None:
        """Take over a range of rows that the session has checked."""
        self._session, self._rows = session, rows
        self._engine = session._engine
        self.first, self.count = rows.first, rows.count

    def call(self, name: str, *args: object, **kwargs: object) -> object:
        """Run a method on these rows; arguments and results have as many rows.

        Raises:
            StateMismatch: the method changes all rows of a session: it takes no row
                lengths.
            KvcError: as `Session.call`.
        """
        return self._session._call(name, args, kwargs, self._rows)

    def prepare(self, name: str, *args: object) -> None:
        """Bind a method for these rows, as `Session.prepare`."""
        self._session._prepare(name, args, self._rows)

    @property
    def position(self) -> Array:
        """Return how many tokens each of the rows holds, int64 [count].

        Raises:
            KvcError: as `Session.position`.
        """
        return np.array(self._rows.of(self._session.position.tolist()), np.int64)

    def close(self) -> None:
        """Do nothing: the rows belong to the session."""

    def __repr__(self) -> str:
        last = self.first + self.count - 1
        which = f"row {last}" if self.count == 1 else f"rows {self.first} to {last}"
        return f"<{which} of {self._session}>"
