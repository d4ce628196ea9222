"""Check a method's blocks: inputs, outputs and writes.

In: a method whose main graph has been checked, and the operands of each instruction.
Out: nothing, or `BadProgram`. Each block is checked like any graph. This module adds
the checks of a block against the single instruction that runs the block: types, the
operands whose memory the block's inputs share (lent memory), the writes of the block to
lent memory, and the block's scratch memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvc.schema.control import Control, read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import Alias, Caller, Graph, Instruction, Ref, Scratch, StateSlot
from kvc.schema.model import Block, Method, State, StateKind
from kvc.schema.ops import CONTROL_OPS, OPS, RESHAPING_VIEWS, Aliasing
from kvc.schema.types import TensorType
from kvc.schema.verify.graphs import GraphChecker, Operands
from kvc.schema.verify.limits import MAX_BLOCKS, MAX_DEPTH, Reporter, place
from kvc.schema.verify.methods import check_verdicts
from kvc.schema.verify.values import Surroundings

_APPEND: Final = "kvc::append"


def check_blocks(
    method: Method,
    checker: GraphChecker,
    around: Surroundings,
    thorough: bool,
) -> list[Operands]:
    """Check the blocks of a method whose main graph has been checked.

    Returns:
        For each block, the operands of each of its instructions.

    Raises:
        BadProgram, LimitExceeded: a block is wrong.
    """
    report, blocks = checker.report, method.blocks
    report.limit(f"{around.where}: the number of blocks", len(blocks), MAX_BLOCKS)
    operands: list[Operands] = []
    for number, block in enumerate(blocks):
        where = f"{around.where}, block {number}"
        inside = Surroundings(where, around.constants, (), around.sizes)
        reads, found = checker.check_block(block.graph, inside, thorough)
        operands.append(reads)
        check_verdicts(block.updates, block.graph, found, where, report)
    _Borders(method, around, report).check()
    return operands


class _Borders:
    """Checks of a method's blocks against the control instructions that run them."""

    def __init__(self, method: Method, around: Surroundings, report: Reporter) -> None:
        self._method, self._report = method, report
        self._states: Sequence[State] = around.states
        self._where = around.where
        self._taken: set[int] = set()
        self._growth: list[
            dict[int, set[int]]
        ] = []  # per block: input -> axes along which it grows
        self._depths: list[int] = []  # per block: the depth of nested blocks

    def check(self) -> None:
        """Check the control instructions of all blocks, the last block first.

        A block has a greater index than the block whose instruction runs it. The
        control instructions of the method's main graph are checked last.
        """
        count = len(self._method.blocks)
        self._growth = [{} for _ in range(count)]
        self._depths = [1] * count
        for number in reversed(range(count)):
            graph = self._method.blocks[number].graph
            grown = self._check_graph(graph, number, f"{self._where}, block {number}")
            places = {value: i for i, value in enumerate(graph.inputs)}
            self._growth[number] = {places[v]: axes for v, axes in grown.items()}
        self._check_states(self._check_graph(self._method.graph, -1, self._where))
        lost = set(range(count)) - self._taken
        what = f"no instruction runs block {min(lost, default=0)}"
        self._report.require(not lost, self._where, what)

    def _check_graph(
        self, graph: Graph, number: int, where: str
    ) -> dict[int, set[int]]:
        """Check the control instructions of a graph.

        Args:
            graph: the graph.
            number: the block that has the graph; -1 for the main graph.
            where: the graph's name in messages.

        Returns:
            For each value that owns memory that grows, the axes along which it grows.
        """
        grown: dict[int, set[int]] = {}
        for index, step in enumerate(graph.instructions):
            if step.op in CONTROL_OPS:
                at = place(where, index, step)
                control = read_control(step.op, step.arguments)
                self._take(control, number, at)
                self._check_step(graph, step, control, at)
                # Readers of blocks are recursive.
                depth = max(
                    (self._depths[block] for block in control.blocks), default=0
                )
                self._report.limit(f"{at}: the depth of blocks", depth, MAX_DEPTH)
                if number >= 0:
                    self._depths[number] = max(self._depths[number], depth + 1)
            if step.op in CONTROL_OPS or step.op == _APPEND:
                for root, axis in self._axes_of(graph, step):
                    grown.setdefault(root, set()).add(axis)
        for root, axes in grown.items():
            fits = len(axes) == 1 and not isinstance(
                graph.values[root].storage, Scratch
            )
            what = f"memory of value {root} grows along {sorted(axes)}"
            self._report.require(fits, where, what)
        return grown

    def _axes_of(self, graph: Graph, step: Instruction) -> Iterator[tuple[int, int]]:
        """Yield (value, axis) for each memory that an instruction lengthens.

        The value is the one that owns the memory.
        """
        if step.op == _APPEND:
            axis = step.arguments[2]
            assert isinstance(axis, int)
            rank = len(graph.values[step.results[0]].type.dims)
            yield graph.root_of(step.results[0]), axis % rank
        else:
            control = read_control(step.op, step.arguments)
            for block in control.blocks:
                for operand, axes in self._growth[block].items():
                    value = control.operands[operand]
                    assert isinstance(value, Ref)
                    yield from ((graph.root_of(value.value), axis) for axis in axes)

    def _check_states(self, grown: dict[int, set[int]]) -> None:
        """Check that each memory that grows may grow.

        Only states of kind APPEND and callers' arrays may grow.
        """
        for root, axes in grown.items():
            storage = self._method.graph.values[root].storage
            if isinstance(storage, StateSlot):
                state = self._states[storage.state]
                fits = state.kind is StateKind.APPEND and axes == {state.axis}
                what = f"state {state.name!r} does not grow along {sorted(axes)}"
                self._report.require(fits, self._where, what)

    def _take(self, control: Control[object], number: int, at: str) -> None:
        for block in control.blocks:
            known = 0 <= block < len(self._method.blocks)
            self._report.require(known, at, f"there is no block {block}")
            self._report.require(block > number, at, f"block {block} comes before it")
            free = block not in self._taken
            self._report.require(free, at, f"block {block} is run elsewhere too")
            self._taken.add(block)

    def _check_step(
        self, graph: Graph, step: Instruction, control: Control[object], at: str
    ) -> None:
        results = len(step.results) - control.workspaces
        require = self._report.require
        require(results == len(control.over), at, f"it says where {control.over} lie")
        count, scanned = len(control.operands), control.carried + control.scanned
        fits = 0 <= control.carried <= scanned <= count
        require(fits and control.scanned >= 0, at, f"{scanned} of {count} operands")
        _Step(graph, step, control, at, self._report).check(self._method.blocks)


