"""What instructions that run blocks take: `kvc::cond`, `while`, `scan`, `delegate`.

In: the arguments of such an instruction, of the file or of the compiler's IR. Out: its
blocks, its operands, and which results lie over which operands. Blocks take all
operands, in order:

- cond: `pred` chooses one of two blocks, whose outputs are the results.
- while: the first block decides whether to continue, the second makes the carried
  values of the next turn; the results are the last ones. Operands after the carried
  ones are only read.
- scan: the block runs for each index along axis 0 of the `scanned` operands, which come
  after the carried ones. Its outputs are the carried values of the next turn, then what
  is stacked along a new axis 0.
- delegate: a backend runs the one block, whose outputs are the results.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar, cast

from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph, Instruction, Ref
from kvc.schema.model import Method
from kvc.schema.ops import COND, CONTROL_OPS, DELEGATE, OPS, SCAN, WHILE, Aliasing
from kvc.schema.types import TensorType

Operand = TypeVar("Operand")
# Those whose last result is scratch memory for their blocks; a delegate has that of its
# context.
WITH_WORKSPACE: Final = frozenset((COND, WHILE, SCAN))
# What moves elements to other memory, and which argument has them.
_MOVING: Final = {"aten::copy": 1, "aten::clone": 0}


@frozen
class Control(Generic[Operand]):
    """A control instruction; `Operand` is how operands are written.

    Attributes:
        op: one of `CONTROL_OPS`.
        blocks: ids of its blocks, in the order of its arguments.
        pred: what a cond asks, None for the others.
        operands: what the blocks take.
        over: for each result the index of the operand in whose memory it lies, None
            where it has memory of its own.
        carried: how many operands, the first, go from turn to turn.
        scanned: how many after those are gone through along axis 0.
    """

    op: str
    blocks: tuple[int, ...]
    pred: Operand | None
    operands: tuple[Operand, ...]
    over: tuple[int | None, ...]
    carried: int
    scanned: int

    @property
    def is_loop(self) -> bool:
        """Tell whether blocks may run several times."""
        return self.op in (WHILE, SCAN)

    @property
    def workspaces(self) -> int:
        """Return how many results, the last, are scratch memory of the blocks."""
        return int(self.op in WITH_WORKSPACE)

    @property
    def fixed(self) -> int:
        """Return how many operands, the first, are not the same in each turn."""
        return self.carried + self.scanned

    def tests(self, which: int) -> bool:
        """Tell whether a block, by its place in `blocks`, says whether to go on."""
        return self.op == WHILE and which == 0

    def is_scanned(self, operand: int) -> bool:
        """Tell whether an operand is gone through along axis 0."""
        return self.carried <= operand < self.carried + self.scanned

    def input_types(self, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Return what every block takes, given the types of the operands."""
        return tuple(
            TensorType(kind.dtype, kind.dims[1:]) if self.is_scanned(i) else kind
            for i, kind in enumerate(operands)
        )

    def output_types(
        self, which: int, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> tuple[TensorType | None, ...]:
        """Return what a block gives; None stands for one bool."""
        if self.tests(which):
            return (None,)
        return tuple(
            TensorType(kind.dtype, kind.dims[1:])
            if self.op == SCAN and i >= self.carried
            else kind
            for i, kind in enumerate(results)
        )


def read_control(op: str, arguments: Sequence[object]) -> Control[object]:
    """Return what a control instruction says; its arguments are of the right kinds."""
    *first, operands, over = arguments
    listed = cast("tuple[object, ...]", operands)
    places = cast("tuple[int | None, ...]", over)
    if op == COND:
        pred, *blocks = first
        return Control(
            op, cast("tuple[int, ...]", tuple(blocks)), pred, listed, places, 0, 0
        )
    numbers = cast("list[int]", first)
    if op == DELEGATE:
        return Control(op, tuple(numbers), None, listed, places, 0, 0)
    if op == WHILE:
        test, body, carried = numbers
        return Control(op, (test, body), None, listed, places, carried, 0)
    body, carried, scanned = numbers
    return Control(op, (body,), None, listed, places, carried, scanned)


def blocks_run(graph: Graph, op: str | None = None) -> Iterator[int]:
    """Yield the blocks that a graph's instructions run, all or those of one op."""
    for step in graph.instructions:
        if step.op in CONTROL_OPS and op in (None, step.op):
            yield from read_control(step.op, step.arguments).blocks


def left_to_torch(graph: Graph) -> Iterator[Instruction]:
    """Yield the instructions of a graph that compute, in no block of a backend's."""
    for step in graph.instructions:
        if computes(graph, step, delegated=False):
            yield step


def computes(graph: Graph, step: Instruction, *, delegated: bool) -> bool:
    """Tell whether an instruction computes; views and control flow do not.

    Args:
        graph: that it is in.
        step: the instruction.
        delegated: whether a backend runs it. Outside of partitions, what moves
            elements as they are does not count.
    """
    if OPS[step.op].aliasing in (Aliasing.VIEW, Aliasing.CONTROL):
        return False
    return delegated or moved(graph, step) is None


def moved(graph: Graph, step: Instruction) -> int | None:
    """Return the value whose elements an instruction moves as they are, None if none.

    numpy does that as well as PyTorch.
    """
    if step.op not in _MOVING:
        return None
    source = step.arguments[_MOVING[step.op]]
    assert isinstance(source, Ref), "the verifier has seen to it"
    kinds = {graph.values[i].type.dtype for i in (source.value, *step.results)}
    return source.value if len(kinds) == 1 else None


def graphs_within(method: Method, block: int) -> list[Graph]:
    """Return the code of a block of a method, then that of the blocks it runs."""
    found = [method.blocks[block].graph]
    for graph in found:
        found += [method.blocks[number].graph for number in blocks_run(graph)]
    return found
