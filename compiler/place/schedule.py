"""A method's nodes while they are being reordered: a graph with extra edges.

In: a method. Out: the method in an order that respects the data flow and every added
edge, and that keeps the old order of nodes between which there is no such constraint.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace

from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.compiler.ir.control import arguments_of, control_of
from kvc.compiler.ir.rewrite import rename_node, rename_results
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType

# EARLY, USUAL or LATE; old position; 0 for a node inserted just before it.
Rank = tuple[int, int, int]
EARLY, USUAL, LATE = range(3)


class Schedule:
    """The nodes of one method by key; a node keeps its key when it is changed."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.nodes: dict[int, Node] = {}
        self.ranks: dict[int, Rank] = {}
        self.makers: dict[int, int] = {}  # value id -> key
        self._users: dict[int, list[int]] = {}  # value id -> keys
        self._later: dict[int, set[int]] = {}  # key -> keys that must come after it
        self._count = method.next_id()
        for i, node in enumerate(method.nodes):
            self._insert(node, (USUAL, i, 1))

    def fresh(self, kind: TensorType) -> Value:
        """Return a new value with an unused id."""
        self._count += 1
        return Value(self._count - 1, kind)

    def add_closing(self, node: Node) -> int:
        """Add a node after all others; return its key."""
        return self._insert(node, (LATE, len(self.nodes), 1))

    def add_before(self, key: int, node: Node) -> int:
        """Add a node just before the node `key`; return its key."""
        group, place, _ = self.ranks[key]
        added = self._insert(node, (group, place, 0))
        self.order(added, key)
        return added

    def order(self, first: int, then: int) -> None:
        """Add an edge: node `first` must run before node `then`."""
        self._later.setdefault(first, set()).add(then)

    def rename(
        self, key: int, old: Value, new: Value, but_target: bool = False
    ) -> None:
        """Let a node read `new` in place of `old`.

        With `but_target`, the operand that the node overwrites stays `old`.
        """
        node = self.nodes[key]
        renamed = rename_node(node, {old.id: new})
        if but_target:
            renamed = replace(renamed, arguments=_keeping_target(node, renamed))
        self.nodes[key] = renamed
        if old not in renamed.inputs:
            self._users[old.id] = [k for k in self.users(old.id) if k != key]
        self._users.setdefault(new.id, []).append(key)

    def users(self, value: int) -> list[int]:
        """Return the keys of the nodes that read a value."""
        return self._users.get(value, [])

    def closure(self, value: Value) -> dict[int, Value]:
        """Return value id -> value, for a value and all views of it."""
        found = {value.id: value}
        stack = [value.id]
        while stack:
            for key in self.users(stack.pop()):
                node = self.nodes[key]
                if OPS[node.op].aliasing is Aliasing.VIEW:
                    stack += [v.id for v in node.outputs if v.id not in found]
                    found.update((v.id, v) for v in node.outputs)
        return found

    def descendants(self, key: int) -> set[int]:
        """Return the keys of all nodes that must run after node `key`."""
        found: set[int] = set()
        stack = [key]
        while stack:
            for then in self._followers(stack.pop()):
                if then not in found:
                    found.add(then)
                    stack.append(then)
        return found

    def finish(self, keys: Iterable[int]) -> Method:
        """Return the method with its nodes in the order of `keys`."""
        return replace(self.method, nodes=tuple(self.nodes[key] for key in keys))

    def sorted(self) -> list[int]:
        """Return the keys of all nodes in running order."""
        waiting = dict.fromkeys(self.nodes, 0)
        followers = {key: set(self._followers(key)) for key in self.nodes}
        for keys in followers.values():
            for key in keys:
                waiting[key] += 1
        ready = [(self.ranks[key], key) for key, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, key = heapq.heappop(ready)
            order.append(key)
            for then in followers[key]:
                waiting[then] -= 1
                if not waiting[then]:
                    heapq.heappush(ready, (self.ranks[then], then))
        assert len(order) == len(self.nodes), "the edges form a cycle"
        return order

    def rename_outputs(self, old: Value, new: Value) -> None:
        """Replace `old` by `new` among the outputs of the method."""
        kept = self.method
        renamed = rename_results(kept, {old.id: new})
        self.method = replace(kept, outputs=renamed.outputs)

    def _insert(self, node: Node, rank: Rank) -> int:
        key = len(self.nodes)
        self.nodes[key], self.ranks[key] = node, rank
        for value in dict.fromkeys(v.id for v in node.inputs):
            self._users.setdefault(value, []).append(key)
        self.makers.update((value.id, key) for value in node.outputs)
        return key

    def _followers(self, key: int) -> Iterable[int]:
        for value in self.nodes[key].outputs:
            yield from self.users(value.id)
        yield from self._later.get(key, ())


def _keeping_target(node: Node, renamed: Node) -> tuple[Argument, ...]:
    """Return the arguments of a renamed node, but with the operands it overwrites.

    Those operands are as they were before the node was renamed.
    """
    control, changed = control_of(node), control_of(renamed)
    if control is None or changed is None:
        return (node.arguments[0], *renamed.arguments[1:])
    operands = tuple(
        before if i in control.over else after
        for i, (before, after) in enumerate(
            zip(control.operands, changed.operands, strict=True)
        )
    )
    return arguments_of(replace(changed, operands=operands))
