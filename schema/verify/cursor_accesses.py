"""Check single writes and reads of states at cursors.

In: an instruction, where its operands are relative to cursors, and how far the call has
filled the states that the instruction uses. Out: how far the states are filled after
the instruction, or `BadProgram`. `cursor_uses.py` walks through the code.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from kvc.schema.control import Control
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Argument, CursorField, Graph, Instruction, Ref
from kvc.schema.model import Method, Program, State, StateKind
from kvc.schema.ops import OPS
from kvc.schema.types import Dim, add_dims, bounds
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.loop_ends import LoopEnds
from kvc.schema.verify.starts import After, Fields, first_operand, is_field, placed

# How far a call has written a state, from its start on and without a hole.


@frozen
class Filled:
    """How far a call, or an iteration of a loop, has filled a state.

    Attributes:
        ends: the position after the filled part; several equal positions if a loop
            carries more than one.
        count: the number of positions of the last write; None before the first write.
    """

    ends: frozenset[After]
    count: Dim | None = None

    def in_turn(
        self,
        control: Control[object],
        inside: Graph,
        turns: Mapping[int, After],
        fields: Fields,
    ) -> "Filled":
        """Return how far the state is filled when an iteration of a loop starts.

        The state is filled up to the start of the iteration, or up to an unknown
        position.

        Args:
            control: the loop.
            inside: the graph of the loop's body.
            turns: for each carried input of the body, the start of the iteration.
            fields: the position or cursor field that each value outside of the loop is.
        """
        pairs = zip(control.operands, inside.inputs[: control.carried], strict=False)
        starts = {
            turns[own]
            for operand, own in pairs
            if own in turns and placed(cast(Ref, operand), fields) in self.ends
        }
        return Filled(frozenset(starts))


def filled_after(
    results: Sequence[int],
    ways: Sequence[tuple[Sequence[int], Fields, Filled]],
    fields: Fields,
    loop: bool,
) -> Filled:
    """Return how far a state is filled after branches, or after a loop.

    Args:
        results: the results of the instruction that runs the branches or the loop.
        ways: for each branch or loop body: its outputs, the position or cursor field
            that each of its values is, and how far it fills the state.
        fields: the position or cursor field that each result is.
        loop: whether `ways` are loop bodies, whose positions are relative to the start
            of an iteration.
    """

    def ends() -> Iterator[After]:
        for i in range(len(ways[0][0])):
            end = fields.get(results[i])
            there = (
                placed(Ref(outputs[i]), made) in filled.ends
                for outputs, made, filled in ways
            )
            if isinstance(end, After) and all(there):
                yield end
        if not loop:
            yield from frozenset.intersection(*(filled.ends for *_, filled in ways))

    return Filled(frozenset(ends()))


# Checks of single writes and reads of states at cursors.


MODES: Final = {StateKind.LINEAR: "linear", StateKind.RING: "circular"}
_CACHES: Final = (
    "k",
    "v",
    "k_scale",
    "v_scale",
)  # operands whose slots lie along axis 2


@frozen
class HeldState:
    """A value that contains a state with a cursor, or is a view of one.

    Attributes:
        state: id of the state.
        order: for each axis of the value, the axis of the state; None if the value is a
            view that does more than permute the state's axes.
        filled: how far the call has filled the state.
    """

    state: int
    order: tuple[int, ...] | None
    filled: Filled


class CursorAccesses:
    """Checks of one method's writes and reads of states with cursors.

    Attributes:
        filled: for each state, how far it is filled after the last write.
    """

    def __init__(
        self,
        method: Method,
        program: Program,
        widest: dict[int, int],
        ends: LoopEnds,
        report: Reporter,
    ) -> None:
        self._method, self._program, self._report = method, program, report
        self._widest, self._ends = widest, ends
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        self.filled: dict[int, Filled] = {}

    def write(
        self,
        graph: Graph,
        step: Instruction,
        held: dict[int, HeldState],
        used: list[int],
        fields: Fields,
        at: str,
    ) -> None:
        """Check that an update begins at the cursor and writes the call's tokens."""
        arguments, result = _by_name(step), step.results[0]
        one = held[first_operand(step)]
        self.refuse_windows([held[v].state for v in used[1:]], "a write of", at)
        if not isinstance(graph.values[result].storage, Alias):
            self.refuse_windows([one.state], "a copy of", at)
            return
        state = self._program.states[one.state]
        assert state.cursor is not None
        update = graph.values[cast(Ref, arguments["update"]).value].type
        axis = cast(int, arguments["axis"]) % len(update.dims)
        whole = one.order == tuple(range(len(update.dims)))
        along = axis == state.axis and arguments["mode"] == MODES[state.kind]
        if not (whole and along):
            found = f"axis {axis}, {arguments['mode']}"
            kind = f"{state.kind.name} along {state.axis}"
            what = f"it writes the state {state.name!r}, {kind}, along {found}"
            self._report.fail(at, what)
        self._check_kept(arguments, state, at)
        start = placed(arguments["write_indices"], fields)
        what = f"the write of the state {state.name!r} does not begin at its cursor"
        self._require(start is not None and start.cursor == state.cursor, at, what)
        assert start is not None
        count = update.dims[axis]
        self._check_extent(start, count, state, one.filled, at)
        self._check_lengths(arguments, fields, state, at)
        rows = self._program.cursors[state.cursor].rows
        fits = rows is None or state.type.dims[0] == rows
        what = f"the rows of {state.name!r} are not those of its cursor"
        self._require(fits or state.window is None, at, what)
        filled = Filled(frozenset([start.further(count)]), count)
        held[result] = HeldState(one.state, one.order, filled)
        self.filled[one.state] = filled

    def _check_extent(
        self, start: After, count: Dim, state: State, filled: Filled, at: str
    ) -> None:
        """Check that a write lies within the positions that the call or iteration adds.

        With row lengths, the write must cover all of these positions. A ring with a
        window must be filled without a hole, and a write to it must not be longer than
        the longest allowed call.

        Args:
            start: the first position that is written.
            count: the number of positions that are written.
            state: the state that is written.
            filled: how far the state is filled before the write.
            at: location of the instruction, for messages.
        """
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        if advance is None:
            self._report.fail(at, f"a write of {count} positions, the call adds None")
        if start == After(start.cursor, 0) and count == advance.tokens:
            return
        begins = f", {start.offset} after the start" if start.offset != 0 else ""
        what = f"a write of {count} positions{begins}"
        whole = advance.lengths is not None
        self._require(not whole, at, f"{what}, the call adds {advance.tokens}")
        self._ends.check(start.further(count), what, at)
        if state.window is not None and state.axis is not None:
            slots, symbols = state.type.dims[state.axis], self._symbols
            longest = state.window.longest_call(bounds(slots, symbols)[0])
            fits = start in filled.ends and bounds(count, symbols)[1] <= longest
            self._require(fits, at, f"{what} of a ring that takes {longest} in order")

    def _check_kept(
        self, arguments: Mapping[str, Argument], state: State, at: str
    ) -> None:
        """Check that an operator keeps as many first positions as a ring's window."""
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
        """Check that an operator is given the row lengths that the method declares."""
        lengths = arguments["row_lengths"]
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        if advance is None or advance.lengths is None:
            self._require(
                lengths is None, at, "it has row lengths, the method has none"
            )
            return
        same = is_field(lengths, fields, state, CursorField.LENGTHS)
        self._require(same, at, "its row lengths are not those of the method")

    def read(
        self,
        graph: Graph,
        roots: Sequence[int],
        step: Instruction,
        held: dict[int, HeldState],
        used: list[int],
        fields: Fields,
        at: str,
    ) -> None:
        """Check a read of states; queries over a ring must be the last tokens.

        The queries must have a window. A state that is not a ring can be read by any
        operator, and any result can be written over it.
        """
        rings = [v for v in used if held[v].state in self._widest]
        for result in step.results:
            root = roots[result]
            if isinstance(graph.values[result].storage, Alias) and root in held:
                self.refuse_windows([held[root].state], f"{step.op} over", at)
                held[result] = held[root]
        if not rings:
            return
        if step.op != "kvc::attention":
            self.refuse_windows([held[v].state for v in rings], f"{step.op} of", at)
        arguments = _by_name(step)
        others = tuple(v for name, v in arguments.items() if name not in _CACHES)
        free = set(rings).isdisjoint(_references(others))
        self._require(free, at, "a ring is no cache here")
        self._require(arguments["layout"] == "circular", at, "a ring is read as linear")
        queries = graph.values[cast(Ref, arguments["q"]).value].type.dims[2]
        left = arguments["window_left"]
        self._require(type(left) is int, at, "a ring is read without a window")
        for one in (held[value] for value in rings):
            state = self._program.states[one.state]
            written = one.filled.count
            self._require(
                written is not None, at, "a ring is read before it is written"
            )
            assert written is not None
            what = f"{queries} queries over a ring, the last write is of {written}"
            some = arguments["row_lengths"] is None and self._covers(written, queries)
            self._require(queries == written or some, at, what)
            end = self._end_of(arguments["valid_length"], fields, state)
            what = "a ring is not read up to where its cursor ends"
            self._require(end in one.filled.ends, at, what)
            self._check_lengths(arguments, fields, state, at)
            self._check_kept(arguments, state, at)
            along = one.order is not None and one.order[2] == state.axis
            self._require(along, at, "a ring's slots are no positions here")
            widest = self._widest[one.state]
            self._widest[one.state] = max(widest, cast(int, left) + 1)

    def _covers(self, count: Dim, part: Dim) -> bool:
        """Tell whether `count` is at least `part` at all allowed sizes."""
        return bounds(add_dims(count, part, -1), self._symbols)[0] >= 0

    def _end_of(self, argument: Argument, fields: Fields, state: State) -> After | None:
        """Return the position in an operand, after a start; None if unknown."""
        assert state.cursor is not None
        advance = self._method.advance_of(state.cursor)
        ends = is_field(argument, fields, state, CursorField.END)
        if ends and advance is not None and advance.tokens is not None:
            return After(state.cursor, advance.tokens)
        return placed(argument, fields)

    def refuse_windows(self, states: list[int], what: str, at: str) -> None:
        """Check that no state in `states` is a ring with a window."""
        rings = [state for state in states if state in self._widest]
        self._require(not rings, at, f"{what} a ring with a window")

    def _require(self, condition: bool, where: str, what: str) -> None:
        self._report.require(condition, where, what)


def _by_name(step: Instruction) -> dict[str, Argument]:
    names = [parameter.name for parameter in OPS[step.op].params]
    return dict(zip(names, step.arguments, strict=True))


def _references(arguments: tuple[Argument, ...]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        found += [item.value for item in items if isinstance(item, Ref)]
    return found
