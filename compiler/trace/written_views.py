"""Allow writes through an `expand` that repeats no element; refuse all other expands.

torch's functional form of a write through an `expand` adds a difference to the old
content, which rounds, and turns infinities into NaN. In: a trace that still contains
writes. Out: the same trace, in which a written `expand` that repeats no element is
replaced by other views; or a `CaptureError`.
"""

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.body_writes import views_of
from kvc.compiler.trace.kept_layouts import made_of, memory_of, written_by, written_into
from kvc.compiler.trace.sources import at_source_of
from kvc.schema.errors import CaptureError

_aten = torch.ops.aten
_EXPANDING = {
    _aten.broadcast_to.default,
    _aten.expand.default,
    _aten.expand_as.default,
}
_LISTS = {
    _aten.broadcast_tensors.default,
    _aten.meshgrid.default,
    _aten.meshgrid.indexing,
}
_REASON = (
    "it writes through the result of {operator}, which repeats elements; write "
    "into the tensor itself, before it is expanded"
)


def write_unexpanded(method: str, exported: ExportedProgram) -> None:
    """Replace written `expand`s that repeat no element by other views, also in bodies.

    Raises:
        CaptureError: a write goes through an expand that repeats elements; the error
            has the line.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            found = [*_written(module.graph)]
            for node, source in found:
                if not _expands_nothing(node, source):
                    raise _refused(method, node)
                _replace(node, source)
            if found:
                module.recompile()


def _written(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield (expanded tensor, tensor that it expands) for each written `expand`."""
    into = {each for node in graph.nodes for each in written_into(node)}
    for node in graph.nodes:
        source = _source(node)
        if source is not None and into & made_of(node):
            yield node, source


def _source(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a node expands, None if the node is no `expand`."""
    source: object = None
    if node.target in _EXPANDING:
        source = node.args[0]
    elif node.target is operator.getitem:
        pieces, index = node.args
        if isinstance(pieces, fx.Node) and pieces.target in _LISTS:
            source = pieces.args[0][index]  # type: ignore[index]
    return source if isinstance(source, fx.Node) else None


def _expands_nothing(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether an expanded tensor has each element of `source` once."""
    given, whole = ([_size(n) for n in x.meta["val"].shape] for x in (node, source))
    return [n for n in given if n != 1] == [n for n in whole if n != 1]


def _size(size: int | torch.SymInt) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _replace(node: fx.Node, source: fx.Node) -> None:
    """Compute an `expand` by squeeze and unsqueeze of `source` instead."""
    shape, own = node.meta["val"].shape, source.meta["val"].shape
    taken = [axis for axis, size in enumerate(own) if _size(size) == 1]
    added = [axis for axis, size in enumerate(shape) if _size(size) == 1]
    made = _viewed(node, source, _aten.squeeze.dims, taken) if taken else source
    for axis in added:
        made = _viewed(node, made, _aten.unsqueeze.default, axis)
    node.target, node.args, node.kwargs = _aten.alias.default, (made,), {}


def _viewed(
    node: fx.Node, source: fx.Node, view: torch._ops.OpOverload, axes: int | list[int]
) -> fx.Node:
    """Insert a view of `source` before a node."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(view, (source, axes))
    made.meta.update({**node.meta, "val": view(source.meta["val"], axes)})
    return made


def _refused(method: str, node: fx.Node) -> CaptureError:
    made = node.all_input_nodes[0] if node.target is operator.getitem else node
    reason = _REASON.format(operator=getattr(made.target, "_opname", made.name))
    return CaptureError(method=method, place=at_source_of(node.meta), reason=reason)


# Replace results of `unbind` by selections where they are written.


def select_pieces(exported: ExportedProgram) -> None:
    """Replace written items of `unbind` by selections, also in bodies."""
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule) and _select_pieces(module.graph):
            module.recompile()


def _select_pieces(graph: fx.Graph) -> bool:
    written = {memory for node in graph.nodes for memory in written_by(node)} - {None}
    taken = [
        node
        for node in graph.nodes
        if node.target is operator.getitem
        and node.args[0].target is _aten.unbind.int
        and memory_of(node) in written
    ]
    for node in taken:
        pieces, index = node.args
        whole, *dim = pieces.args
        node.target, node.args = _aten.select.int, (whole, *(dim or [0]), index)
    return bool(taken)


# Refuse writes through `unfold` windows that do not hold each element once.


_UNFOLD = torch.ops.aten.unfold.default
_WINDOW_REASON = (
    "it writes into windows of unfold({dimension}, {size}, {step}), which torch cannot "
    "trace where some elements are in no window, or in two; write each window through "
    ".narrow({dimension}, start, {size})"
)


def refuse_written_windows(method: str, exported: ExportedProgram) -> None:
    """Refuse writes through windows of `unfold` that overlap or leave gaps.

    Raises:
        CaptureError: there is such a write; the error has its line and a remedy.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node, windows in _written_windows(module.graph):
                dimension, size, step = windows.args[1:]
                raise CaptureError(
                    method=method,
                    place=at_source_of(node.meta),
                    reason=_WINDOW_REASON.format(
                        dimension=dimension, size=size, step=step
                    ),
                )


def _written_windows(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield (write, windows) for each call that writes through windows of `unfold`."""
    for node in graph.nodes:
        for into in written_into(node):
            for view in views_of(into):
                if view.target is _UNFOLD and not _covers(view):
                    yield node, view


def _covers(windows: fx.Node) -> bool:
    """Tell whether windows have each element of their axis once, at all sizes."""
    whole, dimension, size, step = windows.args
    assert isinstance(whole, fx.Node)
    assert isinstance(dimension, int)
    sizes = whole.meta["val"].shape
    if size != step or not sizes:
        return False
    rest: object = sizes[dimension] % step
    return isinstance(rest, int) and rest == 0
