"""Check how a method's code uses states at cursors, and fields of cursors.

In: a method whose graph and blocks have been checked. Out: how far queries look back
over each ring, or `BadProgram`. Operands are compared with the storages of values: a
`CursorSlot`, what a block is lent of one, or so many positions after a start, which is
what `kvc::after` makes. No other arithmetic is followed here.
"""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from kvc.schema.control import Control, read_control
from kvc.schema.frozen import frozen
from kvc.schema.model import (
    Alias,
    Argument,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Method,
    Program,
    Ref,
    State,
    StateKind,
    StateSlot,
)
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
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.graphs import Operands
from kvc.schema.verify.instruction_names import place
from kvc.schema.verify.loop_ends import LoopEnds, Way
from kvc.schema.verify.starts import (
    After,
    Fields,
    copied,
    first_operand,
    is_field,
    placed,
)

_UPDATE: Final = "kvc::cache_update"
_ATTENTION: Final = "kvc::attention"
_CACHES: Final = ("k", "v", "k_scale", "v_scale")  # their slots lie along axis 2
_MODES: Final = {StateKind.LINEAR: "linear", StateKind.RING: "circular"}
_SWAPPING: Final = PERMUTING | {"aten::alias"}


@frozen
class _Held:
    """A value that is a state at a cursor.

    Attributes:
        state: its id.
        order: which axis of the state each of its axes is; None for other views.
        written: whether it holds what the call writes.
    """

    state: int
    order: tuple[int, ...] | None
    written: bool


