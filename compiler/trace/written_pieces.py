"""Take what `unbind` gives as selections where a part of it is written.

torch's functional form of a write into such a part makes numbers of all dynamic sizes.
In: a trace that still writes. Out: the same, in which those parts are selected.
"""

import operator

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.kept_layouts import memory_of, written_by

_aten = torch.ops.aten


def select_pieces(exported: ExportedProgram) -> None:
    """Select the parts of what is written, in bodies too."""
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
