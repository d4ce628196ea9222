"""Play the script of a bundle in Python and in libkvc, and compare what they gave.

In: a file that may mislead, and a script (`list_seeds.py`). Out: a `Played` for each:
where it was refused and why, and what it had given before. Anything but a `KvcError` of
Python, or a code of libkvc that says what is wrong, is a finding.
"""

import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from libkvc import CBundle, CSession, Refused
from libkvc_models import flat
from libkvc_mutations import ALLOWED
from list_seeds import Call, Fork, ListSeed, Reset, Restore, Rewind, Step

from kvc.runtime import Program, Session, load
from kvc.schema.errors import KvcError

# What Python's checks say of graphs, and of bytes that libkvc does not read
_OF_GRAPH = re.compile(
    r"kvc: (variant [^,]*, )?method '[^']*'(, block|, value|, instruction|: it (reads|wri)"
    r"|: the scratch|: id |:? \d+ runs|: instr)|kvc: delegate|malformed at byte"
)
_FORMAT_ERRORS = ("BadProgram", "BadStructure", "LimitExceeded")


class Played(NamedTuple):
    """The results of a script.

    `given` has a digest for each step that was done. `refused` is the name of an error
    or code, "" if all was done.
    """

    given: list[str]
    refused: str
    text: str = ""
    finding: bool = False
    at_save: bool = False


def _digest(arrays: Sequence[np.ndarray]) -> str:
    made = hashlib.sha256()
    for array in arrays:
        made.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return made.hexdigest()[:16]


class _Python:
    """A session of Python; forks and restored sessions take its place."""

    def __init__(self, path: Path, seed: ListSeed, folder: Path) -> None:
        self._program: Program = load(path)
        self._session: Session = self._program.session(**seed.sizes)
        self._saved = folder / "python.kvs"

    def do(self, step: Step) -> list[np.ndarray]:
        """Do a step, and return its results, the states and the positions."""
        found: list[np.ndarray] = []
        match step:
            case Call(name, args):
                given = [arg for arg in args if arg is not None]
                found = flat(self._session.call(name, *given))
            case Rewind(counts):
                many = np.array(counts) if len(counts) > 1 else counts[0]
                self._session.rewind(many)
            case Fork():
                self._session = self._session.fork()
            case Restore():
                self._session.save(self._saved)
                self._session = self._program.restore(self._saved)
            case Reset():
                self._session.reset()
        states = [np.array(one) for one in self._session.state.values()]
        positions = [rows.astype(np.int64) for rows in self._session.positions.values()]
        return [*found, *states, *positions]


class _C:
    """A session of libkvc; forks and restored sessions take its place."""

    def __init__(self, path: Path, seed: ListSeed, folder: Path) -> None:
        # In memory of its own, so that a sanitizer sees where the file ends.
        raw = np.frombuffer(path.read_bytes(), np.uint8)
        room = np.zeros(raw.size + 64, np.uint8)
        start = -room.ctypes.data % 64
        content = room[start : start + raw.size]
        content[:] = raw
        self._bundle = CBundle(None, content)
        self._session: CSession = self._bundle.session(**seed.sizes)
        self._cursors = 0
        self._saved = folder / "c.kvs"

    def do(self, step: Step) -> list[np.ndarray]:
        """Do a step, and return its results, the states and the positions."""
        found: list[np.ndarray] = []
        match step:
            case Call(name, args):
                if self._bundle.method(name) < 0:
                    raise Refused("UNKNOWN_NAME", name)
                found = self._session.call(name, *args)
            case Rewind(counts):
                self._session.rewind(*counts)
            case Fork():
                self._replace(self._session.fork())
            case Restore():
                self._session.save(self._saved)
                self._replace(self._bundle.restore(self._saved))
            case Reset():
                self._session.reset()
        states = [self._session.state(name) for name in self._bundle.states]
        return [*found, *states, *self._positions()]

    def _positions(self) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        try:
            while True:
                found.append(np.array(self._session.position(len(found)), np.int64))
        except Refused as refused:
            if refused.code not in ("BAD_ARGUMENT", "NO_POSITION"):
                raise
        return found

    def _replace(self, session: CSession) -> None:
        self._session.close()
        self._session = session

    def close(self) -> None:
        self._session.close()
        self._bundle.close()


def play_python(path: Path, seed: ListSeed, folder: Path) -> Played:
    """Play a script in Python."""
    given: list[str] = []
    try:
        player = _Python(path, seed, folder)
        for step in seed.script:
            given.append(_digest(player.do(step)))
    except KvcError as error:
        name = type(error).__name__
        steps = [*seed.script, Reset()]
        saves = isinstance(steps[len(given)], Restore) and name in _FORMAT_ERRORS
        return Played(given, name, str(error), at_save=saves)
    except Exception as error:  # no other may come of a file
        return Played(given, type(error).__name__, str(error), True)
    return Played(given, "")


def play_c(path: Path, seed: ListSeed, folder: Path) -> Played:
    """Play a script in libkvc."""
    given: list[str] = []
    player = None
    try:
        player = _C(path, seed, folder)
        for step in seed.script:
            given.append(_digest(player.do(step)))
    except Refused as refused:
        known = refused.code in ALLOWED and len(refused.text) > 8
        return Played(given, refused.code, refused.text, not known)
    finally:
        if player is not None:
            player.close()
    return Played(given, "")


class Compared(NamedTuple):
    """How two plays agree: `kind` is "same", "refused" or how they differ."""

    kind: str
    ours: str
    theirs: str


def compare(ours: Played, theirs: Played) -> Compared:
    """Compare a play of Python with one of libkvc.

    Python reads the graphs of methods too, in part when it loads a file, and all of them
    when it saves a session. What only it refuses there is of the kind "graph".
    """
    one = f"{ours.refused}: {ours.text}"[:300] if ours.refused else ""
    other = f"{theirs.refused}: {theirs.text}"[:300] if theirs.refused else ""
    both = min(len(ours.given), len(theirs.given))
    if ours.finding:
        kind = "python escapes"
    elif theirs.finding:
        kind = "c escapes"
    elif ours.given[:both] != theirs.given[:both]:
        at = next(i for i in range(both) if ours.given[i] != theirs.given[i])
        kind, one, other = "other bytes", f"step {at} {one}", f"step {at} {other}"
    elif not ours.refused and not theirs.refused:
        kind = "same"
    elif ours.refused and theirs.refused:
        kind = "refused"
    else:
        kind = "c alone refuses"
        if ours.refused:
            of_graph = _OF_GRAPH.search(ours.text) or ours.at_save
            kind = "graph" if of_graph else "python alone refuses"
    return Compared(kind, one, other)


def play_both(path: Path, seed: ListSeed) -> Compared:
    """Play a script in both."""
    with tempfile.TemporaryDirectory() as folder:
        ours = play_python(path, seed, Path(folder))
        theirs = play_c(path, seed, Path(folder))
    return compare(ours, theirs)
