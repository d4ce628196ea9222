"""Group the nodes that a backend takes into partitions, by depth.

In: a method whose nodes are in write order, what each write waits for, and the nodes
that a backend takes. Out: groups of these nodes. No path leads from a group through
other nodes back into it, neither by data nor by what is overwritten.
"""

from collections.abc import Mapping, Set

from kvc.compiler.ir import Method

Waits = Mapping[int, Set[int]]  # a write -> the readers of what it overwrites


def groups_of(method: Method, taken: frozenset[int], waits: Waits) -> list[list[int]]:
    """Return the taken nodes by depth, each group in running order.

    The depth of a node is how many times the way to it enters the taken nodes from
    outside. The way leads through what it reads, and through the readers of what it
    overwrites, which come before it.
    """
    depths: list[int] = []
    groups: dict[int, list[int]] = {}
    makers = {v.id: i for i, node in enumerate(method.nodes) for v in node.outputs}
    for i, node in enumerate(method.nodes):
        before = {makers[value.id] for value in node.inputs if value.id in makers}
        before |= waits.get(i, frozenset())
        depth = int(i in taken)
        for one in before:
            enters = i in taken and one not in taken
            depth = max(depth, depths[one] + enters)
        depths.append(depth)
        if i in taken:
            groups.setdefault(depth, []).append(i)
    return [groups[depth] for depth in sorted(groups)]
