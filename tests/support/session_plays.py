"""Plays: random operations on sessions of one program.

In: a program, a seed. Out: for each operation its name and a digest of its result. The
same seed does the same operations on the same content, so that two plays of one seed
must agree, whatever else the process does meanwhile.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvc.runtime import CacheOverflow, NotRewindable, Program, Session
from kvc.schema.closing import Closing

MOST_SESSIONS, MOST_FILES = 4, 3
REFUSALS = (CacheOverflow, NotRewindable)  # what a play may run into


class Done(NamedTuple):
    """One operation.

    Attributes:
        what: the name of the operation.
        digest: digest of its result.
        steps: how many decode steps it took.
    """

    what: str
    digest: str
    steps: int = 0


class Kind(NamedTuple):
    vocab: int  # tokens are below
    longest: int  # the most tokens of one prompt
    rows: int = 0  # the most rows of a batch; 0 where calls tell no lengths
    # that sessions choose from; none where they cannot
    capacities: tuple[int, ...] = ()


KINDS: Mapping[str, Kind] = {
    "demo": Kind(256, 48, capacities=(16, 64, 200, 1024)),
    "ragged rings": Kind(16, 30, rows=4),
}


class Origin(Closing):
    """A program, and one session of it that all threads fork.

    It is a context manager, which closes the session.
    """

    def __init__(self, program: Program, kind: Kind, seed: str) -> None:
        """Open the session, and feed it a prompt."""
        self.program, self.kind = program, kind
        self._session = program.session(**({"batch": 2} if kind.rows else {}))
        self._lock = threading.Lock()
        Play(self, seed, Path()).read(self._session, 20)

    def fork(self) -> Session:
        with self._lock:
            return self._session.fork()

    def close(self) -> None:
        """Close the session; its forks stay open."""
        self._session.close()


class Play:
    """The sessions of one thread, and the list `done` of operations on them."""

    def __init__(self, origin: Origin, seed: str, folder: Path) -> None:
        """Begin without sessions; files will be saved in `folder`."""
        self._origin, self._program, self._kind = origin, origin.program, origin.kind
        self._random = random.Random(seed)
        self._folder = folder
        self._sessions: list[Session] = []
        self._files: list[Path] = []
        self.done: list[Done] = []

    def run(self, count: int) -> None:
        try:
            for _ in range(count):
                self._do()
        finally:
            while self._sessions:
                self._sessions.pop().close()
            for path in self._files:
                path.unlink()

    def _do(self) -> None:
        weights = {name: weight for name, (weight, _) in ONES.items()}
        if self._kind.rows:
            weights |= {name: weight for name, (weight, _) in ROWS.items()}
        if not self._sessions:
            weights = {"open": 3, "branch": 2} | ({"restore": 2} if self._files else {})
        name = self._random.choices([*weights], [*weights.values()])[0]
        do = (ONES | ROWS)[name][1]
        try:
            found = do(self)
        except REFUSALS as error:
            found = repr(error).encode()
        gave, steps = found if isinstance(found, tuple) else (found, 0)
        digest = hashlib.blake2b(gave, digest_size=8).hexdigest()
        self.done.append(Done(name, digest, steps))

    def _any(self) -> Session:
        return self._random.choice(self._sessions)

    def _add(self, session: Session) -> bytes:
        """Keep a session, and return its positions as bytes.

        It replaces a random one if the play has `MOST_SESSIONS`.
        """
        if len(self._sessions) == MOST_SESSIONS:
            self._sessions.pop(self._random.randrange(MOST_SESSIONS)).close()
        self._sessions.append(session)
        return _place(session)

    def open(self) -> bytes:
        chosen: dict[str, int] = {}
        if self._kind.capacities:
            chosen["capacity"] = self._random.choice(self._kind.capacities)
        if self._kind.rows:
            chosen["batch"] = self._random.randint(1, self._kind.rows)
        transactional = self._random.random() < 0.2
        return self._add(self._program.session(transactional=transactional, **chosen))

    def branch(self) -> bytes:
        return self._add(self._origin.fork())

    def fork(self) -> bytes:
        return self._add(self._any().fork())

    def prompt(self) -> bytes:
        return self.read(self._any(), self._random.randint(1, self._kind.longest))

    def read(self, session: Session, count: int) -> bytes:
        rows = len(session.position)
        given = [self._tokens(rows, count)]
        if self._kind.rows:
            given.append(self._numbers(rows, 0, count))
        return _bytes(session.call("prefill", *given))

    def decode(self) -> tuple[bytes, int]:
        session, gave = self._any(), b""
        rows, steps = len(session.position), self._random.randint(1, 12)
        for _ in range(steps):
            given = [self._tokens(rows, 1)]
            if self._kind.rows:
                given.append(self._numbers(rows, 0, 1).astype(bool))
            gave += _bytes(session.call("decode", *given))
        return gave, steps

    def rewind(self) -> bytes:
        session = self._any()
        if self._kind.rows:
            most = [min(int(at), 9) for at in session.position]
            counts = [self._random.randint(0, count) for count in most]
            session.rewind(np.array(counts, np.int64))
        else:
            session.rewind(self._random.randint(0, int(session.position[0])))
        return _place(session)

    def reset(self) -> bytes:
        return self._then(Session.reset)

    def trim(self) -> bytes:
        return self._then(Session.trim)

    def _then(self, do: Callable[[Session], None]) -> bytes:
        session = self._any()
        do(session)
        return _place(session)

    def save(self) -> bytes:
        number = self._random.randrange(MOST_FILES)
        path = self._folder / f"{number}.kvcs"
        self._any().save(path)
        if path not in self._files:
            self._files.append(path)
        return path.read_bytes()

    def restore(self) -> bytes:
        if not self._files:
            return b""
        return self._add(self._program.restore(self._random.choice(self._files)))

    def close(self) -> bytes:
        self._pop().close()
        return b""

    def forget(self) -> bytes:
        """Drop a session without closing it, so that Python collects it."""
        self._pop()
        return b""

    def reset_row(self) -> bytes:
        session = self._any()
        session.reset_row(self._row(session))
        return _place(session)

    def copy_row(self) -> bytes:
        session = self._any()
        session.copy_row(self._row(session), self._row(session))
        return _place(session)

    def admit(self) -> bytes:
        session, other = self._any(), self._any()
        session.admit(self._row(session), other, self._row(other))
        return _place(session)

    def _pop(self) -> Session:
        return self._sessions.pop(self._random.randrange(len(self._sessions)))

    def _row(self, session: Session) -> int:
        return self._random.randrange(len(session.position))

    def _tokens(self, rows: int, count: int) -> np.ndarray:
        return self._numbers(rows * count, 0, self._kind.vocab - 1).reshape(rows, count)

    def _numbers(self, count: int, least: int, most: int) -> np.ndarray:
        drawn = [self._random.randint(least, most) for _ in range(count)]
        return np.array(drawn, np.int64)


def _bytes(result: object) -> bytes:
    assert isinstance(result, np.ndarray)
    return result.tobytes()


def _place(session: Session) -> bytes:
    """Return the positions of a session's rows as bytes.

    Contents are compared by later calls and by saved files.
    """
    return session.position.tobytes()


Operation = Callable[[Play], bytes | tuple[bytes, int]]  # with steps
ONES: Mapping[str, tuple[int, Operation]] = {
    "decode": (40, Play.decode),
    "prompt": (8, Play.prompt),
    "open": (5, Play.open),
    "branch": (4, Play.branch),
    "fork": (6, Play.fork),
    "rewind": (6, Play.rewind),
    "reset": (2, Play.reset),
    "trim": (2, Play.trim),
    "save": (4, Play.save),
    "restore": (4, Play.restore),
    "close": (3, Play.close),
    "forget": (2, Play.forget),
}
ROWS: Mapping[str, tuple[int, Operation]] = {
    "reset_row": (3, Play.reset_row),
    "copy_row": (3, Play.copy_row),
    "admit": (3, Play.admit),
}
