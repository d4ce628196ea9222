"""Writes along one axis: the common form of `index_copy` and `index_put`."""

from dataclasses import dataclass

from kvc.compiler.analysis.index_sums import Add
from kvc.compiler.ir import Argument, Node, Value
from kvc.schema.types import Dim, TensorType


@dataclass(frozen=True, slots=True)
class AxisWrite:
    """A write of whole slices along one axis.

    Attributes:
        target: the tensor that is written.
        axis: the axis of the positions, counted from 0.
        index: the positions, [count] (`index_copy` also takes [] for one position).
        source: the new slices, of the target's rank and with size `count` along the
            axis. In the result of `axis_write(..., lean=True)`, leading axes of size 1
            can be missing.
        from_back: whether negative positions count from the back; otherwise a negative
            position is an error at run time.
    """

    target: Value
    axis: int
    index: Value
    source: Value
    from_back: bool

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The sizes of the written slices, of the target's rank."""
        old, index = self.target.type.dims, self.index.type.dims
        return (*old[: self.axis], *(index or (1,)), *old[self.axis + 1 :])


def axis_write(node: Node, *, lean: bool = False) -> AxisWrite | None:
    """Return a node as a write along one axis, None if it is no such write.

    PyTorch drops leading axes of size 1 from the values of an `index_put`. Such a write
    is returned only if `lean` is set; see `AxisWrite.source`.
    """
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
                return write if _is_whole(write, lean=lean) else None
    return None


def _is_whole(write: AxisWrite, *, lean: bool) -> bool:
    """Tell whether the source is not broadcast, and the index has one axis."""
    dims, given = write.dims, write.source.type.dims
    lacking = max(0, len(dims) - len(given)) if lean else 0
    whole = (*(1,) * lacking, *given) == dims
    return whole and len(write.index.type.dims) == 1


def whole_source(write: AxisWrite, add: Add) -> Value:
    """Return a write's source, with any missing leading axes of size 1 added."""
    if write.source.type.dims == write.dims:
        return write.source
    kind = TensorType(write.source.type.dtype, write.dims)
    return add("aten::view", (write.source, write.dims), kind)


def with_operands(node: Node, target: Value, axis: int, source: Value) -> Node:
    """Return an axis write at the same positions, with the operands replaced."""
    write = axis_write(node, lean=True)
    assert write is not None
    arguments: tuple[Argument, ...] = (target, axis, write.index, source)
    if write.from_back:
        arguments = (target, (*(None,) * axis, write.index), source, False)
    return Node(node.op, arguments, node.outputs, node.source)
