"""Run the rounds of `kvc bench`: each bundle in turn, each in a process of its own.

In: bundles, tests, how to load. Out: the figures of each round, and of all rounds
medians with the least and the most. Bundles take turns so that a machine that becomes
slower meanwhile is so for all; their ratios are medians of those of the rounds.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import click

from kvc.schema.text import escape
from kvc.tools.bench.peers import Peer
from kvc.tools.bench.plan import Figures, Plan, SpeedTest, figures_of
from kvc.tools.loading import Loading

Progress = Callable[[str, int, int], None]  # what runs, processes done, of how many

_PROCESS: Final = "kvc.tools.bench.measuring"


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def over(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of one figure or more."""
        return cls(statistics.median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Measured:
    """What the rounds gave for a bundle, or for a peer's file.

    Attributes:
        path: of the bundle or file.
        recipe: of the bundle; the peer's name.
        nbytes: of the bundle and its data files, or of the file.
        threads: computed with.
        rows: of the session.
        tests: that were run.
        rounds: the seconds of each test, by round.
        figures: of the bundle's processes, by round; none of a peer.
    """

    path: str
    recipe: str
    nbytes: int
    threads: int
    rows: int
    tests: tuple[SpeedTest, ...]
    rounds: tuple[tuple[float, ...], ...]
    figures: tuple[Figures, ...] = ()

    def speed(self, test: int) -> Spread:
        """Return the tokens a second of a test, those of all rows together."""
        return Spread.over(self._speeds(test))

    def ratio(self, test: int, first: "Measured") -> Spread:
        """Return how many times as fast as another a test ran, in each round."""
        pairs = zip(self._speeds(test), first._speeds(test), strict=True)
        return Spread.over([own / other for own, other in pairs])

    def _speeds(self, test: int) -> list[float]:
        tokens = self.tests[test].tokens * self.rows
        return [tokens / seconds[test] for seconds in self.rounds]


def run_rounds(
    bundles: Sequence[str],
    tests: tuple[SpeedTest, ...],
    rows: int,
    rounds: int,
    loading: Loading,
    peers: Sequence[Peer] = (),
    progress: Progress | None = None,
) -> list[Measured]:
    """Return what each bundle and then each peer's file gives.

    Args:
        bundles: their paths, one or more.
        tests: to run.
        rows: of the sessions.
        rounds: how often.
        loading: how to load bundles.
        peers: files of other runtimes, which take turns with the bundles.
        progress: told what runs.

    Raises:
        ClickException: a process fails; the message says why.
    """
    report = progress or (lambda what, done, total: None)
    in_all, done = rounds * (len(bundles) + len(peers)), 0
    figures: list[list[Figures]] = [[] for _ in bundles]
    others: list[list[tuple[float, ...]]] = [[] for _ in peers]
    for _ in range(rounds):
        for bundle, kept in zip(bundles, figures, strict=True):
            report(bundle, done, in_all)
            kept.append(_measure(bundle, tests, rows, loading))
            done += 1
        for peer, times in zip(peers, others, strict=True):
            report(peer.path, done, in_all)
            times.append(peer.seconds(tests, figures[0][0].threads))
            done += 1
    threads = figures[0][0].threads
    return [
        *(
            _bundle(bundle, tests, rows, kept)
            for bundle, kept in zip(bundles, figures, strict=True)
        ),
        *(
            Measured(peer.path, peer.name, peer.nbytes, threads, 1, tests, tuple(times))
            for peer, times in zip(peers, others, strict=True)
        ),
    ]


def _bundle(
    bundle: str, tests: tuple[SpeedTest, ...], rows: int, kept: Sequence[Figures]
) -> Measured:
    first, rounds = kept[0], tuple(one.seconds for one in kept)
    return Measured(
        bundle,
        first.recipe,
        first.nbytes,
        first.threads,
        rows,
        tests,
        rounds,
        tuple(kept),
    )


def _measure(
    bundle: str, tests: tuple[SpeedTest, ...], rows: int, loading: Loading
) -> Figures:
    """Return what a process of its own measures."""
    plan = Plan(bundle, tests, rows, time.monotonic(), loading)
    # -P: a folder that somebody runs kvc in may have a numpy.py.
    command = [sys.executable, "-P", "-m", _PROCESS, json.dumps(plan.as_json())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(_reason(bundle, done.stderr.strip()))
    if done.stderr:
        click.echo(done.stderr, err=True, nl=False)
    return figures_of(json.loads(done.stdout))


def _reason(bundle: str, said: str) -> str:
    """Return what a process said, with the bundle if that does not name it."""
    name = escape(bundle)
    return said if name in said else f"{name}: {said or 'no figures came'}"
