"""Keep results laid out as the trace saw them where something is written through views.

torch tells by strides whether `x.reshape(-1)` is a view of x. Where the operator that
made x is then computed by others, whose result has other strides, the same call would
be a copy, and what is written through it would be lost. In: a trace that still writes.
Out: the same, in which such results are copied into the layout that they had.
"""

from collections.abc import Container, Sequence

import torch
from torch import Tensor, fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram
from torch.fx.node import Argument

from kvc.compiler.capture.real_layouts import check_layout

_aten = torch.ops.aten
# Views of some layouts, copies or errors for others.
_BY_LAYOUT = {
    _aten.contiguous.default,
    _aten.flatten.using_ints,
    _aten.ravel.default,
    _aten.reshape.default,
    _aten.reshape_as.default,
    _aten.view.default,
    _aten.view_as.default,
}


def keep_layouts(method: str, exported: ExportedProgram) -> None:
    """Copy what is written, and seen through a view that its layout allows.

    Raises:
        CaptureError: the trace has the layout of such a result wrong.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _keep(method, module)


def _keep(method: str, module: fx.GraphModule) -> None:
    nodes = [*module.graph.nodes]
    written = {memory for node in nodes for memory in _written(node)} - {None}
    seen = [_memory(node) for node in nodes if node.target in _BY_LAYOUT]
    made: dict[object, fx.Node] = {}  # memory -> the first node that lies in it
    for node in nodes:
        made.setdefault(_memory(node), node)
    makers = [made[memory] for memory in dict.fromkeys(seen) if memory in written]
    for source in _sources(nodes, written):
        check_layout(method, made[source])
    for maker in makers:
        if maker.op == "call_function" and is_contiguous_or_false(maker.meta["val"]):
            _lay_out(maker)
    if makers:
        module.recompile()


def _sources(nodes: Sequence[fx.Node], written: Container[object]) -> list[object]:
    """Return the memory of what is seen by its layout, if it or that is written."""
    found: dict[object, None] = {}
    for node in nodes:
        if node.target in _BY_LAYOUT:
            source = _memory(node.all_input_nodes[0])
            if source is not None and (source in written or _memory(node) in written):
                found[source] = None
    return [*found]


def _written(node: fx.Node) -> list[object]:
    """Return the memory of what a call writes into."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    names = [each.name for each in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    into = [
        given.get(each.name)
        for each in node.target._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return [_memory(each) for each in into if isinstance(each, fx.Node)]


def _memory(node: fx.Node) -> object:
    """Return the memory of a node's tensor, None where it has none of its own."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _lay_out(maker: fx.Node) -> None:
    """Let all that read a node's tensor, which lies in order, read a copy in order."""
    order: dict[str, Argument] = {"memory_format": torch.contiguous_format}
    with maker.graph.inserting_after(maker):
        copy = maker.graph.call_function(_aten.clone.default, (maker,), order)
    copy.meta.update(maker.meta)
    maker.replace_all_uses_with(copy, lambda user: user is not copy)
