"""Derive memory requests from a method: which values need scratch bytes, and when."""

from collections.abc import Mapping

from kvc.compiler.ir import Method, Value
from kvc.compiler.place.aliasing import Aliases
from kvc.compiler.place.plan import Request
from kvc.schema.types import Symbol


def requests_of(
    method: Method, aliases: Aliases, symbols: Mapping[str, Symbol]
) -> tuple[Request, ...]:
    """Return a request for each value that has scratch memory of its own.

    A value lives from its definition to the last read of it or of anything that
    shares its memory; inputs live from before the first node, what the method hands
    out lives to after the last one. Symbolic sizes count at their upper bound.
    """
    owned = _owned_values(method, aliases)
    first = dict.fromkeys((value.id for value in method.inputs), -1)
    last = dict(first)
    for index, node in enumerate(method.nodes):
        for value in node.inputs:
            last[aliases.root[value.id]] = index
        for value in node.outputs:
            first.setdefault(aliases.root[value.id], index)
            last[aliases.root[value.id]] = index
    for value in method.results:
        last[aliases.root[value.id]] = len(method.nodes)
    return tuple(
        Request(
            value.id, value.type.max_nbytes(symbols), first[value.id], last[value.id]
        )
        for value in owned
    )


def _owned_values(method: Method, aliases: Aliases) -> list[Value]:
    defined = [value for node in method.nodes for value in node.outputs]
    inputs = [v for v in method.inputs if v.id not in aliases.callers]
    return [v for v in [*inputs, *defined] if aliases.root[v.id] == v.id]
