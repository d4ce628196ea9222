"""Run mutated bound lists in Python and in C, in children, and compare the verdicts.

Run as a program: `compared_lists.py SEED FIRST END FOLDER BUNDLE...`; with KVC_ONLY_C=1
only in C. Prints how many there were of each verdict, and each disagreement.

Python runs lists alone here: where it would bind a graph instead, the call is refused,
since C has no graph.
"""

import hashlib
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
from libkvc import CBundle, CSession, Refused
from libkvc_mutations import ALLOWED
from list_mutations import differences, mutated
from sealing import parts, seal

from kvc.runtime import Session, load
from kvc.runtime.calls.contexts import ExecutionContext
from kvc.schema.codec import decode, encode
from kvc.schema.errors import KvcError

SECONDS = 20.0  # of one mutation; a longer one hangs
MOST_MEMORY = 24 << 30
ONLY_C = os.environ.get("KVC_ONLY_C") == "1"
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
CALLS = (("first", (1, 2, 3)), ("decode", (4,)), ("decode", (5,)), ("back", ()))
CALLS = (*CALLS, ("first", (6, 7)), ("fork", ()), ("first", (8,)))


class NotListed(KvcError):
    """No list can be run."""


@dataclass
class Verdict:
    """What became of one mutation.

    Attributes:
        seen: the bytes of results and states after each call that was accepted.
        refusal: "" or why the next call was refused.
        finding: "" or what may not happen: another exception, KVC_INTERNAL.
    """

    seen: list[str] = field(default_factory=list)
    refusal: str = ""
    finding: str = ""


def _digest(arrays: Sequence[np.ndarray]) -> str:
    held = hashlib.sha256()
    for array in arrays:
        held.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return held.hexdigest()


def _flat(results: object) -> list[np.ndarray]:
    if isinstance(results, np.ndarray):
        return [results]
    if isinstance(results, dict):
        results = list(results.values())
    assert isinstance(results, list | tuple)
    return [array for one in results for array in _flat(one)]


def _listed(bind: Callable[..., object]) -> Callable[..., object]:
    def found(self: object, *args: object) -> object:
        made = bind(self, *args)
        if made is None:
            raise NotListed
        return made

    return found


def _play(
    session: Session | CSession, first: str, states: Callable[[object], list]
) -> list[Callable[[], str]]:
    """Return what is done with a session, a step at a time.

    The bytes of a copy are not compared: a list may write slots that its method does
    not, and whether a copy has these is open.
    """
    held = [session]

    def step(name: str, tokens: Sequence[int]) -> str:
        if name == "back":
            held[0].rewind(1)
            return _digest(states(held[0]))
        if name == "fork":
            held.append(held[0].fork())
            return ""
        given = np.array([tokens])
        results = _flat(held[-1].call(first if name == "first" else name, given))
        contents = states(held[-1])
        return _digest([*results, *contents]) if len(held) == 1 else ""

    return [lambda n=name, t=tokens: step(n, t) for name, tokens in CALLS]


def in_python(path: Path) -> Verdict:
    """Run a bundle in Python."""
    found = Verdict()
    bind = ExecutionContext._bind_list
    try:
        with (
            mock.patch.object(ExecutionContext, "_bind_list", _listed(bind)),
            load(path) as program,
            program.session() as session,
        ):
            first = next(iter(program.methods))

            def states(one: Session) -> list[np.ndarray]:
                return [np.array(content) for content in one.state.values()]

            for step in _play(session, first, states):
                _attempt(step, found, KvcError)
    except KvcError as error:
        found.refusal = f"{type(error).__name__}: {error}"
    except Exception as error:
        found.finding = f"{type(error).__name__}: {error}"
    return found


def in_c(path: Path) -> Verdict:
    """Run a bundle in C."""
    found = Verdict()
    try:
        with CBundle(path) as bundle, bundle.session() as session:
            first = bundle.methods[0][0]

            def states(one: CSession) -> list[np.ndarray]:
                return [one.state(name) for name in bundle.states]

            for step in _play(session, first, states):
                _attempt(step, found, Refused)
    except Refused as error:
        found.refusal = str(error)
        if error.code not in ALLOWED:
            found.finding = str(error)
    return found


