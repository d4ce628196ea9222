"""Check that a loop that moves a position on stays within what its call says it adds.

A cursor is such a position, and a loop may carry it from turn to turn. In: the control
instructions of a method, and what their operands are to cursors. Out: where each turn
starts, or `BadProgram`. A loop in another must end before the outer turn does. Where
only loops decide how much a call adds, that is compared at the end with where the
counter of the cursor is left.
"""

from dataclasses import replace
from typing import cast

from kvc.schema.control import Control
from kvc.schema.model import (
    Alias,
    CursorSlot,
    Graph,
    Instruction,
    Method,
    Program,
    Ref,
    StateSlot,
)
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import add_dims, bounds
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.starts import After, Fields, handed_on, placed


class LoopEnds:
    """Where the loops of one method end, in its blocks too."""

    def __init__(self, method: Method, program: Program, report: Reporter) -> None:
        self._method, self._program, self._report = method, program, report
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        self._loops = 0  # how many there have been
        # Of calls that loops decide on: where something ends, what, and where it is.
        self._ends: list[tuple[After, str, str]] = []

    def carried(
        self,
        graph: Graph,
        step: Instruction,
        control: Control[object],
        inside: Graph,
        fields: dict[int, CursorSlot | After],
        at: str,
    ) -> dict[int, After]:
        """Return the starts of turns: a start that each turn hands on, so much further.

        Where all turns together end is noted in `fields`. In a turn, a loop has to end
        before the turn does.
        """
        found: dict[int, After] = {}
        self._loops += 1
        for i in range(control.carried):
            start = placed(cast(Ref, control.operands[i]), fields)
            blocks, own = self._method.blocks, inside.inputs[i]
            added = handed_on(inside, {own: 0}, blocks).get(inside.outputs[i])
            if start is None or not isinstance(added, int):
                continue
            advance = self._method.advance_of(start.cursor)
            if advance is None or advance.lengths is not None:
                continue
            end = start
            if control.scanned:
                through = cast(Ref, control.operands[control.carried]).value
                turns = graph.values[through].type.dims[0]
                end = start.further(add_dims(0, turns, added))
            elif added != 0:
                end = replace(start, loops=(*start.loops, self._loops))
            what = f"turns up to {end.offset} after the start"
            self.check(end, what, at)
            found[own] = After(start.cursor, 0, added)
            fields[step.results[i]] = end
        return found

    def check(self, end: After, what: str, at: str) -> None:
        """Check that what a call, or a turn of a loop, adds ends there at the earliest.

        Where loops decide how much that is, it is checked when all are known.
        """
        advance = self._method.advance_of(end.cursor)
        assert advance is not None
        room, adds = advance.tokens, "the call adds"
        if end.turn is not None:
            room, adds = end.turn, "a turn adds"
        if room is None:
            self._ends.append((end, what, at))
            return
        left = bounds(add_dims(room, end.offset, -1), self._symbols)[0]
        what += f" and {len(end.loops)} loops of any length" if end.loops else ""
        self._report.require(left >= 0 and not end.loops, at, f"{what}, {adds} {room}")

    def finish(self, fields: Fields) -> None:
        """Check that counters say where calls end whose loops decide it."""
        open_ends, where = {}, f"method {self._method.name!r}"
        for advance in self._method.advances:
            state = self._program.cursors[advance.cursor].state
            if advance.tokens is None and state is not None:
                last = fields.get(_last_value(self._method.graph, state))
                what = f"it does not leave the counter {state} where its loops end"
                counts = isinstance(last, After) and last.cursor == advance.cursor
                self._report.require(counts, where, what)
                open_ends[advance.cursor] = cast(After, last)
        for end, what, at in self._ends:
            last = open_ends[end.cursor]
            left = bounds(add_dims(last.offset, end.offset, -1), self._symbols)[0]
            fits = left >= 0 and set(end.loops) <= set(last.loops)
            self._report.require(fits, at, f"{what}, the counter is left before that")


def _last_value(graph: Graph, state: int) -> int:
    """Return the value that all of a state holds at the end, -1 where parts differ."""
    whole = {i for i, v in enumerate(graph.values) if v.storage == StateSlot(state)}
    roots, last = set(whole), -1
    for step in graph.instructions:
        for result in step.results:
            storage = graph.values[result].storage
            if graph.root_of(result) not in roots or not isinstance(storage, Alias):
                continue
            if OPS[step.op].aliasing is not Aliasing.VIEW:
                last = result if storage.base in whole else -1
                whole.add(last)
    return last
