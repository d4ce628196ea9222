"""Find whether a read and a write of a tensor are at the same indices.

The write is an `index_copy` with an index tensor. The read can be a slice, a single
index, or a read at an equal index tensor.
"""

from collections.abc import Mapping

from kvc.compiler.ir import Argument, Node, Value
from kvc.schema.types import Affine, Dim, count_from_front


def is_read_at(
    read: Value, base: Value, axis: int, index: Value, makers: Mapping[int, Node]
) -> bool:
    """Tell whether `read` has the content of `base` at the positions `index` of `axis`.

    `read` keeps the axis, also for one position.
    """
    node = makers.get(read.id)
    if node is None:
        return False
    if node.op in _SHAPING and node.inputs[0].type.dims != read.type.dims:
        place = makers.get(node.inputs[0].id)
        dims = node.inputs[0].type.dims
        kept = read.type.dims == (*dims[:axis], 1, *dims[axis:])
        return kept and place is not None and _selects(place, base, axis, index, makers)
    return _takes(read, node, base, axis, index, makers)


def selected_at(
    read: Value, base: Value, axis: int, index: Value, makers: Mapping[int, Node]
) -> bool:
    """Tell whether `read` is the part of `base` at the one position in `index`.

    `read` lacks the axis of the positions.
    """
    node = makers.get(read.id)
    return node is not None and _selects(node, base, axis, index, makers)


_SHAPING = {"aten::view", "aten::unsqueeze", "aten::reshape"}


def _selects(
    node: Node, base: Value, axis: int, index: Value, makers: Mapping[int, Node]
) -> bool:
    """Tell whether a node selects the one position in `index` and drops the axis."""
    match node.op, node.arguments:
        case "aten::select.int", (Value() as old, int(dim), int() | Affine() as place):
            same = old.id == base.id and dim % len(base.type.dims) == axis
            counted = counted_from_front(place, base.type.dims[axis])
            return same and _counts(index, counted, 1, 1, makers)
        case "aten::squeeze.dims", (Value() as row, (int(dim),)):
            taken = makers.get(row.id)
            same = dim % len(base.type.dims) == axis
            return (
                same
                and taken is not None
                and _takes(row, taken, base, axis, index, makers)
            )
    return False


def _takes(
    read: Value,
    node: Node,
    base: Value,
    axis: int,
    index: Value,
    makers: Mapping[int, Node],
) -> bool:
    """Tell whether the result `read` of a node is `base` at `index`, with the axis."""
    rank, count = len(base.type.dims), read.type.dims[axis]
    match node.op, node.arguments:
        case "aten::slice.Tensor", (Value() as old, int(dim), start, _, int(step)):
            counted = counted_from_front(start or 0, base.type.dims[axis])
            same = old.id == base.id and dim % rank == axis
            return same and _counts(index, counted, step, count, makers)
        case "aten::split_with_sizes", (Value() as old, tuple(sizes), int(dim)):
            ahead = sizes[: [v.id for v in node.outputs].index(read.id)]
            same = old.id == base.id and dim % rank == axis
            begin = sum(size for size in ahead if isinstance(size, int))
            static = all(isinstance(size, int) for size in ahead)
            return same and static and _counts(index, begin, 1, count, makers)
        case "aten::index_select", (Value() as old, int(dim), Value() as other):
            same = old.id == base.id and dim % rank == axis
            return same and equal(other, index, makers)
    return False


def _counts(
    index: Value, start: Dim | None, step: int, count: Dim, makers: Mapping[int, Node]
) -> bool:
    """Tell whether an index is `count` positions counted from `start` by `step`."""
    node = makers.get(index.id)
    if node is None or index.type.dims != (count,):
        return False
    return node.op == "aten::arange.start_step" and (
        node.arguments[0] == start and (count == 1 or node.arguments[2] == step)
    )


def counted_from_front(place: Argument, size: Dim) -> Dim | None:
    """Return a position counted from the front, None if not known ahead of time."""
    if not isinstance(place, int | Affine) or isinstance(place, bool):
        return None
    counted = count_from_front(place, size)
    if not isinstance(counted, int):
        return counted
    return max(0, min(counted, size) if isinstance(size, int) else counted)


def equal(a: Argument, b: Argument, makers: Mapping[int, Node]) -> bool:
    """Tell whether two arguments are equal, or computed by equal nodes."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        pairs = zip(a, b, strict=True) if len(a) == len(b) else ()
        return len(a) == len(b) and all(equal(x, y, makers) for x, y in pairs)
    if not isinstance(a, Value) or not isinstance(b, Value):
        return type(a) is type(b) and a == b
    if a.id == b.id:
        return True
    one, other = makers.get(a.id), makers.get(b.id)
    if one is None or other is None or len(one.outputs) + len(other.outputs) > 2:
        return False
    both = zip(one.arguments, other.arguments, strict=False)
    return one.op == other.op and all(equal(x, y, makers) for x, y in both)
