"""The independent memory check: no instruction reads bytes that were overwritten.

In: a graph whose values and storage have been checked, and the operands of each
instruction. Lifetimes are derived from the graph alone, not from a planner's data. Two
implementations give equal verdicts: the sweep over time in this module, fast enough for
every load, and `replay.py`, which compares every pair of values, for the build and `kvc
verify`. In both, inputs are written before the first instruction, and outputs are read
after the last instruction. A result that is written over memory, or over a view of
memory, destroys every older value in that memory. `kvc::append` destroys no value,
since it leaves the bytes of older values intact; it can extend only the newest value in
a piece of memory.
"""

from bisect import bisect_left
from typing import Final

from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Graph, Instruction, Scratch
from kvc.schema.ops import OPS, Aliasing, Keeps, OpSpec
from kvc.schema.verify.limits import Reporter, place
from kvc.schema.verify.replay import Conflict, Operands, replay

APPEND: Final = "kvc::append"
GROWING: Final = (APPEND, "kvc::replace")
Reads = tuple[int, ...]


@frozen
class Lifetimes:
    """The times when the memory of each value is in use.

    Attributes:
        root: for each value, the value that owns its memory.
        first: for each value, the index of the instruction that writes it; -1 for
            inputs.
        last: for each value that owns memory (a root), the index of the last
            instruction that reads any part of the memory.
    """

    root: list[int]
    first: list[int]
    last: list[int]


def check_memory(
    graph: Graph, operands: Operands, where: str, report: Reporter, thorough: bool
) -> None:
    """Check that no instruction reads overwritten memory; `thorough` adds the replay.

    Raises:
        BadProgram: an instruction does.
    """
    try:
        sweep(graph, operands)
        if thorough:
            replay(graph, operands)
    except Conflict as conflict:
        report.fail(_place(graph, conflict.index, where), str(conflict))


def _place(graph: Graph, index: int, where: str) -> str:
    if index < 0:
        return f"{where}, inputs"
    if index == len(graph.instructions):
        return f"{where}, outputs"
    return place(where, index, graph.instructions[index])


def sweep(graph: Graph, operands: Operands) -> None:
    """Check that no value is read after an overwrite.

    Also check that values in use never overlap in scratch memory.

    Raises:
        Conflict: a value is read after it was overwritten, or values overlap.
    """
    _check_arena(graph, derive_lifetimes(graph, operands))


def derive_lifetimes(graph: Graph, operands: Operands) -> Lifetimes:
    """Return when memory is in use, and check the order of writes and reads.

    Raises:
        Conflict: a value is read after its memory was updated in place, or an
            instruction overwrites or extends memory that it must not change.
    """
    count = len(graph.values)
    root, first, last = list(range(count)), [-1] * count, [-1] * count
    versions = Versions(graph, root)
    version, written = versions.version, versions.written
    storages = [value.storage for value in graph.values]
    for index, (step, reads) in enumerate(
        zip(graph.instructions, operands, strict=True)
    ):
        for value in reads:
            owner = root[value]
            last[owner] = index
            if version[value] != written[owner]:
                raise Conflict(index, f"reads value {value} after it was overwritten")
        for value in step.results:
            first[value] = last[value] = index
            storage = storages[value]
            if isinstance(storage, Alias):
                owner = root[value] = root[storage.base]
                last[owner] = index
                versions.share(index, step, value, storage.base, reads)
    for value in graph.outputs:
        if version[value] != written[root[value]]:
            text = f"the output {value} is overwritten before the end"
            raise Conflict(len(graph.instructions), text)
        last[root[value]] = len(graph.instructions)
    return Lifetimes(root, first, last)


