"""Write into the base instead of into a view of it.

Code may write a cache without writing in place: `c.transpose(0, 1).index_copy(0, p,
x).transpose(0, 1)`; a stack of caches is written part by part, as the states that it is
split into need it. In: a program with such chains. Out: one write into the base for
each chain. If a view only permutes axes, or adds and drops axes of size 1, the write is
changed to the axes of the base (`_unviewed`). Writes into parts of parts become one
`index_put` at several indices (`_merged`), provided that no index is negative, since a
negative index would count from the back; this is known of the whole program only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.analysis.index_sums import NonNegative
from kvc.compiler.analysis.whole_views import axis_order
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import (
    NodeList,
    each_method,
)
from kvc.compiler.passes.axis_writes import AxisWrite, axis_write, with_operands
from kvc.compiler.passes.same_index import is_read_at, selected_at
from kvc.schema.ops import PERMUTING, RESHAPING_VIEWS
from kvc.schema.types import Dim, TensorType

# Views that add or drop axes of size 1, if all other sizes stay the same.
_ONES = RESHAPING_VIEWS | {"aten::reshape", "aten::select.int"}


@dataclass(frozen=True, slots=True)
class WriteThroughViews:
    """Replace writes into views of a value by one write into the value."""

    name: ClassVar[str] = "write-through-views"

    def run(self, program: Program) -> Program:
        """Return the program in which writes go to the bases of views."""
        non_negative = NonNegative(program)
        program = each_method(program, _unviewed)
        return each_method(program, lambda method: _merged(method, non_negative))


def _unviewed(method: Method) -> Method:
    rebuilt = NodeList(method)
    reads = method.reads()
    for node in method.nodes:
        inner = _maker(node, rebuilt)
        view = _maker(inner, rebuilt)
        write = axis_write(inner, lean=True) if inner is not None else None
        if inner and view and reads.get(inner.outputs[0].id) == 1:
            orders = node.op in PERMUTING and view.op in PERMUTING
            if inner.op == "kvc::cache_update" and orders:
                node = _updated_in_order(node, inner, view, rebuilt)
            elif write is None:
                pass
            elif orders:
                node = _reordered(node, inner, view, write, rebuilt)
            elif node.op in _ONES and view.op in _ONES:
                node = _with_ones(node, inner, view, write, rebuilt)
        rebuilt.keep(node)
    return replace(method, nodes=tuple(rebuilt.nodes))


def _maker(node: Node | None, rebuilt: NodeList) -> Node | None:
    """Return the node that computes the first operand of a node, None if none does."""
    if node is None or not node.inputs:
        return None
    return rebuilt.makers.get(node.inputs[0].id)


def _reordered(
    node: Node, inner: Node, view: Node, write: AxisWrite, rebuilt: NodeList
) -> Node:
    """Return a write into the base of a view, in place of a write into the view.

    `view` permutes axes, `inner` writes into the view, and `node` permutes the result.
    If `node` does not undo the permutation of the view, return `node`.
    """
    base, there, back = view.inputs[0], axis_order(view), axis_order(node)
    if tuple(there[axis] for axis in back) != tuple(range(len(back))):
        return node
    whole = _viewed(write.source, write.dims, node, rebuilt)
    kind = TensorType(whole.type.dtype, tuple(write.dims[axis] for axis in back))
    source = rebuilt.add("aten::permute", (whole, back), kind, node.source)
    turned = with_operands(inner, base, there[write.axis], source)
    return replace(turned, outputs=node.outputs)


def _updated_in_order(node: Node, inner: Node, view: Node, rebuilt: NodeList) -> Node:
    """Return a cache update of the base of a view, in place of one of the view.

    `view` permutes axes, `inner` updates the view, and `node` permutes the result. The
    update has a start for each row of the first axis. If that axis does not stay first,
    or `node` does not undo the permutation of the view, return `node`.
    """
    cache, update, index, axis, *rest = inner.arguments
    assert isinstance(cache, Value)
    assert isinstance(update, Value)
    assert isinstance(axis, int)
    there, back = axis_order(view), axis_order(node)
    undone = tuple(there[axis] for axis in back) == tuple(range(len(back)))
    if not undone or there[0] != 0:
        return node
    kind = TensorType(update.type.dtype, tuple(update.type.dims[i] for i in back))
    source = rebuilt.add("aten::permute", (update, back), kind, inner.source)
    along = there[axis % len(there)]
    arguments: tuple[Argument, ...] = (view.inputs[0], source, index, along, *rest)
    return replace(inner, arguments=arguments, outputs=node.outputs)


def _with_ones(
    node: Node, inner: Node, view: Node, write: AxisWrite, rebuilt: NodeList
) -> Node:
    """Return a write into the base of a view that adds or drops axes of size 1.

    `inner` writes into the view, and `node` restores the shape of the base. If the base
    and the view differ by more than axes of size 1, return `node`.
    """
    base, viewed = view.inputs[0], view.outputs[0].type.dims
    dims = list(base.type.dims)
    same = _sides(dims) == _sides(viewed) and node.outputs[0].type == base.type
    if not same or viewed[write.axis] == 1:
        return node
    number = len(_sides(viewed[: write.axis]))
    axis = [i for i, size in enumerate(dims) if size != 1][number]
    dims[axis] = write.dims[write.axis]
    kind = TensorType(base.type.dtype, tuple(dims))
    source = rebuilt.add("aten::view", (write.source, kind.dims), kind, node.source)
    return replace(with_operands(inner, base, axis, source), outputs=node.outputs)


def _sides(dims: tuple[Dim, ...] | list[Dim]) -> tuple[Dim, ...]:
    return tuple(size for size in dims if size != 1)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A write of `source` into a tensor, at all combinations of several axes' indices.

    `indices` maps an axis to its index tensor. `source` has the tensor's axes in order;
    axes with one position can be missing.
    """

    indices: Mapping[int, Value]
    source: Value


