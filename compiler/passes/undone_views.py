"""Remove views that a later view undoes.

`cache.view(-1)`, then elementwise ops, then a view in the old shape are the same ops on
the cache itself. In: a method. Out: the method without these views, if all operands
have one size. For passes that put views around things.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvc.compiler.analysis.whole_views import WholeView, whole_view
from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.rewrite import NodeList, rename_node, rename_results
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType

Views = tuple[WholeView, ...]


def unviewed(value: Value, makers: Mapping[int, Node]) -> tuple[Value, Views]:
    """Return the value that this one is another view of, and the views, from there."""
    views: list[WholeView] = []
    while (node := makers.get(value.id)) and (view := whole_view(node)):
        views.append(view)
        value = node.inputs[0]
    return value, tuple(reversed(views))


def without_undone_views(method: Method) -> Method:
    """Return a method that reads through such views."""
    names: dict[int, Value] = {}
    rebuilt = NodeList(method)
    reads = method.reads()
    for node in method.nodes:
        node = rename_node(node, names)
        made = _undone(node, rebuilt) or _done_to_base(node, rebuilt, reads)
        if made is None:
            rebuilt.keep(node)
        else:
            names[node.outputs[0].id] = made
    return rename_results(replace(method, nodes=tuple(rebuilt.nodes)), names)


def _undone(node: Node, rebuilt: NodeList) -> Value | None:
    """Return what a view is after all, where the views before it have changed it."""
    view = whole_view(node)
    return None if view is None else _base(view, node.inputs[0], rebuilt)


def _base(view: WholeView, value: Value, rebuilt: NodeList) -> Value | None:
    """Return what a value has been before the views that a view of it undoes."""
    while (inner := rebuilt.makers.get(value.id)) and (step := whole_view(inner)):
        if step.reorders != view.reorders:
            return None
        value, view = inner.inputs[0], step.then(view)
        if view.is_nothing:
            return value
    return None


def _done_to_base(
    node: Node, rebuilt: NodeList, reads: Mapping[int, int]
) -> Value | None:
    """Do to the base what is done to a view of it, place by place, and then undone."""
    view = whole_view(node)
    inner = rebuilt.makers.get(node.inputs[0].id) if view else None
    if view is None or inner is None or not _is_even(inner):
        return None
    if reads.get(inner.outputs[0].id, 0) != 1:
        return None
    bases = {v.id: _base(view, v, rebuilt) for v in inner.inputs}
    if not any(bases.values()):
        return None
    names: dict[int, Value] = {}
    for value in inner.inputs:
        kind = TensorType(value.type.dtype, view.after.dims)
        arguments = (value, *view.settings)
        names[value.id] = bases[value.id] or rebuilt.add(
            view.op, arguments, kind, view.source
        )
    done = rename_node(inner, names)
    return rebuilt.add(done.op, done.arguments, view.after, done.source)


def _is_even(node: Node) -> bool:
    """Tell whether a node works place by place on values of one size."""
    sizes = {value.type.dims for value in (*node.inputs, *node.outputs)}
    return OPS[node.op].pointwise and len(node.outputs) == 1 and len(sizes) == 1
