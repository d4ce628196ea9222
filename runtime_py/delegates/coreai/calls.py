"""Bind a partition to arrays of the host, and run it.

In: a `Call`, whose memory Core AI's process sees, and the operands of the partition.
Out: a function that converts what goes in, has it run, and writes what comes out.
Nothing that outlives the partition is written before the run has finished, so what
fails has written nothing.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array, copy_into, lies_over
from kvc.runtime.binding.executor import Unbegun, fail
from kvc.runtime.binding.values import Values
from kvc.runtime.delegates.cache_writes import Read, count_of
from kvc.runtime.delegates.coreai.context import Call
from kvc.runtime.delegates.coreai.plan import OUTSIDE, Changed, Looked, Plan
from kvc.runtime.delegates.host_values import Check, host_values
from kvc.schema.errors import IndexOutOfRange, KvcError
from kvc.schema.model import Block

Runs = list[list[tuple[int, int, int]]]  # of each batch row: new row, slot, count


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
        self._checks, self._plan = checks, call.plan
        self._method, self._block, self._call = method, block, call
        self._read, self._outputs = values.array, outputs
        self._at = 0  # the instruction that is to blame

    def run(self) -> None:
        """Run the partition once.

        Raises:
            Unbegun: from what went wrong before anything was written.
        """
        self._at = 0
        try:
            handed, runs = self._run()
        except Exception as error:
            at = self._block.graph.instructions[self._at]
            try:
                fail(self._method, self._at, at, error)
            except KvcError as told:
                raise Unbegun from told
        for output, array in handed:
            copy_into(self._outputs[output], array)
        for take in self._plan.takes:
            target = self._outputs[take.output]
            made = self._call.arrays[take.name]
            np.copyto(target, made.reshape(target.shape))
        for changed in self._plan.changed:
            self._write(changed, self._call.arrays[changed.name], runs.get(changed))

    def _run(self) -> tuple[list[tuple[int, Array]], dict[Changed, Runs]]:
        """Do all that may fail; return copies of what is handed on, and rows."""
        for at, check in self._checks:
            self._at = at
            check()
        for looked in self._plan.looked:
            self._at = looked.instruction
            _look(looked, self._read)
        self._at = 0
        for feed in self._plan.feeds:
            convert_into(self._call.arrays[feed.name], self._read(feed.value))
        self._call.run()
        self._look_outside(self._plan)
        handed = [(e.output, self._read(e.value).copy()) for e in self._plan.handed]
        runs = {
            each: _runs(each, self._read)
            for each in self._plan.changed
            if each.writes is not None
        }
        return handed, runs

    def _look_outside(self, plan: Plan) -> None:
        """Refuse indices that the function has found outside.

        Raises:
            IndexOutOfRange: the first of them.
        """
        if not plan.indexed:
            return
        found = self._call.arrays[OUTSIDE].reshape(-1, 2).tolist()
        for indexed, worst in zip(plan.indexed, found, strict=True):
            self._at = indexed.instruction
            for index in worst:
                if index:
                    raise IndexOutOfRange(place="", index=index, size=indexed.most)

    def _write(self, changed: Changed, made: Array, runs: Runs | None) -> None:
        target = self._outputs[changed.output]
        if runs is None:
            np.copyto(target, made)
            return
        old = self._read(changed.cache)
        if not lies_over(old, target):
            copy_into(target, old)
        for row, parts in enumerate(runs):
            for _, slot, count in parts:
                span = slice(slot, slot + count)
                np.copyto(target[row, :, span], made[row, :, span])


def _runs(changed: Changed, read: Read) -> Runs:
    assert changed.writes is not None
    rows = range(read(changed.cache).shape[0])
    return [changed.writes.runs(read, row) for row in rows]


def _look(looked: Looked, read: Read) -> None:
    """Check a place in a cache.

    Raises:
        IndexOutOfRange, CacheOverflow, RowLengthOutOfRange, ValueError: it is outside.
    """
    if looked.writes is not None:
        given = looked.writes.start, looked.writes.lengths
        rows = max([len(read(each)) for each in given if each is not None], default=0)
        for row in range(rows):
            looked.writes.runs(read, row)
        if not rows:
            looked.writes.runs(read, 0)
        return
    assert looked.total is not None
    for row, total in enumerate(read(looked.total).tolist()):
        if total < 0 or (looked.slots is not None and total > looked.slots):
            raise ValueError(f"valid length {total} of {looked.slots} slots")
        count_of(read, looked.lengths, looked.queries, row)


def convert_into(target: Array, source: Array) -> None:
    """Write an array in a dtype of Core AI's: 65520 and more become infinite float16.

    Raises:
        ValueError: an integer needs more than 32 bits.
    """
    if source.dtype == np.int64 and source.size:
        limits = np.iinfo(np.int32)
        for number in (int(source.min()), int(source.max())):
            if not limits.min <= number <= limits.max:
                raise ValueError(
                    f"Core AI has integers of 32 bits, and this is {number}"
                )
    with np.errstate(over="ignore"):
        np.copyto(target, source, casting="same_kind")
