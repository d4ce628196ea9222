"""Make one hostile bundle, load it, and run it twice if it is accepted.

In: the bundle that it is made from (the seed), the number of a case. Out: a `Verdict`.
An accepted program runs as it is, and with the same kernels over a memory plan in which
no two values share memory (`apart`). The two runs must give the same bytes, or fail in
the same way. No error but `KvcError` may be raised, and loading must take less than
`LOAD_SECONDS` of processor time.
"""

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from apart import StrayWriteError, TooLargeError, guarded, lay_apart
from program_mutations import Mutator, mutate_bytes, with_other_data
from sealing import HEADER_NBYTES, parts, seal
from verifier_checks import place_of

from kvc.runtime import Program, Session, load
from kvc.runtime.sessions.state_views import StateViews
from kvc.schema.codec import decode, encode
from kvc.schema.errors import DigestMismatch, KvcError, OutOfMemory
from kvc.tools.checks.calls import arguments_at

LOAD_SECONDS = 2.0
_CALLS = 5
_MAX_TURNS = 300
_STRANGE = (-1, 2, 5, 100, 1 << 40, -(1 << 63))

# Verdicts that are defects; the others are "same", "refused", "cannot be made", "too
# large", "equal to the seed", and "other data" of what nothing can be compared with.
FINDINGS = ("differs", "escapes", "stray write", "slow to load", "no plan apart")


class Verdict(NamedTuple):
    """The result of one case: a defect (one of `FINDINGS`) or a harmless kind."""

    kind: str  # one of `FINDINGS`, or harmless
    where: str = ""  # the check that refused it, or what else there is to say


def refused(error: KvcError, what: str) -> Verdict:
    """Return the verdict on a file (no bundle) that was refused with an error.

    `what` names the kind of file.
    """
    return Verdict("refused", f"{what}: {type(error).__name__}")


def escaped(error: BaseException, where: str = "") -> Verdict:
    return Verdict("escapes", f"{where}{type(error).__name__}: {error}")


class Case(NamedTuple):
    blobs: bytes  # what lies before the program
    raw: bytes  # the program


class Seed:
    """A bundle from which hostile variants are made."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.blobs, self.raw = parts(path)
        self.program = decode(self.raw, str(path))
        self._mutator = Mutator(self.program)

    def content(self, number: int) -> bytes | None:
        """Return the bytes of a case's file; None if its program cannot be encoded."""
        case = self.case(number)
        return None if case is None else seal(*case)

    def try_case(self, number: int, folder: Path) -> Verdict:
        """Load the file of a case, and run it twice if it is accepted."""
        return try_case(self.case(number), self, folder, number)

    def case(self, number: int) -> Case | None:
        """Return a changed program and its blobs; None if they have no encoding."""
        dice = random.Random(f"{self.name} {number}")
        if dice.random() < 0.1:
            return Case(self.blobs, mutate_bytes(self.raw, dice))
        blobs, program = self.blobs, self.program
        if dice.random() < 0.9:
            program = self._mutator.mutate(dice)
        if dice.random() < 0.2:
            blobs, blob = with_other_data(self.program, blobs, HEADER_NBYTES, dice)
            if blob is not None:
                content = blobs[blob.offset - HEADER_NBYTES :][: blob.nbytes]
                other = replace(blob, digest=hashlib.sha256(content).digest())
                made = tuple(other if b == blob else b for b in program.blobs)
                program = replace(program, blobs=made)
        try:
            return Case(blobs, encode(program))
        except Exception:  # what the format has no place for is no file
            return None


def try_case(case: Case | None, seed: Seed, folder: Path, number: int) -> Verdict:
    """Load a case's file, and run it twice if it is accepted."""
    if case is None:
        return Verdict("cannot be made")
    if case == (seed.blobs, seed.raw):
        return Verdict("equal to the seed")
    path = folder / "case.kvc"
    path.write_bytes(seal(case.blobs, case.raw))
    start = time.process_time()
    try:
        load(path, max_turns=_MAX_TURNS).close()
    except KvcError as error:
        slow = time.process_time() - start > LOAD_SECONDS
        return Verdict("slow to load" if slow else "refused", place_of(error))
    except Exception as error:
        return Verdict("escapes", f"{type(error).__name__} in load: {error}")
    if time.process_time() - start > LOAD_SECONDS:
        return Verdict("slow to load")
    return _compare(case, path, folder, number)


