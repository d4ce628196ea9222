"""Backends whose partitions the run-time half lowers to primitives.

The host checks write positions and lengths of caches before the device runs, so a
backend does not take cache operators whose positions or lengths the device computes.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from kvc.compiler.backends.base import BlockBackend, able_nodes, views_left
from kvc.compiler.ir import Method, Node, Value
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

# Arguments that the host reads before the device runs: the write position and row
# lengths of a cache update; the valid length and row lengths of attention.
_OF_THE_HOST: Final = {CACHE_UPDATE: (2, 5), ATTENTION: (3, 15)}


class LoweredBackend(BlockBackend):
    """Takes whole methods, at fixed shapes.

    Attributes:
        anchors: operators of which at least one must be in a method that is taken;
            empty if any operator is enough.
    """

    fixed_shapes = True
    anchors: ClassVar[frozenset[str]] = frozenset()

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take."""
        able = able_nodes(method, self.supported)
        while wrong := _unfit(able):
            able = {i: node for i, node in able.items() if i not in wrong}
        worth = not self.anchors or any(n.op in self.anchors for n in able.values())
        return frozenset(able if worth else ())

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the indices of views that the device does not support."""
        return views_left(method, self.supported)


def _unfit(taken: Mapping[int, Node]) -> frozenset[int]:
    """Return the indices of nodes whose arguments the device would compute too late.

    The host reads these arguments before the device runs.
    """
    made: set[int] = set()
    wrong: set[int] = set()
    for index, node in sorted(taken.items()):
        if made & _read_by_host(node):
            wrong.add(index)
        is_view = OPS[node.op].aliasing is Aliasing.VIEW
        if not (is_view and not made & {value.id for value in node.inputs}):
            made |= {value.id for value in node.outputs}
    return frozenset(wrong)


def _read_by_host(node: Node) -> frozenset[int]:
    """Return the ids of the arguments that the host reads before the device runs."""
    if OPS[node.op].aliasing is Aliasing.CHECK:
        return frozenset(value.id for value in node.inputs)
    arguments = (node.arguments[n] for n in _OF_THE_HOST.get(node.op, ()))
    return frozenset(each.id for each in arguments if isinstance(each, Value))
