"""Which taken nodes make one part: those of one depth.

In: a method, and the nodes that a backend takes. Out: groups of them, such that no way
leads from a group through other nodes back into it.
"""

from kvc.compiler.backends.whole_writes import whole_writes
from kvc.compiler.ir import Method, Node
from kvc.schema.ops import OPS, Aliasing


def groups_of(method: Method, taken: frozenset[int]) -> list[list[int]]:
    """Return the taken nodes by depth, each group in running order.

    A write of a state, or of a caller's array, is as deep as what reads the old value:
    a part that read both the old and the new one would need a copy of the old. So is a
    node outside of the parts that makes a whole new content.
    """
    depths: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    inside: dict[int, bool] = {}
    homes = _Homes(method)
    for i, node in enumerate(method.nodes):
        depth = homes.least_depth(node, i in taken)
        for value in node.inputs:
            left = i in taken and not inside.get(value.id, False)
            depth = max(depth, depths.get(value.id, 0) + left)
        for value in node.outputs:
            depths[value.id], inside[value.id] = depth, i in taken
        if i in taken:
            groups.setdefault(depth, []).append(i)
            homes.note_reads(node, depth)
        homes.note_results(node)
    return [groups[depth] for depth in sorted(groups)]


class _Homes:
    """Which values lie in memory that a method writes over, and how deep it is read."""

    def __init__(self, method: Method) -> None:
        written = {name for _, name in method.input_out}
        named = zip(method.inputs, method.input_names, strict=True)
        owned = [value for value, name in named if name in written]
        owned += [value for value, _ in method.state_in]
        # Value -> the content that it is or looks at: the old one, or a write's result.
        self._content = {value.id: value.id for value in owned}
        self._read: dict[int, int] = {}
        # Whole new content -> the old one.
        self._replaced = {w.maker.outputs[0].id: w.old.id for w in whole_writes(method)}

    def least_depth(self, node: Node, taken: bool) -> int:
        """Return how deep what is overwritten by a node is read, 0 if by no part."""
        if OPS[node.op].aliasing is Aliasing.UPDATE:
            return self._read.get(self._content.get(node.inputs[0].id, -1), 0)
        made = [] if taken else [self._replaced.get(v.id, -1) for v in node.outputs]
        return max((self._read.get(old, 0) for old in made), default=0)

    def note_reads(self, node: Node, depth: int) -> None:
        """Note what a part of a depth reads."""
        for value in node.inputs:
            content = self._content.get(value.id)
            if content is not None:
                self._read[content] = max(self._read.get(content, 0), depth)

    def note_results(self, node: Node) -> None:
        """Note which results lie in such memory."""
        kind = OPS[node.op].aliasing
        if kind not in (Aliasing.VIEW, Aliasing.UPDATE) or not node.inputs:
            return
        content = self._content.get(node.inputs[0].id)
        if content is not None:
            for value in node.outputs:
                view = kind is Aliasing.VIEW
                self._content[value.id] = content if view else value.id
