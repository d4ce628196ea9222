"""Run the blocks of a `kvc::cond`, `while` or `scan`.

In: an instruction of a bound graph, the blocks of the graph's method, and the memory of
the instruction's operands and results (`BoundOperands`). For a partition, that memory
may be the buffer of a state that a backend owns. Out: one step, which stays the same
object when sizes change. A block is bound when it first runs. The block's inputs lie in
the memory of the instruction's operands, and its scratch memory is the instruction's
last result. A block output that lies in an operand's memory is the result without a
copy; all other block outputs are copied to the results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from kvc.runtime.execution.executor import Frame, RunProgress, Unrolled
from kvc.runtime.execution.recording import TimedStep
from kvc.runtime.execution.values import GraphMemory, Values
from kvc.runtime.memory.arenas import Within
from kvc.runtime.memory.arrays import Array, copy_into, place_of
from kvc.runtime.native import Failure
from kvc.runtime.states.owner import Buffer
from kvc.schema.control import Control, read_control
from kvc.schema.errors import TooManyTurns
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Graph, Instruction, Ref
from kvc.schema.ops import COND, OPS, WHILE, Aliasing


@frozen
class BoundOperands:
    """The memory of a control instruction's operands and results, at some sizes.

    Attributes:
        control: the decoded instruction.
        sizes: the sizes of the program's symbols.
        memory: the memory of the surrounding graph.
        pred: the predicate of a cond, None for loops.
        operands: one array for each operand.
        lent: the whole memory of each operand; it is longer than the operand if the
            operand can grow.
        results: one array for each result; the last array is the scratch memory of the
            blocks.
    """

    control: Control[object]
    sizes: Mapping[str, int]
    memory: GraphMemory
    pred: Array | None
    operands: Sequence[Array]
    lent: Sequence[Array]
    results: Sequence[Array]


def bind_operands(
    instruction: Instruction,
    graph: Graph,
    values: Values,
    memory: GraphMemory,
    sizes: Mapping[str, int],
    makers: Mapping[int, str],
) -> BoundOperands:
    """Bind the operands of an instruction; earlier instructions are already bound.

    `makers` maps the id of a value to the operator of the instruction that makes the
    value.
    """
    control = read_control(instruction.op, instruction.arguments)
    operands = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    _share(instruction, control, operands, graph, values)
    pred = control.pred
    return BoundOperands(
        control=control,
        sizes=sizes,
        memory=memory,
        pred=values.array(pred.value) if isinstance(pred, Ref) else None,
        operands=[values.array(i) for i in operands],
        lent=[_lent(i, graph, values, makers) for i in operands],
        results=[values.array(i) for i in instruction.results],
    )


def bind_partition(
    instruction: Instruction, graph: Graph, values: Values, makers: Mapping[int, str]
) -> tuple[Sequence[Buffer], Sequence[Buffer]]:
    """Return the buffers of a partition's inputs, and the buffers of its outputs.

    The buffers are in the form that `Handle.prepare` takes.
    """
    control = read_control(instruction.op, instruction.arguments)
    operands = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    grown = _share(instruction, control, operands, graph, values)
    inputs = []
    for index, value in enumerate(operands):
        buffer: Buffer | None = values.buffer(value)
        if buffer is None and index in grown:
            buffer = _lent(value, graph, values, makers)
        inputs.append(values.array(value) if buffer is None else buffer)
    return inputs, [
        values.array(result) if (buffer := values.buffer(result)) is None else buffer
        for result in instruction.results
    ]


def _share(
    instruction: Instruction,
    control: Control[object],
    operands: Sequence[int],
    graph: Graph,
    values: Values,
) -> set[int]:
    """Let results lie in the memory of operands, as `control.over` says.

    Returns:
        The indices of the operands that grow: their results have another type, and
        memory that is made on demand.
    """
    grown = set()
    for result, over in zip(instruction.results, control.over, strict=False):
        if over is None:
            continue
        if graph.values[result].type == graph.values[operands[over]].type:
            values.share(result, operands[over])
        else:  # the longer array is made on demand
            grown.add(over)
    return grown


def _lent(
    operand: int, graph: Graph, values: Values, makers: Mapping[int, str]
) -> Array:
    """Return an operand's memory; unless it is a view, with the memory after it."""
    value = operand
    while isinstance(storage := graph.values[value].storage, Alias):
        if OPS[makers[value]].aliasing is Aliasing.VIEW:
            return values.array(operand)
        value = storage.base
    return values.lent(operand)


Pairs = list[tuple[Array, Array]]  # (target, source)
Bind = Callable[[Graph, Mapping[str, int], GraphMemory], Frame]


