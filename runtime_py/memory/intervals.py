"""Runs of bytes in an arena, as sorted arrays: int64 [n, 2] of (start, end).

In and out: arrays of runs; the runs of an array neither overlap nor touch. A fork of a
large model has hundreds of runs and should take a millisecond, so all operations use
numpy.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

NONE: Intervals = np.empty((0, 2), np.int64)


def merged(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return an array of runs from runs in any order, which may overlap."""
    runs = np.empty((np.size(starts), 2), np.int64)
    runs[:, 0], runs[:, 1] = starts, ends
    runs = runs[runs[:, 0] < runs[:, 1]]
    if (runs[1:, 0] > runs[:-1, 1]).all():  # the usual case
        return runs
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    np.maximum.accumulate(runs[:, 1], out=runs[:, 1])
    new = np.flatnonzero(runs[1:, 0] > runs[:-1, 1])
    first, last = np.append(0, new + 1), np.append(new, len(runs) - 1)
    return np.column_stack([runs[first, 0], runs[last, 1]])


def one_run(start: int, end: int) -> Intervals:
    """Return an array with a single run."""
    return merged([start], [end])


def rounded_out(runs: Intervals, unit: int) -> Intervals:
    """Return the runs, extended to begin and end at multiples of `unit`."""
    return merged(runs[:, 0] // unit * unit, -(-runs[:, 1] // unit) * unit)


def union(parts: Sequence[Intervals]) -> Intervals:
    """Return, as runs, the bytes that are in at least one of several arrays of runs."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else NONE
    combined = np.concatenate(some)
    return merged(combined[:, 0], combined[:, 1])


def common(a: Intervals, b: Intervals) -> Intervals:
    """Return, as runs, the bytes that are in runs of `a` and in runs of `b`."""
    if not (len(a) and len(b)):
        return NONE
    edges = np.sort(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    return _chosen(edges, _inside(edges, a) & _inside(edges, b))


def without(a: Intervals, b: Intervals) -> Intervals:
    """Return, as runs, the bytes that are in runs of `a` but not in runs of `b`."""
    if not (len(a) and len(b)):
        return a
    edges = np.sort(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    return _chosen(edges, _inside(edges, a) & ~_inside(edges, b))


def lengths(runs: Intervals) -> npt.NDArray[np.int64]:
    """Return the length of each run."""
    return runs[:, 1] - runs[:, 0]


def units_of(runs: Intervals, unit: int) -> npt.NDArray[np.int64]:
    """Return the index of each unit in the runs, which begin and end at whole units.

    A unit is `unit` bytes, and units are counted from the start of the arena.
    """
    counts = lengths(runs) // unit
    ends = np.cumsum(counts)
    within = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    return within + np.repeat(runs[:, 0] // unit, counts)


def _inside(edges: npt.NDArray[np.int64], runs: Intervals) -> _Flags:
    """Return for each stretch between adjacent edges whether a run contains it."""
    passed = runs.reshape(-1).searchsorted(edges[:-1], side="right")
    inside: _Flags = passed % 2 == 1  # an odd number of edges: in a run
    return inside


def _chosen(edges: npt.NDArray[np.int64], chosen: _Flags) -> Intervals:
    return merged(edges[:-1][chosen], edges[1:][chosen])
