"""Let writes go through `expand` where it repeats nothing, and refuse them elsewhere.

torch's functional form of such a write adds what changed to what was there, which is
rounded, and NaN of infinities. In: a trace that still writes. Out: the same, in which
an `expand` to the same sizes is a view of another kind, or a `CaptureError`.
"""

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.kept_layouts import made_of, written_into
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
    "it writes through what {operator} gives, where elements are there several "
    "times; write into the tensor itself, before it is expanded"
)


def write_unexpanded(method: str, exported: ExportedProgram) -> None:
    """Replace what expands nothing where it is written, in bodies too.

    Raises:
        CaptureError: a write goes through what repeats elements; with its line.
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
    """Yield what is expanded and written through, and what it is made of."""
    into = {each for node in graph.nodes for each in written_into(node)}
    for node in graph.nodes:
        source = _source(node)
        if source is not None and into & made_of(node):
            yield node, source


def _source(node: fx.Node) -> fx.Node | None:
    """Return what a node expands, None where it expands nothing."""
    source: object = None
    if node.target in _EXPANDING:
        source = node.args[0]
    elif node.target is operator.getitem:
        pieces, index = node.args
        if isinstance(pieces, fx.Node) and pieces.target in _LISTS:
            source = pieces.args[0][index]  # type: ignore[index]
    return source if isinstance(source, fx.Node) else None


def _expands_nothing(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether a result has each element once."""
    given, whole = ([_size(n) for n in x.meta["val"].shape] for x in (node, source))
    return [n for n in given if n != 1] == [n for n in whole if n != 1]


def _size(size: int | torch.SymInt) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _replace(node: fx.Node, source: fx.Node) -> None:
    """Let a node be the same view by other operators."""
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
    """Return a new node before another one, a view of a third."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(view, (source, axes))
    made.meta.update({**node.meta, "val": view(source.meta["val"], axes)})
    return made


def _refused(method: str, node: fx.Node) -> CaptureError:
    made = node.all_input_nodes[0] if node.target is operator.getitem else node
    reason = _REASON.format(operator=getattr(made.target, "_opname", made.name))
    return CaptureError(method=method, place=at_source_of(node.meta), reason=reason)
