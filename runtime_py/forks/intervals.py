"""Runs of bytes in an arena, as sorted arrays: int64 [n, 2] of (start, end).

The runs of one array neither overlap nor touch. A fork of a large model has hundreds of
them and is to take a millisecond, so that all of it is numpy.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

NONE: Intervals = np.empty((0, 2), np.int64)


def merged(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return runs in any order, some of which may overlap, as intervals."""
    first, last = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    real = first < last
    order = np.argsort(first[real], kind="stable")
    first, last = first[real][order], np.maximum.accumulate(last[real][order])
    if not len(first):
        return NONE
    new = np.concatenate([[True], first[1:] > last[:-1]])
    closing = np.concatenate([new[1:], [True]])
    return np.stack([first[new], last[closing]], axis=1)


def one_run(start: int, end: int) -> Intervals:
    """Return a single run."""
    return merged([start], [end])


def rounded_out(runs: Intervals, unit: int) -> Intervals:
    """Return the whole units that hold a byte of some runs."""
    return merged(runs[:, 0] // unit * unit, -(-runs[:, 1] // unit) * unit)


def union(parts: Sequence[Intervals]) -> Intervals:
    """Return what is in any of several."""
    if not parts:
        return NONE
    joined = np.concatenate(parts)
    return merged(joined[:, 0], joined[:, 1])


def common(a: Intervals, b: Intervals) -> Intervals:
    """Return what is in both."""
    if not (len(a) and len(b)):
        return NONE
    edges = np.sort(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    return _chosen(edges, _inside(edges, a) & _inside(edges, b))


def without(a: Intervals, b: Intervals) -> Intervals:
    """Return what is in `a` and not in `b`."""
    if not (len(a) and len(b)):
        return a
    edges = np.sort(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    return _chosen(edges, _inside(edges, a) & ~_inside(edges, b))


def lengths(runs: Intervals) -> npt.NDArray[np.int64]:
    """Return how long each is."""
    return runs[:, 1] - runs[:, 0]


def _inside(edges: npt.NDArray[np.int64], runs: Intervals) -> _Flags:
    """Tell of each stretch between neighbouring edges whether it is in a run."""
    begun = np.searchsorted(runs[:, 0], edges[:-1], side="right")
    ended = np.searchsorted(runs[:, 1], edges[:-1], side="right")
    return begun > ended


def _chosen(edges: npt.NDArray[np.int64], chosen: _Flags) -> Intervals:
    return merged(edges[:-1][chosen], edges[1:][chosen])
