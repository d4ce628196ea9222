"""Check that loops and branches write only at the positions that their call adds.

A loop writes at a position: at the cursor, or some tokens later. The loop can carry the
position from an iteration to the next. In: the control instructions of a method, and
the positions of their operands. Out: the position where each iteration starts, or
`BadProgram`. An inner loop must not pass the position where the iteration of the outer
loop ends. If branches advance the position by different numbers of tokens, the code
after the branches may rely on the smallest number only. If only loops and branches
determine how many tokens a call adds, the checks wait for the end of the method: its
last write to the cursor's counter then gives the number of tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, cast

from kvc.schema.control import Control
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, CursorSlot, Graph, Instruction, Ref, StateSlot
from kvc.schema.model import Method, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import add_dims, bounds
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.starts import After, Fields, placed

_NOT_HANDED_ON: Final = (
    "iterations do not write at a cursor's start: they do not carry their end position"
)


@frozen
class _End:
    """The position at which an access of a method to a state ends.

    Attributes:
        ways: the end of the access, and the ends of the branches that contain the
            access; at least one of these positions must lie within the call or
            iteration.
        what: description of the access.
        at: location of the access in the method.
    """

    ways: tuple[After, ...]
    what: str
    at: str


Way = tuple[
    Sequence[int], Fields, list[_End]
]  # a branch's outputs, cursor fields, and ends


class LoopEnds:
    """Checks of the positions at which loops and branches of one method end."""

    def __init__(self, method: Method, program: Program, report: Reporter) -> None:
        self._method, self._program, self._report = method, program, report
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        self._count = 0  # counts iterations, and loops and branches of unknown length
        # Ends that must lie before the end of the current iteration, or before the end
        # of a call whose length only loops determine.
        self._ends: list[_End] = []

    def turns(
        self, control: Control[object], inside: Graph, fields: Fields
    ) -> dict[int, After]:
        """Return the start of an iteration, for each carried value that is a position.

        Each iteration must return a position for the next iteration; `all_turns` checks
        this.

        Args:
            control: the loop.
            inside: the graph of the loop's body.
            fields: the position or cursor field that each value outside of the loop is.
        """
        found: dict[int, After] = {}
        for i in range(control.carried):
            start = placed(cast(Ref, control.operands[i]), fields)
            if start is None:
                continue
            advance = self._method.advance_of(start.cursor)
            if advance is not None and advance.lengths is None:
                found[inside.inputs[i]] = After(start.cursor, 0, self._new())
        return found

    def all_turns(
        self,
        graph: Graph,
        step: Instruction,
        control: Control[object],
        made: Fields,
        fields: dict[int, CursorSlot | After],
        at: str,
    ) -> None:
        """Check that an iteration accesses only positions that the iteration adds.

        Call this method after the check of the loop's body. It records in `fields`
        where the last iteration ends; that position must lie within the call.

        Args:
            graph: the graph that has the loop.
            step: the instruction that is the loop.
            control: the decoded arguments of the loop.
            made: the position or cursor field that each value of the body is.
            fields: the position or cursor field that each value of `graph` is.
            at: the loop's location, for messages.
        """
        inside = self._method.blocks[control.blocks[-1]].graph
        unknown: dict[After, int] = {}
        for i, own in enumerate(inside.inputs[: control.carried]):
            turn, last = made.get(own), made.get(inside.outputs[i])
            start = placed(cast(Ref, control.operands[i]), fields)
            if not isinstance(turn, After) or start is None:
                continue
            counts = isinstance(last, After) and last.left_from(turn) is not None
            for end in self._taken(turn.turn):
                self._report.require(counts, end.at, _NOT_HANDED_ON)
                room = cast(After, last)
                what = f"{end.what}, a turn adds {room.offset}{_and_loops(room)}"
                self._report.require(self._fits(end, room), end.at, what)
            if not isinstance(last, After) or not counts:
                continue
            ended = start
            if control.scanned and isinstance(last.offset, int) and not last.loops:
                through = cast(Ref, control.operands[control.carried]).value
                turns = graph.values[through].type.dims[0]
                ended = start.further(add_dims(0, turns, last.offset))
            elif last != turn:
                number = unknown.setdefault(replace(last, turn=0), self._new())
                ended = replace(start, loops=(*start.loops, number))
            self.check(ended, f"turns up to {ended.offset} after the start", at)
            fields[step.results[i]] = ended

    @contextmanager
    def within(self, branch: bool) -> Iterator[list[_End]]:
        """Collect the ends of accesses in a block while the block is checked.

        If `branch` is False, the block is not a branch and nothing is collected.
        """
        before, found = self._ends, list[_End]()
        if branch:
            self._ends = found
        yield found
        if branch:
            self._ends = before

    def all_branches(
        self,
        step: Instruction,
        ways: Sequence[Way],
        fields: dict[int, CursorSlot | After],
    ) -> None:
        """Record in `fields` the position after branches.

        If the branches end at different positions, the recorded position is an unknown
        distance after the nearest of these positions.

        Args:
            step: the instruction that runs the branches.
            ways: the results of the branches' checks.
            fields: the position or cursor field that each value outside of the branches
                is.
        """
        for i in range(len(ways[0][0])):
            found = (placed(Ref(outputs[i]), made) for outputs, made, _ in ways)
            lasts = [last for last in found if last is not None]
            joined = self._joined(lasts) if len(lasts) == len(ways) else None
            if joined is None:
                continue
            fields[step.results[i]] = joined
            for last, (*_, ends) in zip(lasts, ways, strict=True):
                for n, end in enumerate(ends):
                    if self._fits(end, last):
                        ends[n] = replace(end, ways=(*end.ways, joined))
        self._ends += [end for *_, ends in ways for end in ends]

    def check(self, end: After, what: str, at: str) -> None:
        """Check that the end of an access lies within the call or iteration.

        If the number of tokens that the call or iteration adds is not known yet, the
        end is checked later.
        """
        advance = self._method.advance_of(end.cursor)
        assert advance is not None
        found = _End((end,), f"{what}{_and_loops(end)}", at)
        if end.turn != 0 or advance.tokens is None:
            self._ends.append(found)
            return
        fits = self._fits(found, After(end.cursor, advance.tokens))
        self._report.require(fits, at, f"{found.what}, the call adds {advance.tokens}")

    def finish(self, fields: Fields) -> dict[int, After]:
        """Check the counters of cursors that loops advance by unknown counts.

        Such a counter must hold the position where the method's last loop ends.

        Args:
            fields: the position or cursor field that each value of the main graph is.

        Returns:
            For each cursor that the call advances, the position after the call.
        """
        found, where = dict[int, After](), f"method {self._method.name!r}"
        for advance in self._method.advances:
            state = self._program.cursors[advance.cursor].state
            if advance.tokens is not None:
                found[advance.cursor] = After(advance.cursor, advance.tokens)
            elif state is not None:
                last = fields.get(_last_value(self._method.graph, state))
                what = f"its counter {state} does not hold the end of its loops"
                counts = isinstance(last, After) and last.cursor == advance.cursor
                self._report.require(counts, where, what)
                found[advance.cursor] = cast(After, last)
        for end in self._ends:
            fits = self._fits(end, found[end.ways[0].cursor])
            what = f"{end.what}, the counter is left before that"
            self._report.require(fits, end.at, what)
        return found

    def _taken(self, turn: int) -> list[_End]:
        """Remove and return the ends that are relative to iteration `turn`."""
        found = [end for end in self._ends if end.ways[0].turn == turn]
        self._ends[:] = [end for end in self._ends if end.ways[0].turn != turn]
        return found

    def _joined(self, ways: Sequence[After]) -> After | None:
        """Return a position at or before all given positions; None if none is found."""
        if len(set(ways)) == 1:
            return ways[0]
        common = set[int].intersection(*(set(way.loops) for way in ways))
        for way in ways:
            shared = tuple(n for n in way.loops if n in common)
            nearest = replace(way, loops=shared)
            if all(self._fits(_End((nearest,), "", ""), other) for other in ways):
                return replace(nearest, loops=(*shared, self._new()))
        return None

    def _fits(self, end: _End, last: After) -> bool:
        """Tell whether an access ends at or before `last`, at all allowed sizes."""
        left = [last.left_from(way) for way in end.ways]
        return any(d is not None and bounds(d, self._symbols)[0] >= 0 for d in left)

    def _new(self) -> int:
        self._count += 1
        return self._count


def _and_loops(end: After) -> str:
    return f" and {len(end.loops)} loops of any length" if end.loops else ""


def _last_value(graph: Graph, state: int) -> int:
    """Return the id of the value that last overwrote a state as a whole.

    The result is -1 if the last write changed only a part of the state.
    """
    whole = {i for i, v in enumerate(graph.values) if v.storage == StateSlot(state)}
    roots, last = graph.roots(), -1
    own = set(whole)
    for step in graph.instructions:
        for result in step.results:
            storage = graph.values[result].storage
            if roots[result] not in own or not isinstance(storage, Alias):
                continue
            if OPS[step.op].aliasing is not Aliasing.VIEW:
                last = result if storage.base in whole else -1
                whole.add(last)
    return last
