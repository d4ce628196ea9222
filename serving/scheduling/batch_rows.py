"""`BatchRows`: rows of one session, which decode in one call.

In and out: as `rows.py`. A prompt is read in its row alone, padded to a width that
other prompts have too, so that few widths are bound. Rows that decode together are a
range; those of the range without a token do not change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np

from kvc.runtime import Session
from kvc.runtime.calls.chunks import chunk_sizes
from kvc.runtime.generation.logits import Logits
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.rowwise import SessionRows
from kvc.schema.errors import BadSetting, Poisoned
from kvc.schema.model import Method
from kvc.serving.scheduling.rows import NOT_BACK, PLAIN, Chosen, Rows, vocabulary_of

_WIDTHS: Final = (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512)


class BatchRows(Rows):
    """Rows of one session."""

    together = True

    def __init__(self, session: Session, size: int) -> None:
        """Take over an empty session of several rows.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: its methods take no row lengths.
            KvcError: as `Session.use_adapter`.
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
        session.use_adapter(None)  # not the default one, which others may change
        self._ranges: dict[tuple[int, int], SessionRows] = {}

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
        padded = next((width for width in _WIDTHS if width >= count), _WIDTHS[-1])
        return method, sizes.smallest(min(padded, sizes.most))

    def prepare(self) -> Iterator[None]:
        for count in range(1, self.size + 1):
            self._range(0, count).prepare(self._decode.name, np.zeros((count, 1), int))
            yield
        calls = dict.fromkeys((m.name, n) for m, n in map(self._method_for, _WIDTHS))
        for name, width in calls:
            self._range(0, 1).prepare(name, np.zeros((1, width), int))
            yield

    def _range(self, first: int, count: int) -> SessionRows:
        which = first, count
        if which not in self._ranges:
            self._ranges[which] = self._session.some_rows(first, count)
        return self._ranges[which]

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
        rows = self._range(first, len(tokens))
        made = cast(Logits, rows.call(method.name, tokens, **named))
        return made.reshape(len(tokens), -1)

    def clear(self, row: int, adapter: Chosen) -> None:
        self._session.reset_row(row)
        if self._adapters[row] != adapter:
            wanted = list(self._adapters)
            wanted[row] = adapter
            names, scales = zip(*wanted, strict=True)
            self._session.use_adapter(names, scales)
            self._adapters = wanted

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
        except NOT_BACK:
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
