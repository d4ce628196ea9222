"""The slow memory check: follow a graph's reads and writes without computing.

For each value, the replay records whether the value's bytes are intact. A write marks
the values whose bytes it destroys; a read checks that its operands are intact. The fast
check in `memory.py` shares no code with the replay except the class `Conflict`.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kvc.schema.graph import Alias, Graph, Instruction, Scratch
from kvc.schema.ops import OPS, Aliasing

Operands = Sequence[tuple[int, ...]]
Mask = NDArray[np.bool_]


class Conflict(ValueError):
    """An instruction uses memory wrongly.

    Attributes:
        index: index of the instruction; -1 for inputs of the graph, and the number of
            instructions for outputs.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


def replay(graph: Graph, operands: Operands) -> None:
    """Follow a graph's reads and writes in order.

    Raises:
        Conflict: a value is read after it was overwritten, or an instruction writes
            memory that it must not write.
    """
    machine = _Machine(graph)
    machine.write(-1, machine.owned(graph.inputs), ())
    machine.finish(graph.inputs)
    for index, (step, reads) in enumerate(
        zip(graph.instructions, operands, strict=True)
    ):
        for value in reads:
            machine.read(index, value)
        if OPS[step.op].aliasing is not Aliasing.VIEW:
            machine.write_over(index, step, reads)
        machine.write(index, machine.owned(step.results), reads)
        machine.finish(step.results)
    for value in graph.outputs:
        machine.read(len(graph.instructions), value)


class _Machine:
    """Record of which values are intact, while the replay runs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        scratch = [
            (s.offset, s.offset + s.nbytes) if isinstance(s, Scratch) else (0, 0)
            for s in (value.storage for value in graph.values)
        ]
        spans = np.array(scratch, np.int64).reshape(-1, 2)
        self.starts, self.ends = spans[:, 0], spans[:, 1]
        self.makers = {
            result: step.op for step in graph.instructions for result in step.results
        }
        self.owners = np.array([self.chain(i)[-1] for i in range(len(scratch))], int)
        self.dead = np.zeros(len(scratch), bool)
        self.made = np.array([i not in self.makers for i in range(len(scratch))], bool)
        self.made[list(graph.inputs)] = False

    def chain(self, value: int) -> list[int]:
        """Return a value, the value whose memory it shares, and so on to the owner."""
        path = [value]
        while isinstance(storage := self.graph.values[path[-1]].storage, Alias):
            path.append(storage.base)
        return path

    def owned(self, values: Sequence[int]) -> list[int]:
        """Return those of `values` that own scratch memory."""
        storages = self.graph.values
        return [i for i in values if isinstance(storages[i].storage, Scratch)]

    def read(self, index: int, value: int) -> None:
        if self.dead[value]:
            raise Conflict(index, f"reads value {value} after it was overwritten")

    def finish(self, values: Sequence[int]) -> None:
        """Record that values have been written, so that their bytes are intact."""
        self.made[list(values)] = True

    def is_whole(self, value: int) -> bool:
        """Tell whether no view lies between a value and the owner of its memory."""
        ops = [self.makers[link] for link in self.chain(value)[:-1]]
        return all(OPS[op].aliasing is not Aliasing.VIEW for op in ops)

    def write_over(self, index: int, step: Instruction, reads: Sequence[int]) -> None:
        """Record an instruction's results that overwrite older values' memory.

        Raises:
            Conflict: the instruction must not write there.
        """
        owners: set[int] = set()
        for value in step.results:
            storage = self.graph.values[value].storage
            if not isinstance(storage, Alias):
                continue
            self.check_target(index, step, storage.base)
            owner = int(self.owners[value])
            for other in self.sharing(step, storage.base, reads, owner):
                values = self.graph.values
                same = values[other].type == values[value].type
                if not (OPS[step.op].pointwise and same and self.is_whole(other)):
                    text = "writes over memory that another operand reads"
                    raise Conflict(index, text)
            if owner in owners:
                raise Conflict(index, "writes two results over the same memory")
            owners.add(owner)
            if step.op != "kvc::append":
                self.dead |= (self.owners == owner) & self.made

    def check_target(self, index: int, step: Instruction, base: int) -> None:
        """Check that an instruction can overwrite or extend the value `base`."""
        chain = self.chain(base)
        if any(self.makers.get(link) == "aten::expand" for link in chain):
            text = "writes over an expanded view, whose elements overlap"
            raise Conflict(index, text)
        fresh = OPS[step.op].aliasing is Aliasing.FRESH
        runs_blocks = OPS[step.op].aliasing is Aliasing.CONTROL
        grows = step.op in ("kvc::append", "kvc::replace")
        takes_all = fresh or runs_blocks or grows
        if takes_all and not self.is_whole(base):
            raise Conflict(index, f"value {base} is not the whole of its memory")
        if step.op == "kvc::append" and self.newest(index, chain[-1]) != base:
            raise Conflict(index, f"value {base} is not the newest of its memory")

    def newest(self, index: int, owner: int) -> int:
        """Return the value that last wrote a memory before instruction `index`.

        `owner` is the value that owns the memory.
        """
        for step in reversed(self.graph.instructions[:index]):
            if OPS[step.op].aliasing is not Aliasing.VIEW:
                for value in step.results:
                    if self.owners[value] == owner:
                        return value
        return owner

    def sharing(
        self, step: Instruction, base: int, reads: Sequence[int], owner: int
    ) -> list[int]:
        """Return operands in the memory of `owner`, except an overwritten `base`."""
        others = list(reads)
        if OPS[step.op].aliasing in (Aliasing.UPDATE, Aliasing.CONTROL):
            others.remove(base)
        return [value for value in others if self.owners[value] == owner]

    def write(self, index: int, owned: Sequence[int], reads: Sequence[int]) -> None:
        """Record the results of an instruction that own scratch memory.

        Raises:
            Conflict: a result overlaps an operand or another result.
        """
        for a, b in combinations(owned, 2):
            if self._touching(a)[b]:
                raise Conflict(index, f"values {a} and {b} take the same bytes")
        for value in owned:
            touched = self._touching(value)
            if any(touched[self.owners[other]] for other in reads):
                raise Conflict(index, f"value {value} takes bytes that are read here")
            if touched.any():
                self.dead |= touched[self.owners] & self.made

    def _touching(self, value: int) -> Mask:
        start, end = self.starts[value], self.ends[value]
        filled = self.ends > self.starts
        touched: Mask = (
            (self.starts < end) & (self.ends > start) & filled & (end > start)
        )
        touched[value] = False
        return touched
