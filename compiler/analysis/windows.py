"""Find the windows of rings, which allow a session to rewind them after overwriting.

In: methods as a cursor sees them, the states at it. Out: the window of each ring that
has one. A ring has one if each method that advances the position writes it, only
`kvc::attention` reads it, after that write and with the call's tokens as queries, all
these readers have a window, and writes and readers keep the same number of first
positions. Any other ring works as well, but cannot be rewound.
"""

from collections.abc import Iterable, Iterator, Mapping

from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.analysis.updates import Held, cache_write
from kvc.compiler.ir import Argument, Node, Program, State, Value
from kvc.compiler.ir.arguments import named
from kvc.compiler.passes.caches import ATTENTION
from kvc.schema.model import CursorField
from kvc.schema.ops import CACHE_UPDATE, PERMUTING
from kvc.schema.rings import Window
from kvc.schema.types import bounds

_CACHES = ("k", "v", "k_scale", "v_scale")
_SLOTS = 2  # the axis of slots in what attention reads
_HANDS_ON = PERMUTING | {"aten::alias"}
Rings = Mapping[str, State]
_Use = tuple[str, Window | None]  # a ring, what is seen of it; None: any slots
_NOTHING = Window(0)


def find_windows(
    program: Program,
    views: Iterable[CursorView],
    held: Mapping[str, Mapping[int, Held]],
    rings: Rings,
) -> dict[str, Window]:
    """Return ring -> the most that a query may see of it.

    Args:
        program: whose methods these are.
        views: of all methods, by the cursor of the rings.
        held: method -> which of its values are states.
        rings: those at the cursor, by name.
    """
    symbols = {symbol.name: symbol for symbol in program.symbols}
    seen: dict[str, list[Window | None]] = {name: [] for name in rings}
    for view in views if rings else ():
        for name, window in _uses(view, held[view.method.name], rings):
            seen[name].append(window)
    found: dict[str, Window] = {}
    for name, ring in rings.items():
        known = [window for window in seen[name] if window is not None]
        widest = max(known, key=lambda window: window.size, default=_NOTHING)
        alike = all(window.keep == widest.keep for window in known)
        assert ring.axis is not None
        least = bounds(ring.type.dims[ring.axis], symbols)[0]
        fits = widest.size > 0 and widest.longest_call(least) > 0
        if fits and alike and len(known) == len(seen[name]):
            found[name] = widest
    return found


def _uses(view: CursorView, held: Mapping[int, Held], rings: Rings) -> Iterator[_Use]:
    """Yield what a method does with rings, and what it fails to do."""
    method = view.method
    for name in rings.keys() - {name for _, name in method.state_out}:
        if view.step.least is not None:
            yield name, None
    for node in method.nodes:
        for value in node.inputs:
            one = held.get(value.id)
            if one is not None and one.state in rings:
                ring = rings[one.state]
                yield from ((one.state, n) for n in _seen(node, value, one, ring, view))
    handed = [*method.outputs, *(value for value, _ in method.input_out)]
    for value, name in method.state_out:
        if value.id not in held or held[value.id].state != name:
            handed.append(value)
            yield from [(name, None)] if name in rings else []
    for value in handed:
        if value.id in held and held[value.id].state in rings:
            yield held[value.id].state, None


def _seen(
    node: Node, value: Value, one: Held, ring: State, view: CursorView
) -> Iterator[Window | None]:
    """Yield what a node sees of a ring, a write nothing; None for any slots."""
    first = value == node.inputs[0] and value not in node.inputs[1:]
    arguments = named(node)
    keep = arguments.get("keep")
    if node.op == CACHE_UPDATE and first and isinstance(keep, int):
        write, rows = (
            cache_write(ring.name, node, view.method),
            view.rows in (None, ring.type.dims[0]),
        )
        all_of_it = view.offset(write.index) == 0 and write.count == view.step.tokens
        yield Window(0, keep) if one.whole and all_of_it and rows else None
    elif node.op == ATTENTION and isinstance(keep, int):
        left = arguments["window_left"]
        others = [v for name, v in arguments.items() if name not in _CACHES]
        own = one.written and one.order is not None and one.order[_SLOTS] == ring.axis
        fits = own and value not in others and _sees_window(arguments, view)
        yield Window(left + 1, keep) if fits and isinstance(left, int) else None
    elif node.op not in _HANDS_ON:
        yield None


def _sees_window(arguments: Mapping[str, Argument], view: CursorView) -> bool:
    """Tell whether an attention's queries are the tokens of the call."""
    q, end, lengths = (arguments[n] for n in ("q", "valid_length", "row_lengths"))
    assert isinstance(q, Value)
    assert isinstance(end, Value)
    assert lengths is None or isinstance(lengths, Value)
    tokens = q.type.dims[_SLOTS] == view.step.tokens
    ends = view.field(end) is CursorField.END and view.counts_as(lengths)
    return tokens and ends and arguments["layout"] == "circular"
