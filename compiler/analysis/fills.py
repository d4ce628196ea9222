"""Find the position up to which a call has written rings without a gap.

A ring is a cache whose slots are reused in a circle. In: a view of a method for a
cursor, and the rings at the cursor. Out: for each value in a ring's memory, the
position up to which the ring is filled. At the start of a loop iteration, and at the
end of a loop or branch, that position is the cursor value that the loop or branch
carries, or is unknown.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.analysis.flat import Passed
from kvc.compiler.analysis.index_sums import CarriedSum, IndexSum
from kvc.compiler.analysis.updates import InState, cache_write, held_by
from kvc.compiler.ir import Node, State, Value
from kvc.schema.ops import CACHE_UPDATE
from kvc.schema.types import Dim, Symbol, add_dims

# A position: the ids of the terms added to the start, and a number.
FillPlace = tuple[tuple[int, ...], Dim]
START: FillPlace = ((), 0)


@dataclass(frozen=True, slots=True)
class Fill:
    """How far a ring is filled at one point of a call.

    Attributes:
        held: the ring, and the order of the ring's axes in the value that views the
            ring.
        ends: the positions up to which the ring is filled. There are several if loops
            carry several equal positions.
        count: the number of positions that the last write covered; None before the
            first write.
    """

    held: InState
    ends: frozenset[FillPlace]
    count: Dim | None = None


class Fills:
    """How far each ring of a method is filled, at each point of a call."""

    def __init__(
        self,
        view: CursorView,
        rings: Mapping[str, State],
        symbols: Mapping[str, Symbol],
    ) -> None:
        """Follow the rings through all nodes of a method."""
        self._view, self._symbols = view, symbols
        self._known: dict[int, Fill | None] = {}
        method = view.method
        for value, name in method.state_in:
            if name in rings:
                held = InState(name, tuple(range(len(value.type.dims))))
                self._known[value.id] = Fill(held, frozenset([START]))
        self._own = {one.own.id: one for one in method.passed}
        self._ends = {one.end.id: one for one in method.passed}
        for node in method.nodes:
            for value in node.outputs:
                self._known[value.id] = self._made(node, value)

    def of(self, value: Value) -> Fill | None:
        """Return the fill of the ring that a value lies in, None if it is in none."""
        if value.id not in self._known:
            self._known[value.id] = self._started(value)
        return self._known[value.id]

    def place(self, value: Value | None) -> FillPlace | None:
        """Return a value's distance after the call's start, None if it is unknown."""
        found = self._view.further(value)
        return None if found is None else _place(found)

    def _started(self, value: Value) -> Fill | None:
        """Return the fill of a carried value when a loop's body or condition starts.

        The result is None if the value lies in no ring.
        """
        method = self._view.method
        if value.id in method.asked:
            one = self.of(method.asked[value.id])
            return None if one is None else Fill(one.held, frozenset())
        passed = self._own.get(value.id)
        one = None if passed is None else self.of(passed.first)
        if one is None or passed is None:
            return None
        turns = ((c.first, c.own) for c in self._carried(passed.loop))
        return Fill(one.held, self._moved(one, turns))

    def _made(self, node: Node, value: Value) -> Fill | None:
        """Return the fill of a node's result, None if the result lies in no ring."""
        if value.id in self._ends:
            return self._ended(self._ends[value.id])
        if value.id in self._view.method.joins:
            return self._joined(value)
        one = self.of(node.inputs[0]) if node.inputs else None
        held = held_by(node, None if one is None else one.held)
        if one is None or held is None or node.op != CACHE_UPDATE:
            return None if held is None or one is None else replace(one, held=held)
        write = cache_write(held.state, node, self._view.method)
        place = self.place(write.index)
        end = None if place is None else after(place, write.count)
        return Fill(held, frozenset([] if end is None else [end]), write.count)

    def _ended(self, passed: Passed) -> Fill | None:
        """Return the fill of a carried value after all iterations of a loop."""
        one, first = self.of(passed.given), self.of(passed.first)
        if first is None:
            return None
        pairs = ((c.given, c.end) for c in self._carried(passed.loop))
        return Fill(first.held, self._moved(one, pairs) if one else frozenset())

    def _joined(self, value: Value) -> Fill | None:
        """Return the fill of a result of branches, None if it lies in no ring."""
        joins = self._view.method.joins
        ways = [self.of(way) for way in joins[value.id].ways]
        found = [way for way in ways if way is not None]
        if not found:
            return None
        if len(found) < len(ways) or len({way.held for way in found}) > 1:
            return Fill(found[0].held, frozenset())
        ends = set(frozenset.intersection(*(way.ends for way in found)))
        for one in joins.values():
            alike = one.cond == joins[value.id].cond
            if alike and self._view.follows(one, self._symbols):
                places = map(self.place, one.ways)
                there = (p in w.ends for p, w in zip(places, found, strict=True))
                end = self.place(one.end)
                if end is not None and all(there):
                    ends.add(end)
        return Fill(found[0].held, frozenset(ends))

    def _carried(self, loop: int) -> Iterator[CarriedSum]:
        """Yield the positions of the cursor that a loop carries.

        `loop` is the id of the loop's first result.
        """
        own = {one.own.id for one in self._view.method.passed if one.loop == loop}
        for one in self._view.method.loops:
            if one.own.id in own and self._view.carries(one, self._symbols):
                yield one

    def _moved(
        self, one: Fill, pairs: Iterable[tuple[Value, Value]]
    ) -> frozenset[FillPlace]:
        """Return the new position of each (old, new) pair whose old one ends a fill.

        `one` is the fill before the move.
        """
        ends = (self.place(new) for old, new in pairs if self.place(old) in one.ends)
        return frozenset(end for end in ends if end is not None)


def after(place: FillPlace, count: Dim) -> FillPlace:
    """Return the position `count` after `place`."""
    addends, constant = place
    return addends, add_dims(constant, count)


def _place(found: IndexSum) -> FillPlace:
    return tuple(addend.id for addend in found.addends), found.constant
