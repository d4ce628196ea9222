"""Check the indices of writes before the first write.

A write into persistent memory raises if an index is out of range, and earlier writes of
the same call cannot be undone. So an index that depends only on inputs and counters is
computed and checked before all writes. Any other index is checked by the write that
uses it; if the check fails, that write changes nothing.
"""

from collections.abc import Iterator, Sequence

from kvc.compiler.ir import Argument, Node, Value
from kvc.compiler.place.schedule import EARLY, Schedule
from kvc.schema.dtypes import DType
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.types import Dim

# Writes with indices along one axis, counted from 0.
_ALONG = (
    "aten::index_copy",
    "aten::index_add",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter_add",
    "aten::scatter_reduce.two",
)
_WHOLE = (DType.INT32, DType.INT64, DType.BOOL)  # bool: the mask of rows that take part
_LONGEST = 64  # the most nodes of an index computation
# The values that decide a check, its operator and its arguments.
Check = tuple[tuple[Value, ...], str, tuple[Argument, ...]]


def add_index_checks(schedule: Schedule, writes: Sequence[int]) -> None:
    """Add index checks to a schedule; `writes` are the keys of its writing nodes."""
    wanted: dict[tuple[object, ...], tuple[Check, str]] = {}
    for key in writes:
        for check in _checks(schedule.nodes[key]):
            decisive, op, arguments = check
            others = tuple(a for a in arguments if a not in decisive)
            key_of = (op, *(value.id for value in decisive), *others)
            wanted.setdefault(key_of, (check, schedule.nodes[key].source))
    overwriting = set(writes)
    for check, source in wanted.values():
        # The nodes that compute the check's values, None if a value cannot be computed.
        ways = [_way_to(schedule, value) for value in check[0]]
        found = [way for way in ways if way is not None]
        way = set().union(*found) if len(found) == len(ways) else None
        if way is not None and overwriting.isdisjoint(way):
            _add(schedule, check, source, way, writes)


def _checks(node: Node) -> Iterator[Check]:
    match node.op, node.arguments:
        case "kvc::cache_update", (
            cache, update, Value() as index, axis, "linear", x, *_
        ):  # fmt: skip
            assert isinstance(cache, Value)
            assert isinstance(update, Value)
            assert isinstance(axis, int)
            count, slots = update.type.dims[axis], cache.type.dims[axis]
            if isinstance(x, Value):
                yield (index, x), "kvc::check_rows", (index, x, count, slots)
            else:
                yield _check(index, 0, count, slots)
        case op, (Value() as target, int(dim), Value() as index, *_) if op in _ALONG:
            size = target.type.dims[dim] if target.type.dims else 1
            yield _check(index, 0, 1, size)
        case "aten::index_put", (Value() as target, tuple(indices), _, _):
            for size, item in zip(target.type.dims, indices, strict=False):
                if isinstance(item, Value) and isinstance(size, int):
                    yield _check(item, -size, 1, size)


def _check(index: Value, least: int, count: Dim, slots: Dim) -> Check:
    return (index,), "kvc::check_index", (index, least, count, slots)


def _way_to(schedule: Schedule, index: Value) -> set[int] | None:
    """Return the keys of the nodes that compute an index.

    Return None if the computation reads floats, runs a partition, updates a tensor or
    is long, or if the index is constant.
    """
    way: set[int] = set()
    fixed = {value.id for value, _ in schedule.method.constants}
    differs = False
    stack = [index]
    while stack:
        value = stack.pop()
        key = schedule.makers.get(value.id)
        if value.type.dtype not in _WHOLE or len(way) > _LONGEST:
            return None
        if key is None:
            differs |= value.id not in fixed
        elif key not in way:
            node = schedule.nodes[key]
            if node.op == DELEGATE or OPS[node.op].aliasing is Aliasing.UPDATE:
                return None
            way.add(key)
            stack += node.inputs
    return way if differs else None


def _add(
    schedule: Schedule, check: Check, source: str, way: set[int], writes: Sequence[int]
) -> None:
    _, op, arguments = check
    added = schedule.add_closing(Node(op, arguments, (), source))
    for key in (*way, added):
        _, place, before = schedule.ranks[key]
        schedule.ranks[key] = (EARLY, place, before)
    for write in writes:
        schedule.order(added, write)