class CursorUses:
    """What one method does with states at cursors, in its blocks too."""

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
        self._where = f"method {method.name!r}"

    def check(self) -> None:
        """Check the method's own graph, and from there on all blocks."""
        graph, states = self._method.graph, self._program.states
        held: dict[int, _Held] = {}
        fields: dict[int, CursorSlot | After] = {}
        for i, value in enumerate(graph.values):
            storage = value.storage
            if isinstance(storage, CursorSlot):
                fields[i] = storage
            elif isinstance(storage, StateSlot):
                state = states[storage.state]
                if state.cursor is not None and state.kind in _MODES:
                    order = tuple(range(len(value.type.dims)))
                    held[i] = _Held(storage.state, order, written=False)
        made = self._check_graph(graph, self._operands[0], held, fields)
        self._ends.finish(made)
        given = [held[v].state for v in graph.outputs if v in held]
        handed = sorted(self._widest.keys() & set(given))
        what = f"it hands the rings {handed} with a window out"
        self._require(not handed, self._where, what)

    def _check_graph(
        self, graph: Graph, operands: Operands, held: dict[int, _Held], lent: Fields
    ) -> Fields:
        """Check a graph, and note which of its values are states; fields are `lent`.

        Returns:
            All values that are fields of cursors, or after a start.
        """
        fields = dict(lent)
        for index, (step, reads) in enumerate(
            zip(graph.instructions, operands, strict=True)
        ):
            source = copied(step)
            if source in fields and (start := placed(Ref(source), fields)):
                fields[step.results[0]] = start
            plain = step.op not in CONTROL_OPS and step.op != AFTER
            unused = plain and held.keys().isdisjoint(reads)
            if unused and not _written_over(graph, step, held):
                continue
            used = [value for value in reads if value in held]
            at = place(self._where, index, step)
            if step.op in CONTROL_OPS:
                self._check_control(graph, step, held, fields, at)
            elif step.op == AFTER:
                fields[step.results[0]] = self._after(step, fields, at)
            elif OPS[step.op].aliasing is Aliasing.VIEW:
                self._follow_view(step, held, used[0], at)
            elif step.op == _UPDATE and first_operand(step) in held:
                self._write(graph, step, held, used, fields, at)
            else:
                self._read(graph, step, held, used, fields, at)
        return fields

    def _after(self, step: Instruction, fields: Fields, at: str) -> After:
        """Return what `kvc::after` makes of a start, or of what is after one."""
        start, count = placed(step.arguments[0], fields), step.arguments[1]
        self._require(start is not None, at, "after what is no start of a cursor")
        assert start is not None
        return start.further(cast("Dim", count))

    def _check_control(
        self,
        graph: Graph,
        step: Instruction,
        held: dict[int, _Held],
        fields: dict[int, CursorSlot | After],
        at: str,
    ) -> None:
        control = read_control(step.op, step.arguments)
        passed = [cast(Ref, operand).value for operand in control.operands]
        rings = [held[v].state for v in passed if v in held]
        if step.op != DELEGATE:
            self._refuse_windows(rings, f"{step.op} of", at)
        branches = list[Way]()
        for number in control.blocks:
            inside = self._method.blocks[number].graph
            pairs = list(zip(passed, inside.inputs, strict=True))
            lent = {own: held[v] for v, own in pairs if v in held}
            known = {
                own: fields[v]
                for i, (v, own) in enumerate(pairs)
                if v in fields and i >= control.fixed
            }
            turns = control.is_loop and number == control.blocks[-1]
            if turns:
                known |= self._ends.turns(control, inside, fields)
            with self._ends.within(step.op == COND) as ends:
                own = self._operands[number + 1]
                made = self._check_graph(inside, own, lent, known)
            branches.append((inside.outputs, made, ends))
            if turns:
                self._ends.all_turns(graph, step, control, made, fields, at)
            for out, result in zip(inside.outputs, step.results, strict=False):
                if step.op == DELEGATE and out in made:
                    fields[result] = made[out]
            self._follow_results(graph, step, control, held, inside, lent)
        if step.op == COND:
            self._ends.all_branches(step, branches, fields)

    def _follow_results(
        self,
        graph: Graph,
        step: Instruction,
        control: Control[object],
        held: dict[int, _Held],
        inside: Graph,
        lent: Mapping[int, _Held],
    ) -> None:
        """Note which results of a control instruction are states."""
        for i, over in enumerate(control.over):
            if over is None:
                if step.op == DELEGATE and inside.outputs[i] in lent:
                    state = lent[inside.outputs[i]].state
                    self._refuse_windows([state], "a copy of", self._where)
                continue
            result, operand = step.results[i], cast(Ref, control.operands[over]).value
            if operand in held:
                made = lent.get(inside.outputs[i]) if step.op == DELEGATE else None
                held[result] = made or held[operand]

    def _follow_view(
        self, step: Instruction, held: dict[int, _Held], base: int, at: str
    ) -> None:
        one = held[base]
        order = None
        if step.op in _SWAPPING and one.order is not None:
            order = tuple(one.order[a] for a in _axes(step, len(one.order)))
        if order is None:
            self._refuse_windows([one.state], f"{step.op} of", at)
        made = _Held(one.state, order, one.written)
        held.update(dict.fromkeys(step.results, made))

    def _write(
        self,
        graph: Graph,
        step: Instruction,
        held: dict[int, _Held],
        used: list[int],
        fields: Fields,
        at: str,
    ) -> None:
        """Check that an update begins at the cursor and is as long as its advance."""
        arguments, result = _by_name(step), step.results[0]
        one = held[first_operand(step)]
        self._refuse_windows([held[v].state for v in used[1:]], "a write of", at)
        if not isinstance(graph.values[result].storage, Alias):
            self._refuse_windows([one.state], "a copy of", at)
            return
        state = self._program.states[one.state]
        assert state.cursor is not None
        update = graph.values[cast(Ref, arguments["update"]).value].type
        axis = cast(int, arguments["axis"]) % len(update.dims)
        whole = one.order == tuple(range(len(update.dims)))
        along = axis == state.axis and arguments["mode"] == _MODES[state.kind]
        if not (whole and along):
            found = f"axis {axis}, {arguments['mode']}"
            kind = f"{state.kind.name} along {state.axis}"
            what = f"it writes the state {state.name!r}, {kind}, along {found}"
            self._report.fail(at, what)
        self._check_kept(arguments, state, at)
        start = placed(arguments["write_indices"], fields)
        begins = start is not None and start.cursor == state.cursor
        what = f"the state {state.name!r} is not written at its cursor"
        self._require(begins, at, what)
        assert start is not None
        self._check_extent(start, update.dims[axis], state, at)
        self._check_lengths(arguments, fields, state, at)
        rows = self._program.cursors[state.cursor].rows
        fits = rows is None or state.type.dims[0] == rows
        what = f"the rows of {state.name!r} are not those of its cursor"
        self._require(fits or state.window is None, at, what)
        held[result] = _Held(one.state, one.order, written=True)

    def _check_extent(self, start: After, count: Dim, state: State, at: str) -> None:
        """Check that a write is of what the call, or a turn of a loop, adds.

        It is of all where rows have lengths, or the state is a ring with a window.
        """
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        if advance is None:
            self._report.fail(at, f"a write of {count} positions, the call adds None")
        if start == After(start.cursor, 0) and count == advance.tokens:
            return
        begins = f", {start.offset} after the start" if start.offset != 0 else ""
        what = f"a write of {count} positions{begins}"
        whole = state.window is not None or advance.lengths is not None
        self._require(not whole, at, f"{what}, the call adds {advance.tokens}")
        self._ends.check(start.further(count), what, at)

    def _check_kept(
        self, arguments: Mapping[str, Argument], state: State, at: str
    ) -> None:
        """Check that an operator keeps as many first positions as the window has."""
        window, keep = state.window, arguments["keep"]
        what = f"it keeps {keep} positions of {state.name!r}, whose window is {window}"
        self._require(window is None or keep == window.keep, at, what)

    def _check_lengths(
        self,
        arguments: Mapping[str, Argument],
        fields: Fields,
        state: State,
        at: str,
    ) -> None:
        """Check that an operator counts tokens as the method does."""
        lengths = arguments["row_lengths"]
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        if advance is None or advance.lengths is None:
            self._require(lengths is None, at, "it counts tokens, the method does not")
            return
        same = is_field(lengths, fields, state, CursorField.LENGTHS)
        self._require(same, at, "it does not count tokens as the method does")

    def _read(
        self,
        graph: Graph,
        step: Instruction,
        held: dict[int, _Held],
        used: list[int],
        fields: Fields,
        at: str,
    ) -> None:
        """Check that queries over rings are the call's tokens, and see what they keep.

        A result over a state that is no ring may replace any of it.
        """
        rings = [v for v in used if held[v].state in self._widest]
        for result in step.results:
            root = graph.root_of(result)
            if isinstance(graph.values[result].storage, Alias) and root in held:
                self._refuse_windows([held[root].state], f"{step.op} over", at)
                held[result] = held[root]
        if not rings:
            return
        if step.op != _ATTENTION:
            self._refuse_windows([held[v].state for v in rings], f"{step.op} of", at)
        arguments = _by_name(step)
        others = tuple(v for name, v in arguments.items() if name not in _CACHES)
        free = set(rings).isdisjoint(_references(others))
        self._require(free, at, "a ring is no cache here")
        circular = arguments["layout"] == "circular"
        self._require(circular, at, "a ring is read as linear")
        queries = graph.values[cast(Ref, arguments["q"]).value].type.dims[2]
        left = arguments["window_left"]
        self._require(type(left) is int, at, "a ring is read without a window")
        for one in (held[value] for value in rings):
            state = self._program.states[one.state]
            added = self._added(state)
            what = f"{queries} queries over a ring, the call adds {added}"
            self._require(queries == added, at, what)
            ends = is_field(arguments["valid_length"], fields, state, CursorField.END)
            what = "a ring is not read up to where its cursor ends"
            self._require(ends, at, what)
            self._check_lengths(arguments, fields, state, at)
            self._check_kept(arguments, state, at)
            self._require(one.written, at, "a ring is read before it is written")
            along = one.order is not None and one.order[2] == state.axis
            self._require(along, at, "a ring's slots are no positions here")
            widest = self._widest[one.state]
            self._widest[one.state] = max(widest, cast(int, left) + 1)

    def _added(self, state: State) -> Dim | None:
        """Return how many tokens a call adds to the cursor of a state."""
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        return None if advance is None else advance.tokens

    def _refuse_windows(self, states: list[int], what: str, at: str) -> None:
        rings = [state for state in states if state in self._widest]
        self._require(not rings, at, f"{what} a ring with a window")

    def _require(self, condition: bool, where: str, what: str) -> None:
        self._report.require(condition, where, what)


def _written_over(graph: Graph, step: Instruction, held: Mapping[int, _Held]) -> bool:
    """Tell whether a result lies over a state, whatever the operands are."""
    for value in step.results:
        if type(graph.values[value].storage) is Alias and graph.root_of(value) in held:
            return True
    return False


def _by_name(step: Instruction) -> dict[str, Argument]:
    names = [parameter.name for parameter in OPS[step.op].params]
    return dict(zip(names, step.arguments, strict=True))


def _references(arguments: tuple[Argument, ...]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        found += [item.value for item in items if isinstance(item, Ref)]
    return found


def _axes(step: Instruction, rank: int) -> tuple[int, ...]:
    """Return which axis of its operand each axis of a swapping view is."""
    if step.op == "aten::permute":
        order = cast("tuple[int, ...]", step.arguments[1])
        return tuple(axis % rank for axis in order)
    axes = list(range(rank))
    if step.op == "aten::transpose.int":
        a, b = (cast(int, axis) % rank for axis in step.arguments[1:])
        axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)
