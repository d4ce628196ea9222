"""How far back rings are seen: what lets them forget, go back, and outlive a failure.

In: methods as a cursor sees them, the states at it. Out: the window of each ring that
has one. It has one when each method that advances the position writes it,
`kvc::attention` alone reads it, after that write and with the call's tokens as queries,
and all such readers have a window. Any other ring is none the worse; its session only
knows less of it.
"""

from collections.abc import Iterable, Iterator, Mapping

from kvc.compiler.analysis.cursor_parts import CursorView
from kvc.compiler.analysis.updates import Held, cache_write
from kvc.compiler.ir import Argument, Node, Program, State, Value
from kvc.compiler.ir.arguments import named
from kvc.compiler.passes.caches import ATTENTION
from kvc.schema.model import CursorPart
from kvc.schema.ops import CACHE_UPDATE, PERMUTING
from kvc.schema.types import bounds

_CACHES = ("k", "v", "k_scale", "v_scale")
_SLOTS = 2  # the axis of slots in what attention reads
_HANDS_ON = PERMUTING | {"aten::alias"}
Rings = Mapping[str, State]
_Use = tuple[str, int | None]  # a ring, how many positions are seen; None: any slots


def find_windows(
    program: Program,
    views: Iterable[CursorView],
    held: Mapping[str, Mapping[int, Held]],
    rings: Rings,
) -> dict[str, int]:
    """Return ring -> how many positions a query may see, its own among them.

    Args:
        program: whose methods these are.
        views: of all methods, by the cursor of the rings.
        held: method -> which of its values are states.
        rings: those at the cursor, by name.
    """
    symbols = {symbol.name: symbol for symbol in program.symbols}
    widths: dict[str, list[int | None]] = {name: [] for name in rings}
    for view in views if rings else ():
        for name, width in _uses(view, held[view.method.name], rings):
            widths[name].append(width)
    found: dict[str, int] = {}
    for name, ring in rings.items():
        known = [width for width in widths[name] if width is not None]
        assert ring.axis is not None
        least = bounds(ring.type.dims[ring.axis], symbols)[0]
        if known and len(known) == len(widths[name]) and max(known) <= least:
            found[name] = max(known)
    return found


def _uses(view: CursorView, held: Mapping[int, Held], rings: Rings) -> Iterator[_Use]:
    """Yield what a method does with rings, and what it fails to do."""
    method = view.method
    for name in rings.keys() - {name for _, name in method.state_out}:
        if view.step.tokens is not None:
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
) -> Iterator[int | None]:
    """Yield how far a node looks at a ring, None where that may be any slots."""
    first = value == node.inputs[0] and value not in node.inputs[1:]
    if node.op == CACHE_UPDATE and first:
        write = cache_write(ring.name, node)
        all_of_it = view.offset(write.index) == 0 and write.count == view.step.tokens
        rows = view.rows in (None, ring.type.dims[0])
        yield from () if one.whole and all_of_it and rows else (None,)
    elif node.op == ATTENTION:
        arguments = named(node)
        left = arguments["window_left"]
        others = [v for name, v in arguments.items() if name not in _CACHES]
        own = one.written and one.order is not None and one.order[_SLOTS] == ring.axis
        fits = own and value not in others and _sees_window(arguments, view)
        yield left + 1 if fits and isinstance(left, int) else None
    elif node.op not in _HANDS_ON:
        yield None


def _sees_window(arguments: Mapping[str, Argument], view: CursorView) -> bool:
    """Tell whether an attention's queries are the tokens of the call."""
    q, end, lengths = (arguments[n] for n in ("q", "valid_length", "row_lengths"))
    assert isinstance(q, Value)
    assert isinstance(end, Value)
    assert lengths is None or isinstance(lengths, Value)
    tokens = q.type.dims[_SLOTS] == view.step.tokens
    ends = view.part(end) is CursorPart.END and view.counts_as(lengths)
    return tokens and ends and arguments["layout"] == "circular"