class _Step:
    """Checks of one control instruction against the blocks that it runs."""

    def __init__(
        self,
        graph: Graph,
        step: Instruction,
        control: Control[object],
        at: str,
        report: Reporter,
    ) -> None:
        self._graph, self._control = graph, control
        self._at, self._report = at, report
        self._results = step.results
        self._passed = [ref.value for ref in control.operands if isinstance(ref, Ref)]

    def check(self, blocks: Sequence[Block]) -> None:
        chosen = [blocks[number].graph for number in self._control.blocks]
        pred = self._control.pred
        if isinstance(pred, Ref):
            self._check_answer(self._type(pred.value))
        self._check_over()
        if self._control.workspaces:
            self._check_workspace(max(graph.scratch_nbytes for graph in chosen))
        for which, inside in enumerate(chosen):
            self._check_types(which, inside)
            # Inputs lie in operands, and operands' slices in scratch.
            for i, value in enumerate(inside.inputs):
                own = isinstance(inside.values[value].storage, Scratch)
                fits = own == self._control.is_scanned(i)
                self._require(fits, f"input {i} of a block lies in the wrong memory")
            self._check_written(which, inside)

    def _require(self, condition: bool, what: str) -> None:
        self._report.require(condition, self._at, what)

    def _type(self, value: int) -> TensorType:
        return self._graph.values[value].type

    def _check_answer(self, kind: TensorType) -> None:
        fits = kind.dtype is DType.BOOL and all(size == 1 for size in kind.dims)
        self._require(fits, f"it asks {kind}, which is not one bool")

    def _check_over(self) -> None:
        """Check which results share operands' memory, and the lengths of a scan."""
        control, given = self._control, self._results[: len(self._control.over)]
        count = len(self._passed)
        known = all(over is None or 0 <= over < count for over in control.over)
        self._require(known, f"results over {control.over} of {count} operands")
        if control.is_loop:
            carried = control.carried
            fits = len(control.over) >= carried and all(
                over is None or (over == i and i < carried)
                for i, over in enumerate(control.over)
            )
            self._require(fits, f"results over {control.over} in a loop")
            kinds = [self._type(value) for value in given[:carried]]
            same = kinds == [self._type(v) for v in self._passed[:carried]]
            self._require(same, "a carried value changes its type")
        # All scanned operands and stacked results have one length.
        control = self._control
        if not control.is_loop or control.op == "kvc::while":
            what = "a while has more results than carried values"
            self._require(not control.is_loop or len(given) == control.carried, what)
            return
        through = self._passed[control.carried : control.carried + control.scanned]
        kinds = [self._type(value) for value in (*through, *given[control.carried :])]
        self._require(bool(through), "a scan goes through nothing")
        self._require(all(kind.dims for kind in kinds), "a scan of a single number")
        lengths = {kind.dims[0] for kind in kinds}
        self._require(len(lengths) == 1, "a scan goes through different lengths")

    def _check_workspace(self, nbytes: int) -> None:
        kind, storage = (
            self._type(self._results[-1]),
            self._graph.values[self._results[-1]].storage,
        )
        fits = kind.dtype is DType.UINT8 and len(kind.dims) == 1 and kind.is_static
        fits = fits and isinstance(storage, Scratch) and storage.nbytes >= nbytes
        self._require(fits, f"its blocks need {nbytes} bytes of scratch memory")

    def _check_types(self, which: int, inside: Graph) -> None:
        control = self._control
        taken = [inside.values[value].type for value in inside.inputs]
        passed = control.input_types([self._type(value) for value in self._passed])
        if taken != list(passed):
            self._report.fail(self._at, f"block {which} takes {taken}")
        given = [inside.values[value].type for value in inside.outputs]
        own = self._results[: len(control.over)]
        wanted = control.output_types(which, [], [self._type(value) for value in own])
        if len(given) != len(wanted):
            self._report.fail(self._at, f"block {which} gives {given}")
        for kind, one in zip(given, wanted, strict=True):
            if one is None:
                self._check_answer(kind)
            elif kind != one:
                self._report.fail(self._at, f"block {which} gives {kind}, not {one}")

    def _check_written(self, which: int, inside: Graph) -> None:
        """Check that a block writes only to inputs that it may overwrite.

        Outputs that must lie in the memory of an input must cover it.
        """
        control = self._control
        if control.tests(which):
            places: dict[int, int] = {}
        elif control.is_loop:
            places = {i: i for i in range(control.carried)}
        else:
            places = {i: k for i, k in enumerate(control.over) if k is not None}
        allowed = {inside.inputs[k] for k in places.values()}
        strange = written_inputs(inside) - allowed
        self._require(not strange, "a block writes to an input that it may only read")
        makers = {v: step.op for step in inside.instructions for v in step.results}
        for output, operand in places.items():
            value, home = inside.outputs[output], inside.inputs[operand]
            at_home = _is_whole(inside, value, makers) and inside.root_of(value) == home
            self._require(at_home, f"output {output} of a block lies elsewhere")


def written_inputs(graph: Graph) -> set[int]:
    """Return the inputs of a block whose memory the block writes."""
    roots = graph.roots()
    return {
        root
        for step in graph.instructions
        if OPS[step.op].aliasing is not Aliasing.VIEW
        for value in step.results
        if isinstance(graph.values[value].storage, Alias)
        and isinstance(graph.values[root := roots[value]].storage, Caller)
    }


def _is_whole(graph: Graph, value: int, makers: Mapping[int, str]) -> bool:
    """Tell whether a value covers all of its memory, in memory order.

    Args:
        graph: the graph of a block.
        value: a value of the graph.
        makers: for each value, the operator that defines it; inputs and constants have
            none.
    """
    while isinstance(storage := graph.values[value].storage, Alias):
        op = makers[value]
        if OPS[op].aliasing is Aliasing.VIEW and op not in RESHAPING_VIEWS:
            return False
        value = storage.base
    return True
