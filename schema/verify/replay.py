"""The slow check of memory: run a graph without numbers and watch who writes where.

Every piece of memory remembers whether something else was written over it, and how
often it was updated in place; every read asks. Nothing is shared with the quick
check in `memory.py` but what a conflict is.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kvc.schema.model import Alias, Graph, Scratch
from kvc.schema.ops import OPS, Aliasing

Operands = Sequence[tuple[int, ...]]


class Conflict(ValueError):
    """Memory is used wrongly at an instruction.

    Attributes:
        index: of the instruction; their number for the outputs, -1 for the inputs.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


def replay(graph: Graph, operands: Operands) -> None:
    """Run a graph's reads and writes in order.

    Raises:
        Conflict: something is read after it was overwritten.
    """
    machine = _Machine(graph)
    machine.write(-1, graph.inputs, ())
    for index, (step, reads) in enumerate(
        zip(graph.instructions, operands, strict=True)
    ):
        for value in reads:
            machine.read(index, value)
        update = OPS[step.op].aliasing is Aliasing.UPDATE
        owned = [
            i for i in step.results if isinstance(graph.values[i].storage, Scratch)
        ]
        if update and not owned:
            machine.update(index, step.results, reads)
        machine.write(index, owned, reads)
        machine.stamp(step.results)
    for value in graph.outputs:
        machine.read(len(graph.instructions), value)


class _Machine:
    """Memory that knows what became of it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        scratch = [
            (s.offset, s.offset + s.nbytes) if isinstance(s, Scratch) else (0, 0)
            for s in (value.storage for value in graph.values)
        ]
        spans = np.array(scratch, np.int64).reshape(-1, 2)
        self.starts, self.ends = spans[:, 0], spans[:, 1]
        self.written = np.zeros(len(scratch), bool)
        self.overwritten = np.zeros(len(scratch), bool)
        self.updates = [0] * len(scratch)  # of each owner of memory
        self.seen = [0] * len(scratch)  # updates when a value was made
        self.expanded = {
            result
            for step in graph.instructions
            if step.op == "aten::expand"
            for result in step.results
        }

    def chain(self, value: int) -> list[int]:
        """Return a value, what it shares memory with, and so on to the owner."""
        path = [value]
        while isinstance(storage := self.graph.values[path[-1]].storage, Alias):
            path.append(storage.base)
        return path

    def owner(self, value: int) -> int:
        return self.chain(value)[-1]

    def read(self, index: int, value: int) -> None:
        owner = self.owner(value)
        if self.overwritten[owner] or self.seen[value] != self.updates[owner]:
            raise Conflict(index, f"reads value {value} after it was overwritten")

    def update(self, index: int, results: Sequence[int], reads: Sequence[int]) -> None:
        owner = self.owner(reads[0])
        if owner in [self.owner(value) for value in reads[1:]]:
            raise Conflict(index, "writes over memory that another operand reads")
        if self.expanded.intersection(self.chain(results[0])):
            raise Conflict(
                index, "writes over an expanded view, whose elements overlap"
            )
        self.updates[owner] += 1

    def stamp(self, results: Sequence[int]) -> None:
        for value in results:
            self.seen[value] = self.updates[self.owner(value)]

    def write(self, index: int, owned: Sequence[int], reads: Sequence[int]) -> None:
        """Write memory of its own: it must not touch what is read or written here."""
        for a, b in combinations(owned, 2):
            if self._touching(a)[b]:
                raise Conflict(index, f"values {a} and {b} take the same bytes")
        for value in owned:
            touched = self._touching(value)
            if any(touched[self.owner(other)] for other in reads):
                raise Conflict(index, f"value {value} takes bytes that are read here")
            self.overwritten |= touched & self.written
            self.written[value] = True

    def _touching(self, value: int) -> NDArray[np.bool_]:
        start, end = self.starts[value], self.ends[value]
        filled = self.ends > self.starts
        touched: NDArray[np.bool_] = (
            (self.starts < end) & (self.ends > start) & filled & (end > start)
        )
        touched[value] = False
        return touched
