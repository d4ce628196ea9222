"""Bind a partition to arrays of the host, and run it as a graph of the device.

In: a call, whose memory is shared with the device, and the arrays of the partition's
inputs and outputs. Out: a `Bound`, which rounds inputs to the device's numbers, runs
the graph, and writes the outputs.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from kvc.runtime.delegates.host_runs import HostRun, Runs
from kvc.runtime.delegates.qnn.attention_masks import Sight
from kvc.runtime.delegates.qnn.plan import (
    Bias,
    Feed,
    Made,
    Past,
    Plan,
    Rows,
    Seeing,
    Whole,
)
from kvc.runtime.memory.arrays import Array

Measured = tuple[Array, Array, Array]


class Bound(HostRun[Plan]):
    """A partition and the arrays that it is bound to."""

    def _compute(self) -> Callable[[], None]:
        self._fill()
        self._call.run()
        rows = (t for _, takes in self._taken() for t in takes if isinstance(t, Rows))
        runs = {each: self._rows(each.cache, each.writes) for each in rows}
        return partial(self._take, runs)

    def _take(self, runs: dict[Rows, Runs]) -> None:
        """Write the device's results to the partition's outputs.

        `runs` has, for each cache that is written, the slots of its new rows.
        """
        for value, takes in self._taken():
            made = self._numbers(value)
            for take in takes:
                if isinstance(take, Rows):
                    self._write_rows(take.output, take.cache, made, runs[take])
                else:
                    target = self._outputs[take.output]
                    np.copyto(target, made.reshape(target.shape))

    def _fill(self) -> None:
        """Write the device's inputs."""
        measured: dict[Sight, Measured] = {}
        for feed in self._call.plan.feeds:
            self._fill_one(feed, self._call.arrays[feed.name], measured)

    def _fill_one(
        self, feed: Feed, target: Array, measured: dict[Sight, Measured]
    ) -> None:
        if isinstance(feed, Whole):
            self._store(feed.name, target, self._read(feed.value))
            return
        if feed.sight not in measured:
            measured[feed.sight] = feed.sight.measure(self._read)
        bias, seeing, kept = measured[feed.sight]
        match feed:
            case Bias():
                self._store(feed.name, target, bias)
            case Seeing():
                self._store(feed.name, target, seeing)
            case Past(_, value):
                store = partial(self._store, feed.name)
                _fill_past(target, self._read(value), kept, store)

    def _store(self, name: str, target: Array, source: Array) -> None:
        """Write numbers in the device's form: float16, or integers on a grid."""
        grid = self._call.plan.grids.get(name)
        if grid is None:
            round_into(target, source)
        else:
            target[...] = grid.integers(source.astype(np.float32))

    def _numbers(self, name: str) -> Array:
        made, grid = self._call.arrays[name], self._call.plan.grids.get(name)
        return made if grid is None else grid.numbers(made.astype(np.int32))

    def _taken(self) -> list[tuple[str, tuple[Made | Rows, ...]]]:
        plan = self._call.plan
        names = (value.name for value in plan.model.outputs)
        return list(zip(names, plan.takes, strict=True))


def _fill_past(
    target: Array, old: Array, kept: Array, store: Callable[[Array, Array], None]
) -> None:
    """Copy visible slots of a cache to `target`, and write zeros to hidden slots.

    Hidden slots can have infinite or NaN numbers, which would spoil results.

    Args:
        target: float16 or uint16 [batch, heads, slots, width].
        old: the cache's old content, of the same shape, any float.
        kept: bool [batch, slots], whether a slot is visible.
        store: converts and writes numbers to a target.
    """
    for row in range(len(kept)):
        seen = int(kept[row].sum())
        if kept[row, :seen].all():
            store(target[row, :, :seen], old[row, :, :seen])
            store(target[row, :, seen:], np.zeros((), np.float32))
        else:
            store(target[row], np.where(kept[row][:, None], old[row], 0))


def rounded(array: Array) -> Array:
    """Return an array rounded to float16: 65520 and more become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def round_into(target: Array, source: Array) -> None:
    """Write an array rounded to float16; see `rounded`."""
    with np.errstate(over="ignore"):
        np.copyto(target, source, casting="same_kind")
