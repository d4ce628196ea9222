"""Writes along one axis: what `index_copy`, or `index_put` at one index, says."""

from dataclasses import dataclass

from kvc.compiler.ir import Argument, Node, Value


@dataclass(frozen=True, slots=True)
class AxisWrite:
    """A write of whole slices along one axis.

    Attributes:
        target: what is written into.
        axis: counted from 0.
        index: the places, [count] (`index_copy` also takes [] for one place).
        source: of the target's rank, `count` long along the axis.
        from_back: whether negative places count from the back; otherwise they raise.
    """

    target: Value
    axis: int
    index: Value
    source: Value
    from_back: bool


def axis_write(node: Node) -> AxisWrite | None:
    """Return what a node writes along one axis, None if it does something else."""
    match node.op, node.arguments:
        case (
            "aten::index_copy",
            (Value() as target, int(dim), Value() as index, Value() as source),
        ):
            axis = dim % max(1, len(target.type.dims))
            return AxisWrite(target, axis, index, source, from_back=False)
        case (
            "aten::index_put",
            (Value() as target, tuple(indices), Value() as values, False),
        ):
            used = [(i, item) for i, item in enumerate(indices) if item is not None]
            axis, place = used[0]
            if len(used) == 1 and isinstance(place, Value):
                write = AxisWrite(target, axis, place, values, from_back=True)
                return write if _is_whole(write) else None
    return None


def _is_whole(write: AxisWrite) -> bool:
    """Tell whether there is a value for each element, and one axis of places."""
    dims, index = write.target.type.dims, write.index.type.dims
    written = (*dims[: write.axis], *index, *dims[write.axis + 1 :])
    return len(index) == 1 and write.source.type.dims == written


def with_operands(node: Node, target: Value, axis: int, source: Value) -> Node:
    """Return an axis write of other operands, at the same places."""
    write = axis_write(node)
    assert write is not None
    arguments: tuple[Argument, ...] = (target, axis, write.index, source)
    if write.from_back:
        arguments = (target, (*(None,) * axis, write.index), source, False)
    return Node(node.op, arguments, node.outputs, node.source)
