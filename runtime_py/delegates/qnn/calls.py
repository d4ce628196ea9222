"""Bind a partition to arrays of the host, and run it.

In: a `Call`, whose memory the device sees, and the operands of the partition. Out: a
function that rounds what goes in, has the device run, and writes what comes out.
Nothing that outlives the partition is written before the device has finished, so what
fails has written nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array, copy_into, lies_over
from kvc.runtime.binding.executor import Unbegun, fail
from kvc.runtime.binding.values import Values
from kvc.runtime.delegates.host_values import Check, host_values
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
from kvc.runtime.delegates.qnn.sights import Sight
from kvc.schema.errors import KvcError
from kvc.schema.model import Block

Measured = tuple[Array, Array, Array]


class Call(Protocol):
    """A plan bound to memory; `context.Call` has that of the device."""

    @property
    def plan(self) -> Plan:
        """Return what it runs."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return the memory of inputs and outputs, by name."""

    def run(self) -> None:
        """Make the outputs of the inputs."""

    def close(self) -> None:
        """Give it back."""


def bind_call(
    method: str,
    block: Block,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
    call: Call,
) -> Callable[[], None]:
    """Return a function that runs a partition.

    Args:
        method: the name of its method.
        block: its code.
        sizes: of the program's symbols.
        inputs: arrays of the graph's inputs.
        outputs: likewise, written by the function.
        arena: scratch memory of the context, which the values are laid out over.
        constant: returns named data.
        call: of the plan of these sizes.
    """
    values, checks = host_values(block.graph, sizes, inputs, outputs, arena, constant)
    return _Bound(method, block, values, outputs, call, checks).run


class _Bound:
    """A partition and the arrays that it is bound to."""

    def __init__(
        self,
        method: str,
        block: Block,
        values: Values,
        outputs: Sequence[Array],
        call: Call,
        checks: Sequence[Check],
    ) -> None:
        self._checks = checks
        self._method, self._block, self._call = method, block, call
        self._read, self._outputs = values.array, outputs

    def run(self) -> None:
        """Run the partition once.

        Raises:
            Unbegun: from what went wrong before anything was written.
        """
        index = 0
        try:
            for index, check in self._checks:  # noqa: B007  # it tells which failed
                check()
            self._fill()
            self._call.run()
            handed = [
                (each.output, self._read(each.value).copy())
                for each in self._call.plan.handed
            ]
            runs = self._row_runs()
        except Exception as error:
            try:
                fail(self._method, index, self._block.graph.instructions[index], error)
            except KvcError as told:
                raise Unbegun from told
        for output, array in handed:
            copy_into(self._outputs[output], array)
        for value, takes in self._taken():
            made = self._numbers(value)
            for take in takes:
                self._write(take, made, runs)

    def _fill(self) -> None:
        """Write what the device is given."""
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
        """Write numbers as the device has them: in float16, or as integers."""
        grid = self._call.plan.grids.get(name)
        if grid is None:
            round_into(target, source)
        else:
            target[...] = grid.integers(source.astype(np.float32))

    def _numbers(self, name: str) -> Array:
        """Return what the device has made, as numbers."""
        made, grid = self._call.arrays[name], self._call.plan.grids.get(name)
        return made if grid is None else grid.numbers(made.astype(np.int32))

    def _taken(self) -> list[tuple[str, tuple[Made | Rows, ...]]]:
        plan = self._call.plan
        names = (value.name for value in plan.model.outputs)
        return list(zip(names, plan.takes, strict=True))

    def _row_runs(self) -> dict[Rows, list[list[tuple[int, int, int]]]]:
        """Return where the rows of each cache go, by batch row."""
        rows = (t for _, takes in self._taken() for t in takes if isinstance(t, Rows))
        return {
            each: [
                each.writes.runs(self._read, row)
                for row in range(self._read(each.cache).shape[0])
            ]
            for each in rows
        }

    def _write(
        self,
        take: Made | Rows,
        made: Array,
        runs: Mapping[Rows, Sequence[Sequence[tuple[int, int, int]]]],
    ) -> None:
        target = self._outputs[take.output]
        if isinstance(take, Made):
            np.copyto(target, made.reshape(target.shape))
            return
        old = self._read(take.cache)
        if not lies_over(old, target):
            copy_into(target, old)
        for row, parts in enumerate(runs[take]):
            for first, slot, count in parts:
                new = made[row, :, first : first + count]
                np.copyto(target[row, :, slot : slot + count], new)


def _fill_past(
    target: Array, old: Array, kept: Array, store: Callable[[Array, Array], None]
) -> None:
    """Write the slots that are seen, and zeros elsewhere, for 0 times what is there.

    Args:
        target: float16 or uint16 [batch, heads, slots, width].
        old: the same, of any float.
        kept: bool [batch, slots].
        store: writes numbers to a target.
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
