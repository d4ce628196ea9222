"""`Rows`: the states of all rows of a scheduler, whatever the program allows.

In: tokens for single rows. Out: the logits after them; rows that are emptied, copied,
cut to their first tokens, moved out. `BatchRows` are rows of one session, which decode
in one call. `LaneRows` are sessions of one row each, for programs without batches.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from kvc.runtime import Program, Session
from kvc.runtime.calls.chunks import chunk_sizes, plan_chunks
from kvc.runtime.generation.logits import Logits
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import find_roles
from kvc.schema.closing import Closing
from kvc.schema.errors import (
    BadSetting,
    CannotRewind,
    NoPosition,
    NotRewindable,
    Poisoned,
    StateMismatch,
)
from kvc.schema.model import Method

Chosen = tuple[str | None, float]  # the name of an adapter, and its scale
PLAIN: Chosen = (None, 1.0)
_WIDTH = 16  # prompts are padded to multiples of it, so that few sizes are bound
_NOT_BACK = (NotRewindable, CannotRewind, NoPosition)


class Rows(Closing):
    """The states of all rows.

    Attributes:
        size: the number of rows.
        capacity: how many tokens a row can hold, None for no limit.
        longest: how many tokens one call can add, None for no limit.
        vocabulary: how many logits a token has.
        together: whether all rows decode in one call.
    """

    size: int
    capacity: int | None
    longest: int | None
    vocabulary: int
    together: bool

    @abstractmethod
    def read(self, row: int, tokens: Sequence[int]) -> Logits:
        """Run tokens of one row; return the logits after the last, float32 [vocab].

        Raises:
            ExecutionError: as `Session.call`.
        """

    @abstractmethod
    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        """Run one token of each of some rows; return the logits of each of them.

        Raises:
            ExecutionError: as `Session.call`.
        """

    @abstractmethod
    def clear(self, row: int, adapter: Chosen) -> None:
        """Empty a row, and give it an adapter."""

    @abstractmethod
    def cut(self, row: int, tokens: int) -> bool:
        """Drop all but a row's first tokens; tell whether that was possible."""

    @abstractmethod
    def copy(self, source: int, target: int, tokens: int) -> bool:
        """Copy a row's first tokens to another row; tell whether that was possible."""

    @abstractmethod
    def take(self, row: int, session: Session, adapter: Chosen, tokens: int) -> bool:
        """Copy first tokens of a session of one row; tell whether that was possible.

        `adapter` is that of the session.
        """

    @abstractmethod
    def give(self, row: int) -> Session:
        """Return a session of one row with the content of a row, which is then lost."""

    @abstractmethod
    def twin(self, row: int) -> Session:
        """Return a session of one row with the content of a row."""

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """Tell whether all rows have the states that calls have left."""

    @abstractmethod
    def mend(self) -> None:
        """Empty all rows after a call that has left states partly written."""


def open_rows(program: Program, size: int | None, capacity: int | None) -> Rows:
    """Return empty rows of a program.

    Args:
        program: a program with methods of the roles "prefill" and "decode".
        size: the number of rows; None for as many as the program allows, at most 16.
        capacity: how many tokens a row can hold, None for the most.

    Raises:
        UnknownName: the program cannot generate.
        BadSetting: the program's sessions have not so many rows, or tokens.
        OutOfMemory: the system provides no address space.
    """
    batch = program.symbols.get("batch")
    most = 1 if batch is None else batch.greatest
    if most > 1:
        wanted = min(most, 16) if size is None else size
        session = program.session(capacity, batch=wanted)
        try:
            session.some_rows(0)
            return BatchRows(session, wanted)
        except (StateMismatch, BadSetting):
            session.close()
    return LaneRows(program, 4 if size is None else size, capacity)


