"""Arguments of the control operators: `kvc::cond`, `while`, `scan`, `delegate`.

In: the arguments of a control instruction, in the file or in the compiler's IR. Out:
its blocks, its operands, and the operand whose memory each result shares. Blocks take
all operands, in order:

- cond: `pred` selects one of two blocks, whose outputs are the results.
- while: the first block decides whether to continue; the second block computes the
  carried values of the next iteration. The results are the last carried values.
  Operands after the carried operands do not change.
- scan: the block runs for each index along axis 0 of the `scanned` operands, which come
  after the carried ones. Its outputs are the carried values of the next iteration, then
  the values that are stacked along a new axis 0.
- delegate: a backend runs a single block, whose outputs are the results.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar, cast

from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph, Instruction, Ref
from kvc.schema.model import Method
from kvc.schema.ops import COND, CONTROL_OPS, DELEGATE, OPS, SCAN, WHILE, Aliasing
from kvc.schema.types import TensorType

Operand = TypeVar("Operand")
# Operators whose last result is scratch memory for their blocks; a delegate gets
# scratch memory from its context.
WITH_WORKSPACE: Final = frozenset((COND, WHILE, SCAN))
# Operators that copy elements, and the argument that they copy.
_MOVING: Final = {"aten::copy": 1, "aten::clone": 0}


@frozen
class Control(Generic[Operand]):
    """A control instruction; `Operand` is the type of its operands.

    Attributes:
        op: one of `CONTROL_OPS`.
        blocks: ids of the instruction's blocks, in the order of its arguments.
        pred: the condition of a cond, None for other operators.
        operands: the inputs of the blocks.
        over: for each result, the index of the operand whose memory the result shares;
            None for a result with memory of its own.
        carried: the number of operands that an iteration passes to the next iteration;
            they are the first operands.
        scanned: the number of operands, after the carried operands, that are sliced
            along axis 0.
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
        """Tell whether the blocks may run several times."""
        return self.op in (WHILE, SCAN)

    @property
    def workspaces(self) -> int:
        """Return how many results, at the end, are scratch memory of the blocks."""
        return int(self.op in WITH_WORKSPACE)

    @property
    def fixed(self) -> int:
        """Return how many operands, the first ones, change between iterations."""
        return self.carried + self.scanned

    def tests(self, which: int) -> bool:
        """Tell whether block `which` of `blocks` is the condition of a loop."""
        return self.op == WHILE and which == 0

    def is_scanned(self, operand: int) -> bool:
        """Tell whether an operand is sliced along axis 0."""
        return self.carried <= operand < self.carried + self.scanned

    def input_types(self, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Return the types of the inputs, which are the same for each of the blocks.

        Args:
            operands: the types of the instruction's operands.
        """
        return tuple(
            TensorType(kind.dtype, kind.dims[1:]) if self.is_scanned(i) else kind
            for i, kind in enumerate(operands)
        )

    def output_types(
        self, which: int, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> tuple[TensorType | None, ...]:
        """Return the types of the outputs of a block.

        Args:
            which: the index of the block in `blocks`.
            operands: the types of the instruction's operands.
            results: the types of the instruction's results.

        Returns:
            One type per output; (None,) for the condition of a loop, which returns one
            bool of any shape.
        """
        if self.tests(which):
            return (None,)
        return tuple(
            TensorType(kind.dtype, kind.dims[1:])
            if self.op == SCAN and i >= self.carried
            else kind
            for i, kind in enumerate(results)
        )


def read_control(op: str, arguments: Sequence[object]) -> Control[object]:
    """Decode a control instruction from its arguments, which have been checked."""
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
    """Yield the ids of the blocks that the control instructions of a graph run.

    With `op`, only instructions of this operator count.
    """
    for step in graph.instructions:
        if step.op in CONTROL_OPS and op in (None, step.op):
            yield from read_control(step.op, step.arguments).blocks


def left_to_torch(graph: Graph) -> Iterator[Instruction]:
    """Yield the instructions of a graph that compute and that no backend runs."""
    for step in graph.instructions:
        if computes(graph, step, delegated=False):
            yield step


def computes(graph: Graph, step: Instruction, *, delegated: bool) -> bool:
    """Tell whether an instruction computes; views and control flow do not.

    Args:
        graph: the graph that holds the instruction.
        step: the instruction.
        delegated: whether a backend runs the instruction. If not, an instruction that
            only copies elements does not count as computing.
    """
    if OPS[step.op].aliasing in (Aliasing.VIEW, Aliasing.CONTROL):
        return False
    return delegated or moved(graph, step) is None


def moved(graph: Graph, step: Instruction) -> int | None:
    """Return the id of the value that an instruction copies unchanged.

    The result is None if the instruction does anything else than copy. An instruction
    that only copies does not need PyTorch: numpy can make the copy.
    """
    if step.op not in _MOVING:
        return None
    source = step.arguments[_MOVING[step.op]]
    assert isinstance(source, Ref), "the verifier has seen to it"
    kinds = {graph.values[i].type.dtype for i in (source.value, *step.results)}
    return source.value if len(kinds) == 1 else None


def graphs_within(method: Method, block: int) -> list[Graph]:
    """Return the graph of a method's block, then the graphs of blocks that it runs."""
    found = [method.blocks[block].graph]
    for graph in found:
        found += [method.blocks[number].graph for number in blocks_run(graph)]
    return found
