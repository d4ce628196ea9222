"""Find the windows of rings, which allow a session to rewind overwritten rings.

A ring is a cache whose slots are reused in a circle. In: views of methods for a cursor,
and the rings at the cursor. Out: the window of each ring that has a window. A ring has
a window under four conditions. Each method that advances the position fills the ring
without a gap. Only `kvc::attention` reads the ring, after a write, and the queries are
the last tokens of that write. Each of these attentions has a window. Writes and
attentions keep the same number of first positions. A ring without a window works too,
but a session cannot rewind it.
"""

from collections.abc import Iterable, Iterator, Mapping

from kvc.compiler.analysis.caches import ATTENTION
from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.analysis.fills import START, Fill, FillPlace, Fills, after
from kvc.compiler.analysis.updates import CacheWrite, cache_write
from kvc.compiler.ir import Argument, Node, Program, State, Value
from kvc.compiler.ir.arguments import named
from kvc.compiler.ir.control import control_of
from kvc.schema.graph import CursorField
from kvc.schema.ops import CACHE_UPDATE, PERMUTING
from kvc.schema.rings import Window
from kvc.schema.types import Dim, Symbol, add_dims, bounds

_CACHES = ("k", "v", "k_scale", "v_scale")
_SLOTS = 2  # the axis of slots in the caches of attention
_HANDS_ON = PERMUTING | {"aten::alias"}
Rings = Mapping[str, State]
_NOTHING = Window(0)


def find_windows(
    program: Program, views: Iterable[CursorView], rings: Rings
) -> dict[str, Window]:
    """Return ring name -> the largest window through which a query reads the ring.

    Args:
        program: the program of the methods.
        views: one view of each method, for the cursor of the rings.
        rings: the rings at the cursor, by name.
    """
    symbols = {symbol.name: symbol for symbol in program.symbols}
    uses = [_Uses(view, rings, symbols) for view in views if rings]
    seen_of: dict[str, list[Window | None]] = {name: [] for name in rings}
    for name, window in (use for one in uses for use in one.all()):
        seen_of[name].append(window)
    found: dict[str, Window] = {}
    for name, seen in seen_of.items():
        ring = rings[name]
        known = [window for window in seen if window is not None]
        widest = max(known, key=lambda window: window.size, default=_NOTHING)
        alike = all(window.keep == widest.keep for window in known)
        assert ring.axis is not None
        longest = widest.longest_call(bounds(ring.type.dims[ring.axis], symbols)[0])
        fits = widest.size > 0 and longest >= max(1, *(u.most(name) for u in uses))
        if fits and alike and len(known) == len(seen):
            found[name] = widest
    return found


class _Uses:
    """The uses of rings in one method."""

    def __init__(
        self, view: CursorView, rings: Rings, symbols: Mapping[str, Symbol]
    ) -> None:
        self._view, self._rings, self._symbols = view, rings, symbols
        self._fills = Fills(view, rings, symbols)

    def all(self) -> Iterator[tuple[str, Window | None]]:
        """Yield (ring, window) for each use; a use that may read any slot has None."""
        method = self._view.method
        written = {name for _, name in method.state_out}
        for name in self._rings.keys() - written:
            if self._view.step.least is not None:
                yield name, None
        for node in method.nodes:
            for one, seen in self._seen_by(node):
                yield one.held.state, seen
        yield from ((name, None) for name in self._handed_out())

    def _seen_by(self, node: Node) -> Iterator[tuple[Fill, Window | None]]:
        for value in node.inputs:
            one = self._fills.of(value)
            if one is not None:
                yield from ((one, seen) for seen in self._seen(node, value, one))

    def _handed_out(self) -> Iterator[str]:
        """Yield names of rings that are returned, or not filled to the call's end."""
        method = self._view.method
        for value in (*method.outputs, *(value for value, _ in method.input_out)):
            one = self._fills.of(value)
            if one is not None:
                yield one.held.state
        for value, name in method.state_out:
            one = self._fills.of(value)
            if one is not None and one.held.state != name:
                yield one.held.state
            elif name in self._rings and (one is None or self._end() not in one.ends):
                yield name

    def most(self, ring: str) -> int:
        """Return the greatest number of slots in writes that cover part of a call.

        Such a write covers some, but not all, of the tokens that a call adds.
        """
        counts = [
            bounds(write.count, self._symbols)[1]
            for state, node in self._view.method.writes
            if state == ring
            and not self._is_all(write := cache_write(ring, node, self._view.method))
        ]
        return max(counts, default=0)

    def _end(self) -> FillPlace | None:
        """Return the position at the end of the call, None if it is unknown."""
        view = self._view
        if view.step.tokens is not None:
            return after(START, view.step.tokens)
        names = {name for value, name in view.method.state_in if value == view.start}
        left = (value for value, name in view.method.state_out if name in names)
        return self._fills.place(next(left, None))

    def _is_all(self, write: CacheWrite) -> bool:
        """Tell whether a write covers all tokens that the call adds."""
        all_of_it = self._view.offset(write.index), write.count
        return all_of_it == (0, self._view.step.tokens)

    def _seen(self, node: Node, value: Value, one: Fill) -> Iterator[Window | None]:
        """Yield the window through which a node reads a ring, None for any slot.

        `value` is the node's input that lies in the ring. Nothing is yielded for a node
        that only passes the ring on.
        """
        ring, control = self._rings[one.held.state], control_of(node)
        if control is not None:
            fixed = control.operands[control.carried :] if control.is_loop else ()
            yield from [None] if value in fixed else []
            return
        arguments = named(node)
        keep = arguments.get("keep")
        if node.op == CACHE_UPDATE and isinstance(keep, int):
            # Whether an update starts where the filled part of a ring ends.
            write = cache_write(ring.name, node, self._view.method)
            on = self._is_all(write) or self._fills.place(write.index) in one.ends
            first = value == node.inputs[0] and value not in node.inputs[1:]
            rows = self._view.rows in (None, ring.type.dims[0])
            yield Window(0, keep) if on and first and rows and one.held.whole else None
        elif node.op == ATTENTION and isinstance(keep, int):
            left, order = arguments["window_left"], one.held.order
            others = [v for name, v in arguments.items() if name not in _CACHES]
            along = order is not None and order[_SLOTS] == ring.axis
            fits = along and value not in others and self._sees_window(arguments, one)
            yield Window(left + 1, keep) if fits and isinstance(left, int) else None
        elif node.op not in _HANDS_ON:
            yield None

    def _sees_window(self, arguments: Mapping[str, Argument], one: Fill) -> bool:
        """Tell whether an attention's queries are the ring's last written tokens."""
        q, end, lengths = (arguments[n] for n in ("q", "valid_length", "row_lengths"))
        assert isinstance(q, Value)
        assert end is None or isinstance(end, Value)
        assert lengths is None or isinstance(lengths, Value)
        place = self._fills.place(end)
        if self._view.field(end) is CursorField.END:
            place = self._end()
        ends = place in one.ends and self._view.counts_as(lengths)
        queries = q.type.dims[_SLOTS]
        fits = queries == one.count or (lengths is None and self._covers(one, queries))
        return ends and fits and arguments["layout"] == "circular"

    def _covers(self, one: Fill, queries: Dim) -> bool:
        """Tell whether the last write always covers at least `queries` positions."""
        if one.count is None:
            return False
        return bounds(add_dims(one.count, queries, -1), self._symbols)[0] >= 0