class Versions:
    """Which value in each piece of memory is the current one.

    Attributes:
        version: for each value, the number of earlier writes to its memory.
        written: for each value that owns memory (a root), the number of writes so far.
        newest: for each root, the value that was written last.
        whole: for each value, whether it covers its root's memory completely, at the
            root's current length.
        stretched: for each value, whether several elements can lie in the same bytes.
    """

    def __init__(self, graph: Graph, root: list[int]) -> None:
        count = len(graph.values)
        self.types = [value.type for value in graph.values]
        self.root = root
        self.version, self.written = [0] * count, [0] * count
        self.newest = list(range(count))
        self.whole, self.stretched = [True] * count, [False] * count
        self._last_write: dict[int, int] = {}  # root -> index of the instruction

    def share(
        self, index: int, step: Instruction, value: int, base: int, reads: Reads
    ) -> None:
        """Record a result of an instruction that shares the memory of the value `base`.

        Args:
            index: the index of the instruction.
            step: the instruction.
            value: the result.
            base: the value whose memory the result shares.
            reads: the operands of the instruction.

        Raises:
            Conflict: the result must not be written over `base`.
        """
        owner = self.root[base]
        kind = OPS[step.op]
        self.stretched[value] = (
            self.stretched[base] or OPS[step.op].keeps is Keeps.REPEATED
        )
        self.whole[value] = self.whole[base] and kind.aliasing is not Aliasing.VIEW
        if kind.aliasing is not Aliasing.VIEW:
            self._check_write(index, kind, value, base, reads)
            if step.op != APPEND:
                self.written[owner] += 1
            self.newest[owner] = value
        self.version[value] = self.written[owner]

    def _check_write(
        self, index: int, kind: OpSpec, value: int, base: int, reads: Reads
    ) -> None:
        owner = self.root[base]
        if self._last_write.get(owner) == index:
            raise Conflict(index, "writes two results over the same memory")
        self._last_write[owner] = index
        if self.stretched[base]:
            text = "writes over an expanded view, whose elements overlap"
            raise Conflict(index, text)
        update = kind.aliasing is Aliasing.UPDATE
        if not (update and kind.name not in GROWING) and not self.whole[base]:
            raise Conflict(index, f"value {base} is not the whole of its memory")
        if kind.name == APPEND and self.newest[owner] != base:
            raise Conflict(index, f"value {base} is not the newest of its memory")
        for other in _others(kind, base, reads):
            if self.root[other] == owner and not self._is_safe(kind, value, other):
                raise Conflict(index, "writes over memory that another operand reads")

    def _is_safe(self, kind: OpSpec, value: int, operand: int) -> bool:
        """Tell whether an operator may write `value` over an operand that it reads."""
        same = self.types[operand] == self.types[value]
        return kind.pointwise and self.whole[operand] and same


def _others(kind: OpSpec, base: int, reads: Reads) -> Reads:
    """Return the operands of an instruction without `base`, if it overwrites `base`."""
    if kind.aliasing is Aliasing.UPDATE:
        return reads[1:]
    if kind.aliasing is Aliasing.CONTROL:
        first = reads.index(base)
        return (*reads[:first], *reads[first + 1 :])
    return reads


def _check_arena(graph: Graph, lives: Lifetimes) -> None:
    """Check that values in use at the same time do not overlap in scratch memory.

    `alive` has the values in use at a time, sorted by offset.
    """
    starting, ending = _events(graph, lives)
    alive: list[tuple[int, int, int]] = []  # offset, end, value
    for time, (values, ended) in enumerate(zip(starting, ending, strict=True), -1):
        for entry in values:
            at = bisect_left(alive, entry)
            if at < len(alive) and alive[at][0] < entry[1]:
                raise Conflict(time, _overlap(entry[2], alive[at][2]))
            if at and alive[at - 1][1] > entry[0]:
                raise Conflict(time, _overlap(entry[2], alive[at - 1][2]))
            alive.insert(at, entry)
        for entry in ended:
            del alive[bisect_left(alive, entry)]


Spans = list[list[tuple[int, int, int]]]


def _events(graph: Graph, lives: Lifetimes) -> tuple[Spans, Spans]:
    """Return, for each time, the scratch values whose use begins, and whose use ends.

    Times are indices of instructions, from -1 on. A value is (offset, end, id).
    """
    times = len(graph.instructions) + 2
    starting: Spans = [[] for _ in range(times)]
    ending: Spans = [[] for _ in range(times)]
    first, last = lives.first, lives.last
    for i, value in enumerate(graph.values):
        storage = value.storage
        if isinstance(storage, Scratch) and storage.nbytes:
            entry = (storage.offset, storage.offset + storage.nbytes, i)
            starting[first[i] + 1].append(entry)
            ending[last[i] + 1].append(entry)
    return starting, ending


def _overlap(value: int, other: int) -> str:
    return f"value {value} takes bytes of value {other}, which is still in use"
