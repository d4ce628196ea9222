"""Is the input of counts what its method takes it for, and do all writes go by it?

In: a method of a checked program. Out: nothing, or the first thing that is impossible.
What a session does for each row rests on this: a state that is written at the position
is written up to what counts, by every write, so that all behind it is as it was.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvc.schema.control import read_control
from kvc.schema.counts import may_be_counts, says_the_same
from kvc.schema.dtypes import DType
from kvc.schema.feeds import Feed, feed_of, position_input
from kvc.schema.model import (
    Alias,
    Graph,
    Instruction,
    Method,
    PositionKind,
    Program,
    Ref,
    State,
    StateKind,
    StateSlot,
)
from kvc.schema.ops import CONTROL_OPS
from kvc.schema.types import Dim
from kvc.schema.verify.faults import Reporter

_CACHE_UPDATE = "kvc::cache_update"
_AXIS, _COUNTS = 3, 5  # places among the arguments of a cache update
_MODES: Final = {StateKind.LINEAR: "linear", StateKind.RING: "circular"}


def check_counts(method: Method, program: Program, report: Reporter) -> None:
    """Check the input of a method that says how many tokens count.

    Raises:
        BadProgram: it is none, or states are written as if there were another one.
    """
    where = f"method {method.name!r}"
    if method.counts is not None:
        _check_input(method, method.counts, program, where, report)
    placed = {i for i, state in enumerate(program.states) if state.at_position}
    written = placed & set(method.writes)
    for state in sorted(written) if method.counts is not None else ():
        grows = program.states[state].kind is StateKind.APPEND
        what = f"the rows of state {state}, which is written at the position"
        report.require(not grows, where, f"{what}, have one length")
    if written:
        _Writes(method, written, program.states, where, report).check()


def counted_values(method: Method) -> set[int]:
    """Return the values of a method's own graph that say how many tokens count."""
    graph = method.graph
    if method.counts is None or method.counts >= len(graph.inputs):
        return set()
    known = {graph.inputs[method.counts]}
    for step in graph.instructions:
        if _is_followed(step, graph, known):
            known.add(step.results[0])
    return known


def _check_input(
    method: Method, index: int, program: Program, where: str, report: Reporter
) -> None:
    inputs, rows = method.graph.inputs, position_rows(method, program)
    report.require(index < len(inputs), where, f"no input {index} to count by")
    kind = method.graph.values[inputs[index]].type
    name = method.input_names[index]
    what = f"it counts by {name!r}, {kind}"
    report.require(may_be_counts(kind), where, f"{what}, not int64 or bool of rows")
    report.require(method.advance is not None, where, f"{what}, but does not advance")
    single = kind.dtype is not DType.BOOL or method.advance == 1
    report.require(single, where, f"{what}, but advances by {method.advance}")
    found = "nothing" if rows is None else f"[{', '.join(map(str, rows))}]"
    agree = rows == kind.dims
    report.require(agree, where, f"{what}, but its position is of {found}")


def position_rows(method: Method, program: Program) -> tuple[Dim, ...] | None:
    """Return the dims of a method's position where rows have their own, else None."""
    position = program.position
    if position is None:
        return None
    if position.kind is PositionKind.STATE and position.state is not None:
        return program.states[position.state].type.dims
    index = position_input(method, position)
    if index is None:
        return None
    dims = method.graph.values[method.graph.inputs[index]].type.dims
    feed = feed_of(method, position, program.states)
    return None if feed is Feed.PLACES else dims


class _Writes:
    """The writes of a method at the position, in its blocks too."""

    def __init__(
        self,
        method: Method,
        written: set[int],
        states: Sequence[State],
        where: str,
        report: Reporter,
    ) -> None:
        self._method, self._written, self._states = method, written, states
        self._where, self._report = where, report

    def check(self) -> None:
        """Check that each counts by the method's input, or none does."""
        graph, index = self._method.graph, self._method.counts
        known = set() if index is None else {graph.inputs[index]}
        states = {
            value: storage.state
            for value, declared in enumerate(graph.values)
            if isinstance(storage := declared.storage, StateSlot)
            and storage.state in self._written
        }
        self._check_graph(graph, known, states)

    def _check_graph(
        self, graph: Graph, known: set[int], states: Mapping[int, int]
    ) -> None:
        """Check a graph; `known` are its counts, `states` what holds a state."""
        for step in graph.instructions:
            if step.op == _CACHE_UPDATE:
                self._check_update(step, graph, known, states)
            elif step.op in CONTROL_OPS:
                self._check_blocks(step, graph, known, states)
            elif _is_followed(step, graph, known):
                known.add(step.results[0])

    def _check_update(
        self,
        step: Instruction,
        graph: Graph,
        known: set[int],
        states: Mapping[int, int],
    ) -> None:
        result, operand = step.results[0], step.arguments[_COUNTS]
        state = states.get(graph.root_of(result))
        if state is None or not isinstance(graph.values[result].storage, Alias):
            return
        by_input = isinstance(operand, Ref) and operand.value in known
        asked = self._method.counts is not None
        agree = by_input if asked else operand is None
        expected = "the method's counts" if asked else "no counts"
        what = f"it writes state {state} at the position, but not with {expected}"
        self._report.require(agree, self._where, what)
        self._check_slots(step, state, len(graph.values[result].type.dims))

    def _check_slots(self, step: Instruction, state: int, rank: int) -> None:
        """Check that an update goes along the slots that a session puts back."""
        declared = self._states[state]
        axis, mode = step.arguments[_AXIS : _AXIS + 2]
        along = isinstance(axis, int) and axis % rank == declared.axis
        along = along and mode == _MODES.get(declared.kind)
        what = f"it writes state {state} along axis {axis}, {mode}, which is declared "
        what += f"{declared.kind.name} along {declared.axis}"
        self._report.require(along, self._where, what)

    def _check_blocks(
        self,
        step: Instruction,
        graph: Graph,
        known: set[int],
        states: Mapping[int, int],
    ) -> None:
        control = read_control(step.op, step.arguments)
        for number in control.blocks:
            inside = self._method.blocks[number].graph
            lent: set[int] = set()
            held: dict[int, int] = {}
            for i, (operand, value) in enumerate(
                zip(control.operands, inside.inputs, strict=True)
            ):
                assert isinstance(operand, Ref)
                if operand.value in known and i >= control.fixed:
                    lent.add(value)
                if graph.root_of(operand.value) in states:
                    held[value] = states[graph.root_of(operand.value)]
            self._check_graph(inside, lent, held)


def _is_followed(step: Instruction, graph: Graph, known: set[int]) -> bool:
    """Tell whether an instruction makes counts of counts, equal in each row."""
    operand = step.arguments[0] if step.arguments else None
    if not isinstance(operand, Ref) or operand.value not in known or not step.results:
        return False
    before, after = (graph.values[i].type for i in (operand.value, step.results[0]))
    return says_the_same(step.op, before, after)
