"""The independent check of memory: nothing reads bytes that were overwritten since.

In: a graph whose values and storage have been checked, and what each instruction
reads. Lifetimes are derived from the graph alone, not from a planner's notes. Two
implementations give equal verdicts: the sweep over time here, which is quick enough
for every load, and `replay.py`, which compares every pair, for the build and
`kvc verify`. Both treat inputs as written before the first instruction, outputs as
read after the last, and an update in place as the end of every older value of the
same memory.
"""

from bisect import bisect_left
from dataclasses import dataclass

from kvc.schema.model import Alias, Graph, Scratch
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.places import place
from kvc.schema.verify.replay import Conflict, Operands, replay


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When the memory of each value is in use.

    Attributes:
        root: value -> the value whose memory it is.
        first: value -> index of the instruction that writes it, -1 for inputs.
        last: root -> index of the last instruction that reads it or a part of it.
    """

    root: list[int]
    first: list[int]
    last: list[int]


def check_memory(
    graph: Graph, operands: Operands, where: str, report: Reporter, thorough: bool
) -> None:
    """Check that a graph's memory is sound; `thorough` adds the replay.

    Raises:
        BadProgram: it is not.
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
    """Check versions, then that scratch in use at one time does not overlap.

    Raises:
        Conflict: something is read after it was overwritten.
    """
    _check_arena(graph, derive_lifetimes(graph, operands))


def derive_lifetimes(graph: Graph, operands: Operands) -> Lifetimes:
    """Return when memory is in use, and check that no old version is read.

    Raises:
        Conflict: a value is read after an update in place of its memory.
    """
    count = len(graph.values)
    root, first, last = list(range(count)), [-1] * count, [-1] * count
    version, written = [0] * count, [0] * count  # of a value; of a root, now
    stretched = [False] * count
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
            first[value] = index
            storage = storages[value]
            if not isinstance(storage, Alias):
                last[value] = index
                continue
            owner = root[value] = root[storage.base]
            stretched[value] = stretched[storage.base] or step.op == "aten::expand"
            last[owner] = index
            if OPS[step.op].aliasing is Aliasing.UPDATE:
                _check_update(index, reads, root, stretched[value])
                written[owner] += 1
            version[value] = written[owner]
    for value in graph.outputs:
        if version[value] != written[root[value]]:
            text = f"the output {value} is overwritten before the end"
            raise Conflict(len(graph.instructions), text)
        last[root[value]] = len(graph.instructions)
    return Lifetimes(root, first, last)


def _check_update(
    index: int, reads: tuple[int, ...], root: list[int], stretched: bool
) -> None:
    """Check an update in place; operand 0 is what it writes over."""
    if any(root[value] == root[reads[0]] for value in reads[1:]):
        raise Conflict(index, "writes over memory that another operand reads")
    if stretched:
        raise Conflict(index, "writes over an expanded view, whose elements overlap")


def _check_arena(graph: Graph, lives: Lifetimes) -> None:
    """Sweep over time; `alive` is sorted by offset and without overlaps."""
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
    """Return what begins and what ends at each time, from -1 to behind the last."""
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
