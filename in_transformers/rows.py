"""The rows of a cache: sessions of one row each, or one session of several rows.

In: the tokens of each row. Out: logits; the sessions hold the caches. Rows are copied,
dropped and put into another order without running anything again.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kvc.runtime import (
    BadSetting,
    CannotRewind,
    NoPosition,
    NotRewindable,
    Program,
    Session,
    UnknownName,
)
from kvc.runtime.calls.entries import find_row_lengths
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import find_roles
from kvc.schema.model import Method
from kvc.transformers.token_calls import Floats, TokenCalls, Tokens


class Rows(Protocol):
    """The rows of a cache."""

    def run(self, parts: Sequence[Tokens], keep: int) -> list[Floats]:
        """Run the tokens of each row; see `TokenCalls.run`."""

    def encode(self, given: Sequence[Array], skipped: Sequence[bool]) -> None:
        """Run the encoder on the input of each row, without padding."""

    def drop(self, counts: Sequence[int]) -> None:
        """Drop the last tokens of each row."""

    def select(self, indices: Sequence[int]) -> "Rows":
        """Return the rows with these indices, which replace all rows."""

    def copied(self) -> "Rows":
        """Return a copy of all rows."""

    def close(self) -> None:
        """Free the memory of all rows."""


class SeparateRows:
    """Rows that are sessions of one row each.

    Attributes:
        sessions: the session of each row.
        calls: the calls of such sessions.
    """

    def __init__(
        self, sessions: Sequence[Session], calls: TokenCalls, records: bool
    ) -> None:
        """Take over sessions.

        Args:
            sessions: a session of one row for each row.
            calls: the calls of sessions of one row.
            records: whether tokens may be dropped that states cannot forget by
                themselves; a copy from before each call is kept then.
        """
        self.sessions, self.calls, self._records = list(sessions), calls, records
        self._before = dict[int, tuple[Session, Tokens]]()  # of the last call

    def run(self, parts: Sequence[Tokens], keep: int) -> list[Floats]:
        """Run the tokens of each row; see `TokenCalls.run`."""
        pairs = enumerate(zip(self.sessions, parts, strict=True))
        return [self._run(row, session, part, keep) for row, (session, part) in pairs]

    def encode(self, given: Sequence[Array], skipped: Sequence[bool]) -> None:
        """Run the encoder on the input of each row, without padding."""
        for session, one, skip in zip(self.sessions, given, skipped, strict=True):
            if not skip:
                session.call(_encoder(session).name, one[None])

    def drop(self, counts: Sequence[int]) -> None:
        """Drop the last tokens of each row.

        Raises:
            NotRewindable: a state cannot be restored.
        """
        for row, count in enumerate(counts):
            if count:
                self._drop(row, count)

    def select(self, indices: Sequence[int]) -> "SeparateRows":
        """Return the rows with these indices, which replace all rows.

        The first that takes a row keeps its session; each further one forks it.
        """
        self._forget()
        taken, made = set[int](), list[Session]()
        for index in indices:
            session = self.sessions[index]
            made.append(session.fork() if index in taken else session)
            taken.add(index)
        for index, session in enumerate(self.sessions):
            if index not in taken:
                session.close()
        return SeparateRows(made, self.calls, self._records)

    def copied(self) -> "SeparateRows":
        """Return a copy of all rows."""
        forks = [session.fork() for session in self.sessions]
        return SeparateRows(forks, self.calls, self._records)

    def close(self) -> None:
        """Free the memory of all rows."""
        self._forget()
        for session in self.sessions:
            session.close()

    def _run(self, row: int, session: Session, part: Tokens, keep: int) -> Floats:
        if self._records and not _goes_back(session):
            if row in self._before:
                self._before[row][0].close()
            self._before[row] = session.fork(), part
        (logits,) = self.calls.run(session, [part], keep)
        return logits

    def _drop(self, row: int, count: int) -> None:
        session = self.sessions[row]
        if row not in self._before:
            session.rewind(count)
            return
        before, part = self._before.pop(row)
        if count > len(part):
            before.close()
            session.rewind(count)
            return
        session.close()
        self.sessions[row] = before
        if count < len(part):
            self.calls.run(before, [part[: len(part) - count]], 1)

    def _forget(self) -> None:
        for session, _ in self._before.values():
            session.close()
        self._before.clear()


class SharedRows:
    """Rows that are those of one session."""

    def __init__(self, session: Session, calls: TokenCalls, order: list[int]) -> None:
        """Take over a session.

        Args:
            session: the session.
            calls: the calls of such a session.
            order: for each row the row of the session.
        """
        self._session, self.calls, self._order = session, calls, order

    def run(self, parts: Sequence[Tokens], keep: int) -> list[Floats]:
        """Run the tokens of each row; see `TokenCalls.run`."""
        placed: list[Tokens] = [()] * len(parts)
        for row, part in zip(self._order, parts, strict=True):
            placed[row] = part
        found = self.calls.run(self._session, placed, keep)
        return [found[row] for row in self._order]

    def encode(self, given: Sequence[Array], skipped: Sequence[bool]) -> None:
        """Run the encoder on the input of each row, without padding.

        All rows run in one call, so none is skipped.
        """
        method = _encoder(self._session)
        taken = find_row_lengths(method)
        if taken is None:
            self._session.call(method.name, np.stack([given[at] for at in self._at]))
            return
        lengths = np.array([len(given[at]) for at in self._at], np.int64)
        padded = np.zeros((len(given), lengths.max()), np.int64)
        for row, at in zip(padded, self._at, strict=True):
            row[: len(given[at])] = given[at]
        self._session.call(method.name, padded, **{taken.name: lengths})

    def drop(self, counts: Sequence[int]) -> None:
        """Drop the last tokens of each row.

        Raises:
            NotRewindable, CannotRewind: a state cannot be restored.
        """
        placed = np.zeros(len(counts), np.int64)
        placed[self._order] = counts
        self._session.rewind(placed)

    def select(self, indices: Sequence[int]) -> Rows:
        """Return the rows with these indices, which replace all rows.

        The first that takes a row keeps it; each further one takes a copy, in a row
        that nothing takes. So no row is overwritten that is still to be copied.
        """
        if len(indices) != len(self._order):
            return self._apart(indices)
        free = [row for at, row in enumerate(self._order) if at not in indices]
        order = list[int]()
        for index in indices:
            row = self._order[index]
            if row in order:
                self._session.copy_row(row, free[-1])
                row = free.pop()
            order.append(row)
        return SharedRows(self._session, self.calls, order)

    def copied(self) -> "SharedRows":
        """Return a copy of all rows."""
        return SharedRows(self._session.fork(), self.calls, list(self._order))

    def close(self) -> None:
        """Free the memory of all rows."""
        self._session.close()

    def _apart(self, indices: Sequence[int]) -> SeparateRows:
        """Return other rows than the session has, as sessions of their own."""
        made = list[Session]()
        for index in indices:
            made.append(self._session.one_row())
            made[-1].admit(0, self._session, self._order[index])
        self._session.close()
        return SeparateRows(made, TokenCalls(made[0], 1), records=False)

    @property
    def _at(self) -> list[int]:
        """Return for each row of the session which of the rows it is."""
        return [self._order.index(row) for row in range(len(self._order))]


def _encoder(session: Session) -> Method:
    (method,) = find_roles(session, "encode")
    return method


def _goes_back(session: Session) -> bool:
    """Tell whether a session can drop the tokens of its last call by itself."""
    try:
        return session.rewindable is not None
    except (NoPosition, NotRewindable, CannotRewind):
        return False


def open_rows(program: Program, count: int, records: bool, apart: bool) -> Rows:
    """Open as many rows of a program, in one session if its sessions have as many.

    Args:
        program: the program.
        count: the number of rows.
        records: as for `SeparateRows`.
        apart: whether each row must be a session of its own.

    Raises:
        UnknownName: the program cannot generate.
        OutOfMemory, Closed, Forked: as `Program.session`.
    """
    if count > 1 and not apart:
        try:
            session = program.session(batch=count)
        except (BadSetting, UnknownName):
            pass
        else:
            return SharedRows(session, TokenCalls(session, count), list(range(count)))
    sessions = [program.session() for _ in range(count)]
    return SeparateRows(sessions, TokenCalls(sessions[0], 1), records)