def _attempt(
    step: Callable[[], str], found: Verdict, refusals: type[Exception]
) -> None:
    """Do a step; what cannot go back may refuse it, everywhere else it ends the run."""
    try:
        found.seen.append(step())
    except refusals as error:
        if type(error).__name__ not in ("NotRewindable", "NoPosition") and getattr(
            error, "code", ""
        ) not in ("NOT_REWINDABLE", "NO_POSITION"):
            raise
        found.seen.append("not back")


def disagreement(ours: Verdict, theirs: Verdict) -> str:
    """Return "" or how two verdicts differ."""
    if ours.finding or theirs.finding:
        return "finding"
    if bool(ours.refusal) != bool(theirs.refusal):
        return "only C refuses" if theirs.refusal else "only Python refuses"
    common = min(len(ours.seen), len(theirs.seen))
    if ours.seen[:common] != theirs.seen[:common]:
        return "other bytes"
    return ""


class Corpus:
    """The mutations of one bundle."""

    def __init__(self, path: Path, seed: int) -> None:
        self._blobs, raw = parts(path)
        self._program, self._seed = decode(raw, "bundle"), seed

    def write(self, number: int, to: Path) -> None:
        bounds = mutated(self._program.bounds, self._seed, number)
        made = encode(replace(self._program, bounds=bounds))
        to.write_bytes(seal(self._blobs, made))

    def told(self, number: int) -> list[str]:
        bounds = self._program.bounds
        return differences(bounds, mutated(bounds, self._seed, number))

    def run(self, first: int, end: int, folder: Path) -> list[dict]:
        """Run mutations in children; a child that dies is one more finding."""
        done, log = [], folder / "log"
        while first < end:
            log.write_text("")
            child = os.fork()
            if child == 0:
                self._run_all(first, end, folder, log)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            lines = [json.loads(one) for one in log.read_text().splitlines()]
            done += lines
            first += len(lines)
            if status != 0:
                died = {"number": first, "what": "finding", "ours": "?"}
                done.append({**died, "theirs": f"died with status {status}"})
                first += 1
        return done

    def _run_all(self, first: int, end: int, folder: Path, log: Path) -> None:
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        changed = folder / "changed.kvc"
        with log.open("a") as told, np.errstate(all="ignore"):
            for number in range(first, end):
                self.write(number, changed)
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                theirs = in_c(changed)
                ours = theirs if ONLY_C else in_python(changed)
                signal.setitimer(signal.ITIMER_REAL, 0)
                line = {
                    "number": number,
                    "what": disagreement(ours, theirs),
                    "ours": ours.finding or ours.refusal or "accepted",
                    "theirs": theirs.finding or theirs.refusal or "accepted",
                    "steps": [len(ours.seen), len(theirs.seen)],
                }
                told.write(json.dumps(line) + "\n")
                told.flush()


def compared(
    path: Path, seed: int, first: int, end: int, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Return how many mutations there were of each verdict, and all disagreements."""
    corpus, counts, wrong = Corpus(path, seed), Counter[str](), []
    for one in corpus.run(first, end, folder):
        accepted = one["ours"] == one["theirs"] == "accepted"
        counts[one["what"] or ("both accept" if accepted else "both refuse")] += 1
        if one["what"]:
            changes = "; ".join(corpus.told(one["number"]))
            wrong.append(
                f"{path.stem} {one['number']}: {one['what']}\n  Python: {one['ours']}"
                f"\n  C: {one['theirs']}\n  changed: {changes[:400]}"
            )
    return counts, wrong


def main(seed: str, first: str, end: str, folder: str, *paths: str) -> int:
    """Run the mutations of all bundles; return 1 if any disagreed."""
    bad = 0
    for path in paths:
        where = Path(folder) / Path(path).stem
        where.mkdir(exist_ok=True)
        found, wrong = compared(Path(path), int(seed), int(first), int(end), where)
        for line in wrong:
            print(line)
        print(f"{Path(path).name}: {dict(found)}", flush=True)
        bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
