"""Rounds of plays: in threads on one program, then the same plays one after the other.

In: a bundle, a seed. Out: the operations, and findings. A finding is a play that an
error ended, or an operation that gave another result in threads than alone.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier

from session_plays import Done, Kind, Origin, Play

from kvc.runtime import load

Played = tuple[list[Done], str]  # what was done, the error that ended it or ""


class Bench:
    """Two programs of one bundle: one for all threads, one for plays one by one."""

    def __init__(self, name: str, kind: Kind, path: Path, stack: ExitStack) -> None:
        """Open the bundle twice; both are closed with `stack`."""
        self._name, self._kind = name, kind
        self._together = stack.enter_context(load(path))
        self._serial = stack.enter_context(load(path))

    def run_round(
        self, seed: str, threads: ThreadPoolExecutor, count: int, operations: int
    ) -> tuple[list[list[Done]], list[str]]:
        """Run `count` plays in threads, then again one after the other.

        Returns:
            The operations of each thread, and the findings.
        """
        barrier = Barrier(count)
        seeds = [f"{seed} {self._name} {number}" for number in range(count)]

        def in_thread(one: str) -> Played:
            barrier.wait()  # so that each is in a thread of its own
            return self._play(origin, one, operations)

        with Origin(self._together, self._kind, seed) as origin:
            together = list(threads.map(in_thread, seeds))
        with Origin(self._serial, self._kind, seed) as origin:
            serial = [self._play(origin, one, operations) for one in seeds]
        return [done for done, _ in together], compare(together, serial)

    def _play(self, origin: Origin, seed: str, operations: int) -> Played:
        with tempfile.TemporaryDirectory() as folder:
            play = Play(origin, seed, Path(folder))
            try:
                play.run(operations)
            except Exception as error:  # a finding, whatever it is
                return play.done, f"{type(error).__name__}: {error}"
        return play.done, ""


def compare(together: Sequence[Played], serial: Sequence[Played]) -> list[str]:
    """Return the findings: errors, and results that differ between the two runs."""
    findings = []
    for thread, (one, other) in enumerate(zip(together, serial, strict=True)):
        for how, (done, error) in {"together": one, "alone": other}.items():
            if error:
                findings.append(f"thread {thread}, {how}, {len(done)}: {error}")
        for number, (left, right) in enumerate(zip(one[0], other[0], strict=False)):
            if left != right:
                what = f"{left} together, {right} alone"
                findings.append(f"thread {thread}, {number}: {what}")
                break
    return findings