def _merged(method: Method, non_negative: NonNegative) -> Method:
    """Merge each write into a part of a part into one write into the base."""
    rebuilt = NodeList(method)
    makers = method.makers()
    reads = method.reads()
    for node in method.nodes:
        grid = _grid(node, method, makers, reads, non_negative)
        if grid is not None and len(grid.indices) > 1:
            node = _as_index_put(node, grid, rebuilt)
        rebuilt.keep(node)
    return replace(method, nodes=tuple(rebuilt.nodes))


def _grid(
    node: Node,
    method: Method,
    makers: Mapping[int, Node],
    reads: Mapping[int, int],
    non_negative: NonNegative,
) -> _Grid | None:
    """Return the whole write of a node that writes back a part, None for other nodes.

    Writes into a part, and then into parts of that part, are followed as long as each
    part is written back.
    """
    indices: dict[int, Value] = {}
    write = axis_write(node)
    kept = list(range(len(write.target.type.dims))) if write else []
    source = None
    while write is not None and kept[write.axis] not in indices:
        known = write.from_back or non_negative.holds(method, write.index)
        if not known or len(write.index.type.dims) != 1:
            break
        indices[kept[write.axis]] = write.index
        source = write.source
        part, is_select = _written_part(write, makers, reads)
        if is_select:
            del kept[write.axis]
        write = part
    return None if source is None else _Grid(indices, source)


def _written_part(
    write: AxisWrite, makers: Mapping[int, Node], reads: Mapping[int, int]
) -> tuple[AxisWrite | None, bool]:
    """Find the write into the part that `write` writes back.

    Returns:
        That write, None if there is none; and whether the part is a single position,
            without the axis of positions.
    """
    at = (write.target, write.axis, write.index, makers)
    inner = makers.get(write.source.id)
    part = axis_write(inner) if inner else None
    if part and reads[write.source.id] == 1 and is_read_at(part.target, *at):
        return part, False
    if inner is None or inner.op not in _ONES:
        return None, False
    row = inner.inputs[0]
    maker = makers.get(row.id)
    part = axis_write(maker) if maker else None
    dims = row.type.dims
    added = (*dims[: write.axis], 1, *dims[write.axis :]) == write.source.type.dims
    if part and added and reads[row.id] == 1 and selected_at(part.target, *at):
        return part, True
    return None, False


def _as_index_put(node: Node, grid: _Grid, rebuilt: NodeList) -> Node:
    base, axes = node.inputs[0], sorted(grid.indices)
    dims = list(base.type.dims)
    for axis, index in grid.indices.items():
        (dims[axis],) = index.type.dims
    source = _viewed(grid.source, tuple(dims), node, rebuilt)
    indices: list[Value | None] = [None] * (axes[-1] + 1)
    for number, axis in enumerate(axes):
        shape = (*(1,) * number, dims[axis], *(1,) * (len(axes) - number - 1))
        indices[axis] = _viewed(grid.indices[axis], shape, node, rebuilt)
    if axes[-1] - axes[0] + 1 != len(axes):  # then the indexed axes come first
        order = (*axes, *(i for i in range(len(dims)) if i not in axes))
        kind = TensorType(base.type.dtype, tuple(dims[axis] for axis in order))
        source = rebuilt.add("aten::permute", (source, order), kind, node.source)
    arguments: tuple[Argument, ...] = (base, tuple(indices), source, False)
    return replace(node, op="aten::index_put", arguments=arguments)


def _viewed(
    value: Value, dims: tuple[Dim, ...], node: Node, rebuilt: NodeList
) -> Value:
    if value.type.dims == dims:
        return value
    kind = TensorType(value.type.dtype, dims)
    return rebuilt.add("aten::view", (value, dims), kind, node.source)
