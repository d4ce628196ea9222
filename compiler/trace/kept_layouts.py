"""Keep the traced memory layout of results that are written through views.

torch tells by strides whether `x.reshape(-1)` is a view of x. If the operator that
computes x is later decomposed into operators that give x different strides, the
reshape becomes a copy, and a write through it is lost. In: a trace that still contains
writes. Out: the same trace, in which each such x is copied into the layout that x has
in the trace, or into the real layout that `real_layouts` finds.
"""

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram
from torch.fx.node import Argument

from kvc.compiler.trace.guard import written_arguments
from kvc.compiler.trace.real_layouts import Order, wrong_in_trace
from kvc.schema.errors import CaptureError

_aten = torch.ops.aten
# Operators whose result is a view for some layouts, and a copy or error for others.
_BY_LAYOUT = {
    _aten.contiguous.default,
    _aten.flatten.using_ints,
    _aten.ravel.default,
    _aten.reshape.default,
    _aten.reshape_as.default,
    _aten.view.default,
    _aten.view_as.default,
}

CONVERSIONS = {_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device, _aten.to.other}

_REASON = (
    "it writes through a view of the result of {operator}, whose order in memory is "
    "wrong in torch's trace; use .clone(memory_format=torch.contiguous_format) of the "
    "result before it is reshaped and written"
)


def keep_layouts(method: str, exported: ExportedProgram) -> None:
    """Copy a tensor into its traced layout if views of it and writes need that layout.

    This is so if the tensor is written and a layout-dependent operator views it.
    Tensors whose layout is wrong in the trace are copied into their real layout.

    Raises:
        CaptureError: such a tensor is not contiguous in any order of its axes.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _keep(method, module)


def _keep(method: str, module: fx.GraphModule) -> None:
    nodes = [*module.graph.nodes]
    made: dict[object, fx.Node] = {}  # memory -> the first node that lies in it
    for node in nodes:
        made.setdefault(memory_of(node), node)
    orders = _orders(method, nodes, made)
    for maker, order in orders.items():
        # All readers of the node's tensor read a copy with this order of axes.
        users = [*maker.users]
        back = [order.index(axis) for axis in range(len(order))]
        copied = _added(maker, _aten.permute.default, [*order])
        copied = _added(
            copied, _aten.clone.default, memory_format=torch.contiguous_format
        )
        copied = _added(copied, _aten.permute.default, back)
        maker.replace_all_uses_with(copied, users.__contains__)
    if orders:
        module.recompile()


def _orders(
    method: str, nodes: Sequence[fx.Node], made: Mapping[object, fx.Node]
) -> Mapping[fx.Node, Order]:
    """Return node -> order of axes in memory, for nodes whose results are copied."""
    written = {memory for node in nodes for memory in written_by(node)} - {None}
    seen = {memory_of(node) for node in nodes if is_by_layout(node)} & written
    wrong = wrong_in_trace([made[memory] for memory in _sources(nodes, written)])
    orders: dict[fx.Node, Order] = {}
    # Nodes that are a view or a copy depending on the order of axes of `wrong`.
    undecided = {*wrong}
    for node in nodes:
        memory = memory_of(node)
        if memory is None or made[memory] is not node:
            continue
        by_layout = is_by_layout(node)
        if by_layout and made.get(memory_of(node.all_input_nodes[0])) in undecided:
            undecided.add(node)
        elif node in wrong:
            orders[node] = _in_one_piece(method, node, wrong[node])
        elif memory in seen and _is_made_in_order(node):
            orders[node] = range(node.meta["val"].ndim)
    return orders


def is_by_layout(node: fx.Node) -> bool:
    """Tell whether a call returns a view for some layouts, and a copy for others."""
    told = (*node.args, *node.kwargs.values())
    in_order = any(isinstance(each, torch.memory_format) for each in told)
    return node.target in _BY_LAYOUT or (node.target in CONVERSIONS and in_order)


def _is_made_in_order(node: fx.Node) -> bool:
    return node.op == "call_function" and is_contiguous_or_false(node.meta["val"])


def _in_one_piece(method: str, node: fx.Node, order: Order | None) -> Order:
    if order is None:
        reason = _REASON.format(operator=getattr(node.target, "_opname", node.name))
        raise CaptureError(method=method, place="", reason=reason)
    return order


def _sources(nodes: Sequence[fx.Node], written: Container[object]) -> list[object]:
    """Return the memories of written tensors that a layout-dependent operator views.

    A write through the view counts as a write into the tensor.
    """
    found: dict[object, None] = {}
    for node in nodes:
        if is_by_layout(node):
            source = memory_of(node.all_input_nodes[0])
            if source is not None and (source in written or memory_of(node) in written):
                found[source] = None
    return [*found]


def written_by(node: fx.Node) -> list[object]:
    """Return the identities of the memories that a call writes into."""
    return [memory_of(each) for each in written_into(node)]


def written_into(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a call writes into, also by `out=` or in a list."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    found: list[object] = []
    for into in written_arguments(node.target, node.args, node.kwargs):
        found += into if isinstance(into, Sequence) else [into]
    return [each for each in found if isinstance(each, fx.Node)]


def made_of(node: fx.Node) -> set[fx.Node]:
    """Return a node, and all nodes computed from it whose result is in its memory."""
    found, left = {node}, [node]
    while left:
        for user in left.pop().users:
            if user not in found and memory_of(node) in _memories(user):
                found.add(user)
                left.append(user)
    return found


def _memories(node: fx.Node) -> list[object]:
    """Return the identities of the memory of a node's tensor, or list of tensors."""
    value = node.meta.get("val")
    if not isinstance(value, list | tuple):
        return [memory_of(node)]
    return [each.untyped_storage()._cdata for each in value if isinstance(each, Tensor)]


def memory_of(node: fx.Node) -> object:
    """Return an identity of the memory of a node's tensor.

    Return None if the node has no tensor with strides.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _added(
    node: fx.Node, target: torch._ops.OpOverload, *args: list[int], **kwargs: Argument
) -> fx.Node:
    """Insert a call after a node, with the node as its first argument; return the call.

    If the other arguments are all axes in order, insert nothing and return the node.
    """
    if args == ([*range(node.meta["val"].ndim)],):
        return node
    with node.graph.inserting_after(node):
        added = node.graph.call_function(target, (node, *args), kwargs)
    added.meta.update({**node.meta, "val": target(node.meta["val"], *args, **kwargs)})
    return added
