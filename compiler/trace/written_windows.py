"""Refuse writes through windows of `unfold` that do not hold each element once.

torch's functional form of such a write adds the windows up over zeros, so that other
elements would become zeros, and those of two windows a sum. Windows with a whole step
of room after the last one are views of another kind here (`rephrased`). In: a trace
that still writes. Out: nothing, or a `CaptureError` with the line and the remedy.
"""

from collections.abc import Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.body_writes import views_of
from kvc.compiler.trace.kept_layouts import written_into
from kvc.compiler.trace.sources import at_source_of
from kvc.schema.errors import CaptureError

_UNFOLD = torch.ops.aten.unfold.default
_REASON = (
    "it writes into windows of unfold({dimension}, {size}, {step}), which torch cannot "
    "trace where some elements are in no window, or in two; write each window through "
    ".narrow({dimension}, start, {size})"
)


def refuse_written_windows(method: str, exported: ExportedProgram) -> None:
    """Raise where a method or a body of it writes through such windows.

    Raises:
        CaptureError: with the line and the remedy.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node, windows in _written_windows(module.graph):
                dimension, size, step = windows.args[1:]
                reason = _REASON.format(dimension=dimension, size=size, step=step)
                place = at_source_of(node.meta)
                raise CaptureError(method=method, place=place, reason=reason)


def _written_windows(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield calls that write, and the windows that they write through."""
    for node in graph.nodes:
        for into in written_into(node):
            for view in views_of(into):
                if view.target is _UNFOLD and not _covers(view):
                    yield node, view


def _covers(windows: fx.Node) -> bool:
    """Tell whether windows hold each element of their axis once, at all sizes."""
    whole, dimension, size, step = windows.args
    assert isinstance(whole, fx.Node)
    assert isinstance(dimension, int)
    sizes = whole.meta["val"].shape
    if size != step or not sizes:
        return False
    rest: object = sizes[dimension] % step
    return isinstance(rest, int) and rest == 0