class ControlStep(Unrolled):
    """Runs one control instruction, in the memory that `settle` sets."""

    def __init__(
        self,
        instruction: Instruction,
        blocks: Sequence[Graph],
        bind: Bind,
        method: str,
        max_turns: int | None,
    ) -> None:
        self._method, self._max_turns = method, max_turns
        self._control = read_control(instruction.op, instruction.arguments)
        chosen = [blocks[number] for number in self._control.blocks]
        self._blocks = [_Block(graph, bind) for graph in chosen]
        self._bound: BoundOperands | None = None
        self._starts: Pairs = []

    def settle(self, bound: BoundOperands) -> None:
        """Set the sizes and memory that later runs use."""
        self._bound, control = bound, self._control
        made = list(bound.results[:-1])
        scratch = Within(bound.results[-1])
        lent = list(bound.lent)
        self._starts = []
        if control.is_loop:
            for i in range(control.carried):
                lent[i] = made[i]
                if control.over[i] is None:
                    self._starts.append((made[i], bound.operands[i]))
        inside = [None if control.is_scanned(i) else a for i, a in enumerate(lent)]
        for block in self._blocks:
            block.settle(bound.sizes, bound.memory, scratch, inside)

    def run(self) -> None:
        """Run the instruction."""
        assert self._bound is not None, "settle() runs first"
        for target, source in self._starts:
            copy_into(target, source)
        if self._control.op == COND:
            self._run_cond(self._bound)
        elif self._control.op == WHILE:
            self._run_while()
        else:
            self._run_scan(self._bound)

    def _run_cond(self, bound: BoundOperands) -> None:
        assert bound.pred is not None, "the verifier guarantees it"
        outputs = self._blocks[0 if bound.pred.item() else 1].run()
        for i, (target, source) in enumerate(zip(bound.results, outputs, strict=False)):
            if self._control.over[i] is None:
                copy_into(target, source)

    def _run_while(self) -> None:
        test, body = self._blocks
        turns = 0
        while test.run()[0].item():
            if turns == self._max_turns:
                raise TooManyTurns(method=self._method, turns=turns)
            body.run()
            turns += 1

    def _run_scan(self, bound: BoundOperands) -> None:
        (body,) = self._blocks
        for before, after in self._turns(bound):
            for pair in before:
                copy_into(*pair)
            body.run()
            for pair in after:
                copy_into(*pair)

    def _turns(self, bound: BoundOperands) -> Iterator[tuple[Pairs, Pairs]]:
        """Yield what is copied before and after the body, for each turn of a scan."""
        control, frame = self._control, self._blocks[0].frame()
        through = range(control.carried, control.carried + control.scanned)
        stacked = range(control.carried, len(bound.results) - 1)
        for turn in range(bound.operands[control.carried].shape[0]):
            before = [(frame.inputs[i], bound.operands[i][turn, ...]) for i in through]
            after = [(bound.results[i][turn, ...], frame.outputs[i]) for i in stacked]
            yield before, after

    def unrolled(self) -> list[TimedStep] | None:
        """Return the steps of all turns of a scan; None if turns depend on values."""
        bound = self._bound
        assert bound is not None, "settle() runs first"
        if self._control.op in (COND, WHILE):
            return None
        steps: list[TimedStep] = [(copy_into, pair) for pair in self._starts]
        for before, after in self._turns(bound):
            steps += [(copy_into, pair) for pair in before]
            steps += self._blocks[0].frame().steps
            steps += [(copy_into, pair) for pair in after]
        return steps

    def count_listed(self) -> int:
        """Return how many steps all turns of a scan have in a bound list."""
        bound, count = self._bound, len(self._starts)
        assert bound is not None, "settle() runs first"
        within = self._blocks[0].frame().count_listed()
        for before, after in self._turns(bound):
            count += len(before) + within + len(after)
        return count

    def raise_at(self, failure: Failure) -> NoReturn:
        """Raise the error of a step of a scan; see `Unrolled`."""
        bound, step = self._bound, failure.step - len(self._starts)
        assert bound is not None, "settle() runs first"
        frame = self._blocks[0].frame()
        within = frame.count_listed()
        for before, after in self._turns(bound):
            step -= len(before)
            if step < within:
                frame.raise_at(replace(failure, step=step), RunProgress())
            step -= within + len(after)
        raise AssertionError("no copy fails")


class _Block:
    """One block and its frame; if memory moves, the next run binds the frame again."""

    def __init__(self, graph: Graph, bind: Bind) -> None:
        self._graph, self._bind = graph, bind
        self._frame: Frame | None = None
        self._sizes: Mapping[str, int] = {}
        self._memory: GraphMemory | None = None
        self._lent: dict[int, Array] = {}
        self._bound: dict[
            int, tuple[object, ...]
        ] = {}  # the addresses of lent memory when the block was bound
        self._is_stale = False

    def settle(
        self,
        sizes: Mapping[str, int],
        memory: GraphMemory,
        scratch: Within,
        lent: Sequence[Array | None],
    ) -> None:
        """Set the sizes and memory for the next runs of the block.

        Args:
            sizes: the sizes of the program's symbols.
            memory: the memory of the surrounding graph.
            scratch: the memory for the block's intermediate values.
            lent: for each input of the block, the memory that the input lies in, or
                None.
        """
        pairs = zip(self._graph.inputs, lent, strict=True)
        self._lent = {value: array for value, array in pairs if array is not None}
        self._sizes, self._is_stale = sizes, True
        self._memory = GraphMemory(
            scratch=scratch,
            constant=memory.constant,
            workspace=memory.workspace,
            callers=self._lent,
        )

    def frame(self) -> Frame:
        """Return the block's frame, bound to the sizes and memory from `settle`."""
        if self._frame is None or self._is_stale:
            self._frame = self._bound_anew(self._frame)
            self._is_stale = False
        return self._frame

    def run(self) -> Sequence[Array]:
        """Run the block once; return its outputs as arrays in the block's memory."""
        frame = self.frame()
        frame.run_within()
        return frame.outputs

    def _bound_anew(self, old: Frame | None) -> Frame:
        where = {value: place_of(array) for value, array in self._lent.items()}
        moved, self._bound = where != self._bound, where
        if old is not None:
            return old.rebind(self._sizes, self._lent if moved else None)
        assert self._memory is not None, "settle() runs before the block"
        return self._bind(self._graph, self._sizes, self._memory)