class BatchRows(Rows):
    """Rows of one session."""

    together = True

    def __init__(self, session: Session, size: int) -> None:
        """Take over an empty session of several rows.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: its methods take no row lengths.
        """
        self._session, self.size = session, size
        self.capacity, self.longest = session.capacity, session.longest_call
        self._decode = _with_lengths(find_roles(session, "decode"))[0]
        symbols = session.symbols
        self._prefills = [
            (method, chunk_sizes(method, symbols, self.longest))
            for method in _with_lengths(find_roles(session, "prefill"))
        ]
        self.vocabulary = vocabulary_of(self._decode)
        self._adapters = [PLAIN] * size

    def read(self, row: int, tokens: Sequence[int]) -> Logits:
        at, logits = 0, np.zeros(0, np.float32)
        while at < len(tokens):
            method, width = self._method_for(len(tokens) - at)
            part = tokens[at : at + width]
            given = np.zeros((1, width), np.int64)
            given[0, : len(part)] = part
            logits = self._call(method, row, given, [len(part)])[0]
            at += len(part)
        return logits

    def _method_for(self, count: int) -> tuple[Method, int]:
        """Return a method for the next of `count` tokens, and the width of its call."""
        wide = [(m, sizes) for m, sizes in self._prefills if sizes.most >= sizes.least]
        if count == 1 or not wide:
            return self._decode, 1
        method, sizes = max(wide, key=lambda pair: pair[1].most)
        padded = -(-count // _WIDTH) * _WIDTH if count > 8 else count
        return method, sizes.smallest(min(padded, sizes.most))

    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        first, last = min(tokens), max(tokens)
        given = np.zeros((last - first + 1, 1), np.int64)
        lengths = [0] * len(given)
        for row, token in tokens.items():
            given[row - first, 0], lengths[row - first] = token, 1
        made = self._call(self._decode, first, given, lengths)
        return {row: made[row - first] for row in tokens}

    def _call(
        self, method: Method, first: int, tokens: Array, lengths: Sequence[int]
    ) -> Logits:
        """Run tokens int64 [count, width] of rows; return float32 [count, vocab]."""
        leaf = method.row_lengths
        assert leaf is not None, "the methods take row lengths"
        dtype = method.graph.values[method.graph.inputs[leaf]].type.dtype.numpy
        named = {method.input_names[leaf]: np.array(lengths, dtype)}
        rows = self._session.some_rows(first, len(tokens))
        made = cast(Logits, rows.call(method.name, tokens, **named))
        return made.reshape(len(tokens), -1)

    def clear(self, row: int, adapter: Chosen) -> None:
        self._session.reset_row(row)
        if self._adapters[row] != adapter:
            self._adapters[row] = adapter
            names, scales = zip(*self._adapters, strict=True)
            self._session.use_adapter(names, scales)

    def cut(self, row: int, tokens: int) -> bool:
        return self._try_copy(self._session, row, row, tokens)

    def copy(self, source: int, target: int, tokens: int) -> bool:
        done = self._try_copy(self._session, source, target, tokens)
        if done:
            self._adapters[target] = self._adapters[source]
        return done

    def take(self, row: int, session: Session, adapter: Chosen, tokens: int) -> bool:
        done = self._try_copy(session, 0, row, tokens)
        if done:
            self._adapters[row] = adapter
        return done

    def _try_copy(self, other: Session, source: int, row: int, tokens: int) -> bool:
        try:
            self._session.admit(row, other, source, tokens)
        except _NOT_BACK:
            return False
        return True

    def give(self, row: int) -> Session:
        made = self.twin(row)
        self._session.reset_row(row)
        return made

    def twin(self, row: int) -> Session:
        made = self._session.one_row()
        try:
            made.admit(0, self._session, row)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def is_usable(self) -> bool:
        try:
            self._session.check_usable()
        except Poisoned:
            return False
        return True

    def mend(self) -> None:
        self._session.reset()

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class LaneRows(Rows):
    """Sessions of one row each."""

    together = False

    def __init__(self, program: Program, size: int, capacity: int | None) -> None:
        """Open the first of `size` sessions.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: the program's sessions cannot hold so many tokens.
            OutOfMemory: the system provides no address space.
        """
        self._program, self._wanted = program, capacity
        self.size = size
        self._lanes: list[Session | None] = [None] * size
        first = self._lane(0)
        self.capacity, self.longest = first.capacity, first.longest_call
        prefills, (decode,) = find_roles(first, "prefill"), find_roles(first, "decode")
        self._prefills = [chunk_sizes(m, first.symbols, self.longest) for m in prefills]
        self._decode = chunk_sizes(decode, first.symbols)
        self.vocabulary = vocabulary_of(decode)

    def _lane(self, row: int, adapter: Chosen = PLAIN) -> Session:
        found = self._lanes[row]
        if found is None:
            name, scale = adapter
            given = {} if name is None else {"adapter": name, "scale": scale}
            found = self._program.session(self._wanted, **given)  # type: ignore[arg-type]
            self._lanes[row] = found
        return found

    def read(self, row: int, tokens: Sequence[int]) -> Logits:
        session, at = self._lane(row), 0
        made = np.zeros((1, 0), np.float32)
        for chunk in plan_chunks(len(tokens), self._prefills, self._decode):
            part = np.array([tokens[at : at + chunk.count]], np.int64)
            made = cast(Logits, session.call(chunk.method, part))
            at += chunk.count
        return made.reshape(-1)

    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        return {row: self.read(row, [token]) for row, token in tokens.items()}

    def clear(self, row: int, adapter: Chosen) -> None:
        self._drop(row)
        self._lane(row, adapter)

    def cut(self, row: int, tokens: int) -> bool:
        return _cut(self._lane(row), tokens)

    def copy(self, source: int, target: int, tokens: int) -> bool:
        return self.take(target, self._lane(source), PLAIN, tokens)

    def take(self, row: int, session: Session, adapter: Chosen, tokens: int) -> bool:
        made = session.fork()
        if not _cut(made, tokens):
            made.close()
            return False
        self._drop(row)
        self._lanes[row] = made
        return True

    def give(self, row: int) -> Session:
        found, self._lanes[row] = self._lane(row), None
        return found

    def twin(self, row: int) -> Session:
        return self._lane(row).fork()

    @property
    def is_usable(self) -> bool:
        try:
            for session in filter(None, self._lanes):
                session.check_usable()
        except Poisoned:
            return False
        return True

    def mend(self) -> None:
        for row in range(self.size):
            self._drop(row)

    def _drop(self, row: int) -> None:
        found, self._lanes[row] = self._lanes[row], None
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close all sessions."""
        self.mend()


def vocabulary_of(method: Method) -> int:
    """Return how many logits a method returns for a token."""
    dim = method.graph.values[method.graph.outputs[0]].type.dims[-1]
    assert isinstance(dim, int), "a model has a fixed number of logits"
    return dim


def _with_lengths(methods: Sequence[Method]) -> Sequence[Method]:
    """Return the methods that take row lengths.

    Raises:
        BadSetting: there is none.
    """
    found = [method for method in methods if method.row_lengths is not None]
    if not found:
        expected = "a method that takes row lengths"
        raise BadSetting(name="the bundle", expected=expected, found="none")
    return found


def _cut(session: Session, tokens: int) -> bool:
    """Drop all but a session's first tokens; tell whether that was possible."""
    try:
        held = int(session.position[0])
        if tokens < held:
            session.rewind(held - tokens)
    except _NOT_BACK:
        return False
    return True
