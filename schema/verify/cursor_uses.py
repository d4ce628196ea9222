"""Check how a method uses states with cursors, and the fields of cursors.

In: a method whose graph and blocks have been checked. Out: the widest window of queries
over each ring, or `BadProgram`. A value is known to be a position, or another field of
a cursor, in three cases: its storage is a `CursorSlot`; it is an input of a block and
shares the memory of such a value; or `kvc::after` computes it from the start of a call
or iteration. The result of any other arithmetic is an unknown position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from kvc.schema.control import Control, read_control
from kvc.schema.graph import Alias, CursorSlot, Graph, Instruction, Ref, StateSlot
from kvc.schema.model import Method, Program
from kvc.schema.ops import (
    AFTER,
    COND,
    CONTROL_OPS,
    DELEGATE,
    OPS,
    PERMUTING,
    Aliasing,
)
from kvc.schema.types import Dim
from kvc.schema.verify.cursor_accesses import (
    MODES,
    CursorAccesses,
    Filled,
    HeldState,
    filled_after,
)
from kvc.schema.verify.graphs import Operands
from kvc.schema.verify.limits import Reporter, place
from kvc.schema.verify.loop_ends import LoopEnds, Way
from kvc.schema.verify.starts import (
    After,
    Fields,
    copied,
    first_operand,
    placed,
)

_SWAPPING: Final = PERMUTING | {"aten::alias"}


class CursorUses:
    """Checks of one method's uses of states with cursors, including its blocks."""

    def __init__(
        self,
        method: Method,
        operands: Sequence[Operands],
        program: Program,
        widest: dict[int, int],
        report: Reporter,
    ) -> None:
        self._method, self._program, self._report = method, program, report
        self._operands = operands
        self._widest = widest
        self._ends = LoopEnds(method, program, report)
        self._accesses = CursorAccesses(method, program, widest, self._ends, report)
        self._where = f"method {method.name!r}"

    def check(self) -> None:
        """Check the method's main graph, and all blocks that it runs."""
        graph, states = self._method.graph, self._program.states
        held: dict[int, HeldState] = {}
        fields: dict[int, CursorSlot | After] = {}
        for i, value in enumerate(graph.values):
            storage = value.storage
            if isinstance(storage, CursorSlot):
                fields[i] = storage
            elif isinstance(storage, StateSlot):
                state = states[storage.state]
                if state.cursor is not None and state.kind in MODES:
                    order = tuple(range(len(value.type.dims)))
                    start = Filled(frozenset([After(state.cursor, 0)]))
                    held[i] = HeldState(storage.state, order, start)
        made = self._check_graph(graph, self._operands[0], held, fields)
        ends = self._ends.finish(made)
        for number, filled in self._accesses.filled.items():
            state = states[number]
            if state.window is not None and state.cursor is not None:
                what = f"it does not fill the ring {state.name!r} up to where it ends"
                self._report.require(
                    ends[state.cursor] in filled.ends, self._where, what
                )
        given = [held[v].state for v in graph.outputs if v in held]
        handed = sorted(self._widest.keys() & set(given))
        what = f"it hands the rings {handed} with a window out"
        self._report.require(not handed, self._where, what)

    def _check_graph(
        self, graph: Graph, operands: Operands, held: dict[int, HeldState], lent: Fields
    ) -> Fields:
        """Check a graph, and record which of its values contain states.

        Args:
            graph: the graph.
            operands: the operands of each instruction.
            held: the values that contain states; values of the graph are added.
            lent: the position or cursor field that each input of the graph is.

        Returns:
            For each value that is a cursor field or a known position, which one it is.
        """
        fields, roots = dict(lent), graph.roots()
        for index, (step, reads) in enumerate(
            zip(graph.instructions, operands, strict=True)
        ):
            source = copied(step)
            if source in fields and (start := placed(Ref(source), fields)):
                fields[step.results[0]] = start
            plain = step.op not in CONTROL_OPS and step.op != AFTER
            unused = plain and held.keys().isdisjoint(reads)
            if unused and not _written_over(graph, roots, step, held):
                continue
            used = [value for value in reads if value in held]
            at = place(self._where, index, step)
            if step.op in CONTROL_OPS:
                self._check_control(graph, step, held, fields, at)
            elif step.op == AFTER:
                fields[step.results[0]] = self._after(step, fields, at)
            elif OPS[step.op].aliasing is Aliasing.VIEW:
                self._follow_view(step, held, used[0], at)
            elif step.op == "kvc::cache_update" and first_operand(step) in held:
                self._accesses.write(graph, step, held, used, fields, at)
            else:
                self._accesses.read(graph, roots, step, held, used, fields, at)
        return fields

    def _after(self, step: Instruction, fields: Fields, at: str) -> After:
        """Return the position that a `kvc::after` instruction computes."""
        start, count = placed(step.arguments[0], fields), step.arguments[1]
        self._report.require(
            start is not None, at, "its first operand is not a cursor's start"
        )
        assert start is not None
        return start.further(cast("Dim", count))

    def _check_control(
        self,
        graph: Graph,
        step: Instruction,
        held: dict[int, HeldState],
        fields: dict[int, CursorSlot | After],
        at: str,
    ) -> None:
        control = read_control(step.op, step.arguments)
        passed = [cast(Ref, operand).value for operand in control.operands]
        fixed = passed[control.carried :] if control.is_loop else []
        rings = [held[v].state for v in fixed if v in held]
        self._accesses.refuse_windows(rings, f"{step.op} of", at)
        gone = [self._check_block(step, n, held, fields) for n in control.blocks]
        ways = [way for way, _ in gone]
        if control.is_loop:
            self._ends.all_turns(graph, step, control, ways[-1][1], fields, at)
            gone = gone[-1:]
        elif step.op == COND:
            self._ends.all_branches(step, ways, fields)
        else:
            outputs, made, _ = ways[0]
            for out, result in zip(outputs, step.results, strict=True):
                if out in made:
                    fields[result] = made[out]
        self._follow_results(step, control, held, gone, fields, at)

    def _check_block(
        self,
        step: Instruction,
        number: int,
        held: Mapping[int, HeldState],
        fields: Fields,
    ) -> tuple[Way, Mapping[int, HeldState]]:
        """Check a block that an instruction runs.

        Args:
            step: the instruction that runs the block.
            number: id of the block.
            held: the values outside of the block that contain states.
            fields: the position or cursor field that each value outside of the block
                is.

        Returns:
            The block's outputs, positions and accesses; and the values in the block
            that contain states.
        """
        control = read_control(step.op, step.arguments)
        inside = self._method.blocks[number].graph
        passed = [cast(Ref, operand).value for operand in control.operands]
        pairs = list(zip(passed, inside.inputs, strict=True))
        same = pairs[control.fixed :]
        known = {own: fields[v] for v, own in same if v in fields}
        lent = {own: held[v] for v, own in pairs if v in held}
        if control.is_loop:
            starts = dict[int, After]()
            if number == control.blocks[-1]:
                starts = self._ends.turns(control, inside, fields)
            known |= starts
            for own, one in lent.items():
                filled = one.filled.in_turn(control, inside, starts, fields)
                lent[own] = replace(one, filled=filled)
        with self._ends.within(step.op == COND) as ends:
            made = self._check_graph(inside, self._operands[number + 1], lent, known)
        return (inside.outputs, made, ends), lent

    def _follow_results(
        self,
        step: Instruction,
        control: Control[object],
        held: dict[int, HeldState],
        gone: Sequence[tuple[Way, Mapping[int, HeldState]]],
        fields: Fields,
        at: str,
    ) -> None:
        """Record which results of a control instruction contain states, and how filled.

        Args:
            step: the instruction.
            control: its decoded arguments.
            held: the values outside of the blocks that contain states; results are
                added.
            gone: for each block, except the condition of a loop, what `_check_block`
                returned.
            fields: the position or cursor field that each value outside of the blocks
                is.
            at: the instruction's location, for messages.
        """
        for i, over in enumerate(control.over):
            made = [lent.get(outputs[i]) for (outputs, *_), lent in gone]
            if over is None:
                copied_out = [one.state for one in made if one is not None]
                self._accesses.refuse_windows(copied_out, "a copy of", at)
                continue
            result, operand = step.results[i], cast(Ref, control.operands[over]).value
            if operand not in held:
                continue
            base = held[operand]
            if step.op == DELEGATE:
                held[result] = made[0] or base
                continue
            known = [one for one in made if one is not None and one.order == base.order]
            filled = Filled(frozenset())
            if len(known) == len(made):
                ways = [
                    (outputs, values, one.filled)
                    for ((outputs, values, _), _), one in zip(gone, known, strict=True)
                ]
                filled = filled_after(step.results, ways, fields, control.is_loop)
            what = f"{step.op} leaves holes in the ring {base.state} with a window"
            window = self._program.states[base.state].window
            self._report.require(window is None or bool(filled.ends), at, what)
            held[result] = replace(base, filled=filled)
            self._accesses.filled[base.state] = filled

    def _follow_view(
        self, step: Instruction, held: dict[int, HeldState], base: int, at: str
    ) -> None:
        one = held[base]
        order = None
        if step.op in _SWAPPING and one.order is not None:
            order = tuple(one.order[a] for a in _axes(step, len(one.order)))
        if order is None:
            self._accesses.refuse_windows([one.state], f"{step.op} of", at)
        made = HeldState(one.state, order, one.filled)
        held.update(dict.fromkeys(step.results, made))


def _written_over(
    graph: Graph, roots: Sequence[int], step: Instruction, held: Mapping[int, HeldState]
) -> bool:
    """Tell whether a result of an instruction overwrites the memory of a state."""
    for value in step.results:
        if type(graph.values[value].storage) is Alias and roots[value] in held:
            return True
    return False


def _axes(step: Instruction, rank: int) -> tuple[int, ...]:
    """Return, for each axis of a permuting view, the axis of the view's operand."""
    if step.op == "aten::permute":
        return tuple(axis % rank for axis in cast("tuple[int, ...]", step.arguments[1]))
    axes = list(range(rank))
    if step.op == "aten::transpose.int":
        a, b = (cast(int, axis) % rank for axis in step.arguments[1:])
        axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)
