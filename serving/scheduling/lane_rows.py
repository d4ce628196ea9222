"""`LaneRows`: sessions of one row each, for programs without batches.

In and out: as `rows.py`. Copies are forks, which share memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from kvc.runtime import Program, Session
from kvc.runtime.calls.chunks import chunk_sizes, plan_chunks
from kvc.runtime.generation.logits import Logits
from kvc.runtime.sessions.methods import find_roles
from kvc.schema.errors import Poisoned
from kvc.serving.scheduling.rows import NOT_BACK, PLAIN, Chosen, Rows, vocabulary_of


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
            found = self._program.session(self._wanted)
            try:
                found.use_adapter(*adapter)  # not the default one
            except BaseException:
                found.close()
                raise
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

    def prepare(self) -> Iterator[None]:
        self._lane(0).prepare(self._decode.method, np.zeros((1, 1), int))
        yield

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


def _cut(session: Session, tokens: int) -> bool:
    """Drop all but a session's first tokens; tell whether that was possible."""
    try:
        held = int(session.position[0])
        if tokens < held:
            session.rewind(held - tokens)
    except NOT_BACK:
        return False
    return True
