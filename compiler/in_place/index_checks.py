"""Checks of write indices, before the first write.

A write into a home raises when an index is out of range. What an earlier write of the
same call has done by then cannot be taken back, so an index that follows from inputs
and counters alone is computed and checked first; all writes come after that. An index
that follows from anything else is checked by its own write, which then writes nothing.
"""

from collections.abc import Iterator, Sequence

from kvc.compiler.in_place.draft import EARLY, Draft
from kvc.compiler.ir import Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.types import Dim

# Writes whose indices count along one axis, from 0.
_ALONG = (
    "aten::index_copy",
    "aten::index_add",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter_add",
)
_INTEGERS = (DType.INT32, DType.INT64)
_LONGEST = 64  # nodes on the way to an index; a longer way is no index computation
Check = tuple[Value, int, Dim, Dim]  # index, least, count, slots


def add_index_checks(draft: Draft, writes: Sequence[int]) -> None:
    """Add checks to a draft, and put them before the nodes `writes`."""
    wanted: dict[tuple[object, ...], tuple[Check, str]] = {}
    for key in writes:
        for check in _checks(draft.nodes[key]):
            key_of = (check[0].id, *check[1:])
            wanted.setdefault(key_of, (check, draft.nodes[key].source))
    overwriting = set(writes)
    for check, source in wanted.values():
        way = _way_to(draft, check[0])
        if way is not None and overwriting.isdisjoint(way):
            _add(draft, check, source, way, writes)


def _checks(node: Node) -> Iterator[Check]:
    """Yield what must hold for the indices of a write."""
    match node.op, node.arguments:
        case "kvc::cache_update", (cache, update, Value() as index, axis, "linear"):
            assert isinstance(cache, Value)
            assert isinstance(update, Value)
            assert isinstance(axis, int)
            yield index, 0, update.type.dims[axis], cache.type.dims[axis]
        case op, (Value() as target, int(dim), Value() as index, *_) if op in _ALONG:
            yield index, 0, 1, _size(target, dim)
        case "aten::index_put", (Value() as target, tuple(indices), _, _):
            for size, item in zip(target.type.dims, indices, strict=False):
                if isinstance(item, Value) and isinstance(size, int):
                    yield item, -size, 1, size


def _size(target: Value, dim: int) -> Dim:
    return target.type.dims[dim] if target.type.dims else 1


def _way_to(draft: Draft, index: Value) -> set[int] | None:
    """Return the nodes that an index follows from.

    None where it follows from floats or from nothing that differs from call to call.
    """
    way: set[int] = set()
    fixed = {value.id for value, _ in draft.method.constants}
    differs = False
    stack = [index]
    while stack:
        value = stack.pop()
        key = draft.makers.get(value.id)
        if value.type.dtype not in _INTEGERS or len(way) > _LONGEST:
            return None
        if key is None:
            differs |= value.id not in fixed
        elif key not in way:
            node = draft.nodes[key]
            if node.op == DELEGATE or OPS[node.op].aliasing is Aliasing.UPDATE:
                return None
            way.add(key)
            stack += node.inputs
    return way if differs else None


def _add(
    draft: Draft, check: Check, source: str, way: set[int], writes: Sequence[int]
) -> None:
    index, least, count, slots = check
    node = Node("kvc::check_index", (index, least, count, slots), (), source)
    added = draft.add_closing(node)
    for key in (*way, added):
        _, place, before = draft.ranks[key]
        draft.ranks[key] = (EARLY, place, before)
    for write in writes:
        draft.order(added, write)
