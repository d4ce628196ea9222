"""What a program says about the windows of its rings: that no call can miss a slot.

In: methods whose graphs have been checked, and what each instruction reads. Out:
nothing, or `BadProgram`. A ring with a window may be rewound, and survives a call that
fails, although what was in its slots is gone: this holds only because nothing ever
looks at those slots. So each call must write at the position, as many positions as it
adds; `kvc::attention` alone may read, what the call has written too; and its queries
must be the tokens of the call and see no further than the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from kvc.schema.dtypes import DType
from kvc.schema.feeds import Feed, feed_of, position_input
from kvc.schema.model import (
    Argument,
    Instruction,
    Method,
    Program,
    Ref,
    StateKind,
    StateSlot,
)
from kvc.schema.ops import OPS
from kvc.schema.types import Dim, bounds
from kvc.schema.verify.counts import counted_values, position_rows
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.faults import Reporter

_UPDATE: Final = "kvc::cache_update"
_ATTENTION: Final = "kvc::attention"
_CACHES: Final = ("k", "v", "k_scale", "v_scale")  # their slots lie along axis 2
# Views and copies that say the same of each row.
_SAME: Final = frozenset(
    {
        "aten::view", "aten::expand", "aten::unsqueeze", "aten::squeeze.dims",
        "aten::alias", "aten::clone", "aten::reshape",
    }
)  # fmt: skip


class _Place(Enum):
    """What a value of integers says of each row."""

    START = "the position as the call begins"
    PLACES = "the places of all tokens, one behind the other"
    LAST = "the place of the last token"
    END = "the position as the call ends"


@dataclass(frozen=True, slots=True)
class _Part:
    """A value that is a ring.

    Attributes:
        state: its id.
        order: which axis of the state each of its axes is.
        written: whether it holds what the call writes.
    """

    state: int
    order: tuple[int, ...]
    written: bool


class RingChecker:
    """The checks on all windows of a program, method by method."""

    def __init__(self, program: Program, sizes: Sizes, report: Reporter) -> None:
        """Check what states say by themselves.

        Raises:
            BadProgram: one that is no ring at the position has a window, or a ring has
                fewer slots than its window.
        """
        self._program, self._report = program, report
        self._widest: dict[int, int] = {}
        for number, state in enumerate(program.states):
            if state.window is None:
                continue
            where, window = f"state {state.name!r}", state.window
            ring = state.kind is StateKind.RING and state.at_position
            report.require(ring, where, "a window of no ring at the position")
            assert state.axis is not None
            least = bounds(state.type.dims[state.axis], sizes.symbols)[0]
            what = f"a window of {window} in a ring of {least} slots"
            report.require(1 <= window <= least, where, what)
            self._widest[number] = 0

    def check(self, method: Method, operands: Sequence[Sequence[int]]) -> None:
        """Check what a method does with rings.

        Raises:
            BadProgram: it uses one in a way that its window does not allow.
        """
        if not self._widest:
            return
        where = f"method {method.name!r}"
        if method.advance is not None:
            missed = sorted(self._widest.keys() - set(method.writes))
            what = f"it advances the position and does not write the rings {missed}"
            self._report.require(not missed, where, what)
        uses = _Uses(method, self._program, self._widest, self._report)
        uses.check(operands)

    def finish(self) -> None:
        """Check that windows are what is seen, once all methods have been checked.

        Raises:
            BadProgram: a window is wider or narrower than that.
        """
        for number, widest in self._widest.items():
            state = self._program.states[number]
            what = f"a window of {state.window}, its queries see {widest}"
            where = f"state {state.name!r}"
            self._report.require(widest == state.window, where, what)


class _Uses:
    """What one method does with rings and with the position."""

    def __init__(
        self,
        method: Method,
        program: Program,
        widest: dict[int, int],
        report: Reporter,
    ) -> None:
        self._method, self._program, self._report = method, program, report
        self._types = [value.type for value in method.graph.values]
        self._widest = widest
        self._parts: dict[int, _Part] = {}
        self._places: dict[int, _Place] = {}
        for i, value in enumerate(method.graph.values):
            storage = value.storage
            if isinstance(storage, StateSlot) and storage.state in widest:
                order = tuple(range(len(value.type.dims)))
                self._parts[i] = _Part(storage.state, order, written=False)
        self._counts = counted_values(method)
        self._rows = position_rows(method, program)
        self._find_start()

    def _find_start(self) -> None:
        """Note which value is the position as the call begins."""
        position = self._program.position
        assert position is not None, "a ring at the position has one"
        for i, value in enumerate(self._method.graph.values):
            storage = value.storage
            if isinstance(storage, StateSlot) and storage.state == position.state:
                self._places[i] = _Place.START
        fed = position_input(self._method, position)
        if fed is not None:
            feed = feed_of(self._method, position, self._program.states)
            places = _Place.PLACES if feed is Feed.PLACES else _Place.START
            self._places[self._method.graph.inputs[fed]] = places

    def check(self, operands: Sequence[Sequence[int]]) -> None:
        graph = self._method.graph
        steps = zip(graph.instructions, operands, strict=True)
        for index, (step, reads) in enumerate(steps):
            if not self._places.keys().isdisjoint(reads):
                self._follow_place(step)
            used = [value for value in reads if value in self._parts]
            if used:
                where = f"method {self._method.name!r}, instruction {index}"
                self._use(step, used, where)
        given = [value for value in graph.outputs if value in self._parts]
        where = f"method {self._method.name!r}"
        self._report.require(not given, where, "it hands a ring with a window out")

    def _follow_place(self, step: Instruction) -> None:
        found = self._place_of(step)
        # A smaller integer would cut it off.
        whole = all(self._types[i].dtype is DType.INT64 for i in step.results)
        if found is not None and whole:
            self._places.update(dict.fromkeys(step.results, found))

    def _place_of(self, step: Instruction) -> _Place | None:
        """Return what an instruction makes of the position, None for anything else."""
        if step.op == "aten::add.Tensor":
            return self._sum(step)
        first = step.arguments[0]
        if step.op == "aten::copy":
            first = step.arguments[1]
        given = self._place(first)
        if given is None:
            return None
        if step.op in _SAME or step.op == "aten::copy":
            return given
        if step.op == "aten::add.Scalar":
            steps = {_Place.START: self._method.advance, _Place.LAST: 1}
            added = given in steps and step.arguments[1] == steps[given]
            added = added and self._method.counts is None
            return _Place.END if added and step.arguments[2] == 1 else None
        return self._picked(step, given)

    def _sum(self, step: Instruction) -> _Place | None:
        """Return what a sum is: the position as the call ends, or nothing."""
        one, other, alpha = step.arguments
        if self._place(one) is not _Place.START:
            one, other = other, one
        ends = self._place(one) is _Place.START and self._is_counts(other)
        return _Place.END if ends and alpha == 1 else None

    def _is_counts(self, argument: Argument) -> bool:
        """Tell whether an argument says how many tokens count in each row."""
        return isinstance(argument, Ref) and argument.value in self._counts

    def _place(self, argument: Argument) -> _Place | None:
        """Return what an argument says of the position."""
        if not isinstance(argument, Ref):
            return None
        return self._places.get(argument.value)

    def _picked(self, step: Instruction, given: _Place) -> _Place | None:
        """Return what one of the places is that an instruction picks."""
        if step.op not in ("aten::select.int", "aten::slice.Tensor"):
            return None
        first = cast(Ref, step.arguments[0]).value
        one = self._types[step.results[0]].dims in ((), (1,))
        if len(self._types[first].dims) != 1 or not one:
            return None
        if given is not _Place.PLACES:
            return given if self._types[first].dims == (1,) else None
        ends = {0: _Place.START, None: _Place.START, -1: _Place.LAST}
        where = step.arguments[2]
        return ends.get(where) if isinstance(where, int | None) else None

    def _use(self, step: Instruction, used: Sequence[int], where: str) -> None:
        """Check one use of rings."""
        names = [parameter.name for parameter in OPS[step.op].params]
        arguments = dict(zip(names, step.arguments, strict=True))
        if step.op == _UPDATE:
            self._write(step, arguments, used, where)
        elif step.op == _ATTENTION:
            self._read(arguments, used, where)
        elif step.op in ("aten::transpose.int", "aten::permute", "aten::alias"):
            part = self._parts[used[0]]
            order = tuple(part.order[axis] for axis in _axes(step, len(part.order)))
            result = _Part(part.state, order, part.written)
            self._parts[step.results[0]] = result
        else:
            self._fail(where, f"{step.op} of a ring with a window")

    def _write(
        self,
        step: Instruction,
        arguments: dict[str, Argument],
        used: Sequence[int],
        where: str,
    ) -> None:
        """Check that a write begins at the position and is as long as its advance."""
        cache, update = arguments["cache"], cast(Ref, arguments["update"])
        alone = isinstance(cache, Ref) and tuple(used) == (cache.value,)
        self._require(alone, where, "a ring is written to another state")
        part = self._parts[used[0]]
        declared, rank = self._program.states[part.state], len(part.order)
        whole = part.order == tuple(range(rank))
        axis = cast(int, arguments["axis"]) % rank
        round_it = whole and axis == declared.axis and arguments["mode"] == "circular"
        self._require(round_it, where, "a ring is not written along its slots")
        count = self._types[update.value].dims[axis]
        what = f"a write of {count} positions, the call adds {self._method.advance}"
        self._require(count == self._method.advance, where, what)
        placed = self._place(arguments["write_indices"]) is _Place.START
        self._require(placed, where, "a ring is not written at the position")
        fits = rows_fit(self._rows, declared.type.dims)
        self._require(fits, where, "a ring's rows are not those of the position")
        result = _Part(part.state, part.order, written=True)
        self._parts[step.results[0]] = result

    def _read(
        self, arguments: dict[str, Argument], used: Sequence[int], where: str
    ) -> None:
        """Check that queries are the call's tokens, and see only what it keeps."""
        caches = [arguments[name] for name in _CACHES]
        taken = [i.value for i in caches if isinstance(i, Ref) and i.value in used]
        self._require(sorted(taken) == sorted(used), where, "a ring is no cache here")
        self._require(
            arguments["layout"] == "circular", where, "a ring is read as linear"
        )
        queries = self._types[cast(Ref, arguments["q"]).value].dims[2]
        what = f"{queries} queries over a ring, the call adds {self._method.advance}"
        self._require(queries == self._method.advance, where, what)
        ends = self._place(arguments["valid_length"]) is _Place.END
        what = "a ring is not read up to the position behind the call"
        self._require(ends, where, what)
        counts = arguments["counts"]
        alike = counts is None if not self._counts else self._is_counts(counts)
        self._require(alike, where, "queries over a ring count in another way")
        left = arguments["window_left"]
        self._require(type(left) is int, where, "a ring is read without a window")
        for part in (self._parts[value] for value in taken):
            self._require(part.written, where, "a ring is read before it is written")
            slots = self._program.states[part.state].axis
            along = part.order[2] == slots
            self._require(along, where, "a ring's slots are no positions here")
            widest = self._widest[part.state]
            self._widest[part.state] = max(widest, cast(int, left) + 1)

    def _require(self, condition: bool, where: str, what: str) -> None:
        self._report.require(condition, where, what)

    def _fail(self, where: str, what: str) -> None:
        self._report.fail(where, what)


def rows_fit(rows: Sequence[Dim] | None, ring: Sequence[Dim]) -> bool:
    """Tell whether each row of a ring is at the position of the row of its number.

    `rows` are the dims of the position, None where it is the same in all rows.
    """
    return rows is None or tuple(rows) in ((), (1,), tuple(ring[:1]))


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