def _compare(case: Case, path: Path, folder: Path, number: int) -> Verdict:
    """Run an accepted file as it is and over a plan without shared memory."""
    try:
        first = results_of(path, number)
    except OutOfMemory:
        return Verdict("too large")
    except Exception as error:
        return escaped(error)
    try:
        apart = lay_apart(decode(case.raw, "case"))
        other = folder / "apart.kvc"
        other.write_bytes(seal(case.blobs, encode(apart.program)))
        second = results_of(other, number, guarded(apart))
    except (TooLargeError, OutOfMemory):
        return Verdict("too large")
    except StrayWriteError as error:
        return Verdict("stray write", str(error))
    except KvcError as error:
        return Verdict("no plan apart", f"{type(error).__name__}: {error}")
    except Exception as error:
        return escaped(error, "apart, ")
    for one, two in zip(first, second, strict=False):
        if one != two:
            return Verdict("differs", f"{one} | {two}")
    return Verdict("same") if len(first) == len(second) else Verdict("differs", "calls")


def results_of(
    path: Path, number: int, memory: AbstractContextManager[None] | None = None
) -> list[str]:
    return list(_results(path, number, memory or nullcontext()))


def _results(path, number, memory) -> Iterator[str]:
    with memory, load(path, max_turns=_MAX_TURNS) as program:
        try:
            session = program.session()
        except KvcError as error:
            yield _told(error, path)
            return
        with session:
            yield from call_by_turns(program, session, random.Random(number), path)


def call_by_turns(
    program: Program, session: Session, dice: random.Random, path: Path
) -> Iterator[str]:
    made_up = np.random.default_rng(dice.randrange(1 << 30))
    names = list(program.methods)
    for turn in range(_CALLS):
        name = names[turn % len(names)] if turn < 3 else dice.choice(names)
        sizes = {}
        for key, symbol in session.symbols.items():
            low, high = symbol.lower, symbol.upper
            size = dice.choice((low, min(max(4, low), high), high))
            sizes[key] = min(size, 1 << 12)
        try:
            given = arguments_at(session.methods[name], sizes, made_up)
            _spoil(given, dice)
            yield f"{name}: {_digest(session.call(name, **given))}"
        except KvcError as error:
            yield f"{name}: {_told(error, path)}"
        yield f"states after {name}: {_digest(_states(session))}"


def _spoil(given: dict[str, object], dice: random.Random) -> None:
    """Now and then put a strange number into one integer argument."""
    if dice.random() < 0.8:
        return
    arrays = [one for one in given.values() if isinstance(one, np.ndarray)]
    whole = [one for one in arrays if one.dtype.kind == "i" and one.size]
    if whole:
        flat = dice.choice(whole).reshape(-1)
        strange, info = dice.choice(_STRANGE), np.iinfo(flat.dtype)
        flat[dice.randrange(flat.size)] = min(max(strange, info.min), info.max)


def _states(session: Session) -> Sequence[object]:
    try:
        held: StateViews = session.state
        return [np.array(one) for one in held.values()]
    except KvcError as error:
        return [type(error).__name__]


def _told(error: KvcError, path: Path) -> str:
    """Return a text of an error that is equal for equal errors, without the path.

    Of `DigestMismatch` only the name is given: which of two damaged blobs is found
    first varies.
    """
    if isinstance(error, OutOfMemory):
        raise error
    if isinstance(error, DigestMismatch):
        return type(error).__name__
    return f"{type(error).__name__}: {error}".replace(str(path), "PATH")


def _digest(result: object) -> str:
    """Return a digest of a call's result: equal if dtypes, shapes and bits are."""
    total = hashlib.sha256()
    waiting = [result]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        else:
            array = np.ascontiguousarray(np.asarray(one))
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(array.tobytes())
    return total.hexdigest()[:16]
