"""Tell which field of a cursor an integer of a method equals, if any.

A cursor is a position in the token sequence that a program counts. The fields of a
cursor (`CursorField`) are the position at the start of a call, the position at the end
of the call, and the number of tokens that the call adds to each row. In: a method with
its blocks inlined, the cursor's value at the start of a call, and the tokens that the
call adds. Out: a `CursorView`, which returns the field that a value equals. The
analyses of cursors, of kinds of states, of the windows of rings and of operands that
become fields all ask a `CursorView`, so that they cannot disagree.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kvc.compiler.analysis.flat import Branches, FlatMethod
from kvc.compiler.analysis.index_sums import Along, CarriedSum, IndexSum, Joined, Open
from kvc.compiler.analysis.updates import CacheWrite, cache_writes
from kvc.compiler.ir import Program, Value
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField
from kvc.schema.model import Cursor, CursorKind
from kvc.schema.types import Dim, Symbol, TensorType, add_dims, bounds

# Dims of a position that all rows share.
ONE_FOR_ALL: tuple[tuple[Dim, ...], ...] = ((), (1,))
_FIRST = TensorType(DType.INT64, (1,))


@dataclass(frozen=True, slots=True)
class CursorAdvance:
    """The tokens that a call adds to a cursor.

    Attributes:
        least: the number of tokens added to each row, without the tokens in `totals`;
            if there are `lengths`, the most that a row can add. None if unknown.
        lengths: the input with the number of tokens that each row adds, int64 or bool
            [rows]; None if each row adds all tokens of the call.
        totals: values that represent the numbers of tokens added by loops and branches,
            which are known only at run time.
    """

    least: Dim | None
    lengths: Value | None = None
    totals: tuple[Value, ...] = ()

    @property
    def tokens(self) -> Dim | None:
        """Return the number of tokens added to each row, None if it is unknown."""
        return None if self.totals else self.least


@dataclass(frozen=True, slots=True)
class AfterMark:
    """A value at a known distance after a mark.

    A mark is a position that a loop or branch computes.

    Attributes:
        one: the carried value of the loop, or the result of the branches.
        mark: the value that is the mark: `one.own` within a loop, or `one.end` after a
            loop or branches if the end is known only at run time.
        offset: the distance of the value from the mark, in positions.
    """

    one: Open
    mark: Value
    offset: Dim


@dataclass(frozen=True, slots=True)
class CursorView:
    """A method and the values of a cursor in it.

    Attributes:
        method: the method.
        start: the value that holds the position at the start of a call, int64 [], [1]
            or [rows], or the positions of all tokens of the call, int64 [tokens]; None
            if the method takes no position.
        step: the tokens that a call adds.
        rows: the number of rows if each row has a separate position; None if all rows
            share one position.
    """

    method: FlatMethod
    start: Value | None
    step: CursorAdvance = CursorAdvance(None)
    rows: Dim | None = None

    @property
    def places(self) -> bool:
        """Tell whether the method takes one position for each token of a call."""
        given = self.start
        return given is not None and self.method.sums.of(given).along is Along.COUNTING

    @property
    def apart(self) -> bool:
        """Tell whether the method takes a position for each row."""
        one = self.start is None or self.start.type.dims in ONE_FOR_ALL
        return self.rows is not None and not one

    def offset(self, value: Value | None) -> Dim | None:
        """Return by how much a value exceeds the call's start, None if unknown."""
        found = self.further(value)
        return None if found is None or found.addends else found.constant

    def further(self, value: Value | None) -> IndexSum | None:
        """Return a value minus the call's start; None if the value has no such term."""
        if value is None or self.start is None or not self._fits(value.type):
            return None
        found = self.method.sums.of(value)
        placed = [addend.id for addend in found.addends[:1]] == [self.start.id]
        if not placed or found.along is Along.COUNTING:
            return None
        return replace(found, addends=found.addends[1:])

    def covers(self, write: CacheWrite, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether a write covers only tokens that the call adds, for all sizes."""
        if write.index is None or not self.counts_as(write.counted):
            return False
        if self.step.lengths is not None:
            found = self.offset(write.index), write.count
            return found == (0, self.step.tokens)
        return self._adds(write.index, write.count, symbols, write.branches)

    def reaches(self, value: Value, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether a value is known to be at or after the call's start.

        This is False if the number of tokens that the call adds is unknown.
        """
        found = self.further(value)
        if found is None or self.step.least is None:
            return False
        if found.addends:
            return self.joins(value, symbols)
        return bounds(found.constant, symbols)[0] >= 0

    def follows(self, one: Joined, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether the position that branches return stays in the call's tokens."""
        return self._adds(one.end, 0, symbols, self.method.within[one.end.id])

    def carries(self, one: CarriedSum, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether the position that a loop carries stays in the call's tokens."""
        alike = (self._same_type(value, one.own) for value in (one.first, one.given))
        if not all(alike) or not self.joins(one.given, symbols):
            return False
        branches = self.method.within[one.end.id]
        begins = self._adds(one.first, 0, symbols, branches)
        return begins and self._adds(one.end, 0, symbols, branches)

    def joins(self, value: Value, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether a value is at a known distance after the start or a mark.

        If the mark is a result of branches, this must hold for what each branch
        returns.
        """
        after, found = self.after_mark(value), self.further(value)
        if after is None or found is None:
            return found is not None and not found.addends
        ways = after.one.ways if isinstance(after.one, Joined) else ()
        on = bounds(after.offset, symbols)[0] >= 0
        return on and all(
            self._same_type(way, after.mark) and self.joins(way, symbols)
            for way in ways
        )

    def _same_type(self, value: Value, other: Value) -> bool:
        """Tell whether the mark that `value` follows has the type of `other`.

        This is True if `value` follows no mark.
        """
        after = self.after_mark(value)
        return after is None or after.mark.type == other.type

    def _adds(
        self,
        value: Value,
        count: Dim,
        symbols: Mapping[str, Symbol],
        branches: Branches,
    ) -> bool:
        """Tell whether the call adds the `count` positions that start at a value.

        `branches` are the branches that contain the value.
        """
        found, step = self.further(value), self.step
        if found is None or step.least is None or step.lengths is not None:
            return False
        if found.addends and not self.joins(value, symbols):
            return False
        rest, offset = Counter(found.addends), found.constant
        room, totals, turn = step.least, step.totals, None
        for one in self.method.loops:  # inner loops first
            own = self.further(one.own)
            if own is not None and Counter(own.addends) <= rest:
                rest -= Counter(own.addends)
                offset = add_dims(offset, own.constant, -1)
                room, totals, turn = one.step, one.within, one
                break
        if rest <= Counter(totals) and _fits(offset, count, room, symbols):
            return turn is None or self.carries(turn, symbols)
        return self._ends_with_a_branch(value, count, symbols, branches)

    def _ends_with_a_branch(
        self,
        value: Value,
        count: Dim,
        symbols: Mapping[str, Symbol],
        branches: Branches,
    ) -> bool:
        """Tell whether `count` positions from a value end before a branch's result.

        The branch must contain the value, and the position that the branches return
        must be within the tokens that the call adds. `branches` are all branches that
        contain the value.
        """
        found = self.further(value)
        assert found is not None
        for depth in reversed(range(len(branches))):
            first, which = branches[depth]
            for one in self.method.joins.values():
                way = self.further(one.ways[which]) if one.cond == first else None
                if way is None or not Counter(found.addends) <= Counter(way.addends):
                    continue
                room = add_dims(way.constant, found.constant, -1)
                if _fits(0, count, room, symbols):
                    return self._adds(one.end, 0, symbols, branches[:depth])
        return False

    def after_mark(self, value: Value | None) -> AfterMark | None:
        """Return the mark that a value follows, and how far; None if there is none."""
        found = self.further(value)
        if found is None or not found.addends:
            return None
        for one in self.method.open():
            marks = [one.end] if one.total in found.addends else []
            for mark in [*marks, one.own] if isinstance(one, CarriedSum) else marks:
                known = self.further(mark)
                if known is not None and known.addends == found.addends:
                    offset = add_dims(found.constant, known.constant, -1)
                    return AfterMark(one, mark, offset)
        return None

    def ends_at(self, new: Value, symbols: Mapping[str, Symbol]) -> bool:
        """Tell whether a value can be the cursor's position after the call.

        This is so for a position that loops or branches compute and that lies within
        the tokens that the call adds.
        """
        after = self.after_mark(new)
        alike = after is not None and after.mark.type == new.type
        return alike and self._adds(new, 0, symbols, ())

    def field(self, value: Value | None) -> CursorField | None:
        """Return the field of the cursor that a value equals, None if there is none."""
        if value is None or not self._fits(value.type):
            return None
        lengths, offset = self.step.lengths, self.offset(value)
        if offset == 0:
            return CursorField.START
        if lengths is None:
            ends = offset is not None and offset == self.step.tokens
            return CursorField.END if ends else None
        found, start = self.method.sums.of(value), self.start
        if found.along is Along.COUNTING or found.constant != 0:
            return None
        addends = sorted(addend.id for addend in found.addends)
        if addends == [lengths.id]:
            return CursorField.LENGTHS
        ends = start is not None and addends == sorted([start.id, lengths.id])
        return CursorField.END if ends else None

    def _fits(self, kind: TensorType) -> bool:
        """Tell whether fields of the cursor can have the dtype and shape `kind`."""
        known = self.rows is None or kind.dims in (*ONE_FOR_ALL, (self.rows,))
        return known and kind.dtype is DType.INT64 and len(kind.dims) <= 1

    def counts_as(self, lengths: Value | None) -> bool:
        """Tell whether an operator's row lengths equal the row lengths of the call.

        This is also True if neither has row lengths.
        """
        if lengths is None or self.step.lengths is None:
            return lengths is self.step.lengths
        return self.field(lengths) is CursorField.LENGTHS

    def writes(self) -> Iterator[CacheWrite]:
        """Yield the cache updates that begin at the position before the call."""
        for write in cache_writes(self.method):
            if self.field(write.index) is CursorField.START:
                yield write

    def extents(self) -> set[Dim]:
        """Return the numbers of slots that the call writes from the call's start on.

        Adjacent writes of one cache are added up. More than one number means that the
        writes of different caches disagree.
        """
        found: dict[str, dict[Dim, Dim]] = {}
        different: set[Dim] = set()
        for write in cache_writes(self.method):
            offset, extent = self.offset(write.index), write.count
            after = self.after_mark(write.index)
            one = None if after is None else after.one
            if isinstance(one, CarriedSum) and one.turns is not None:
                offset = self.offset(one.first)
                extent = add_dims(0, one.turns, one.step)
            if offset is not None:
                count = found.setdefault(write.state, {}).setdefault(offset, extent)
                different |= {count, extent} if count != extent else set()
        for runs in found.values():
            end: Dim = 0
            while end in runs:
                end = add_dims(end, runs.pop(end))
            different |= {end} if end != 0 else set()
        return different


def _fits(offset: Dim, count: Dim, room: Dim, symbols: Mapping[str, Symbol]) -> bool:
    """Tell whether `offset` is at least 0 and `offset + count` at most `room`.

    This must hold for all values of the symbols.
    """
    left = add_dims(add_dims(room, offset, -1), count, -1)
    return min(bounds(offset, symbols)[0], bounds(left, symbols)[0]) >= 0


def row_lengths_of(method: FlatMethod, value: Value | None) -> Value | None:
    """Return the input of row lengths that a value equals, None if there is none.

    The input is int64 or bool [rows], and the method does not write to it.
    """
    if value is None:
        return None
    found = method.sums.of(value)
    others = {method.position, *(name for _, name in method.input_out)}
    named = zip(method.inputs, method.input_names, strict=True)
    given = [v for v, name in named if (v,) == found.addends and name not in others]
    return (
        given[0] if given and found.constant == 0 and _are_lengths(given[0]) else None
    )


def _are_lengths(value: Value) -> bool:
    kind = value.type
    return kind.dtype in (DType.INT64, DType.BOOL) and len(kind.dims) == 1


def start_of(method: FlatMethod, cursor: Cursor, program: Program) -> Value | None:
    """Return the value that a cursor has at a method's start, None if there is none."""
    if cursor.kind is CursorKind.SESSION:
        return input_of(method, cursor.name)
    if cursor.state is None:
        return None
    name = program.states[cursor.state].name
    return next((value for value, n in method.state_in if n == name), None)


def input_of(method: FlatMethod, name: str) -> Value | None:
    """Return the input of a method with a name, None if no input has the name."""
    named = zip(method.input_names, method.inputs, strict=True)
    return next((value for n, value in named if n == name), None)


def with_places(method: FlatMethod) -> FlatMethod:
    """Return the method with its position input marked as consecutive positions."""
    start = input_of(method, method.position)
    assert start is not None
    return method.counting({start.id: Value(start.id, _FIRST)})
