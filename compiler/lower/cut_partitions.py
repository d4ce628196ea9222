"""Move the nodes that a backend runs out of a method, into few partitions.

The nodes are grouped by depth. The depth of a node is how many times a path to the node
enters the backend's nodes from other nodes. All of the backend's nodes of one depth are
one partition: a block that one `kvc::delegate` node runs. No path leads from a
partition through other nodes back into it, since that would increase the depth; so each
partition can run as one call. The caller passes the memory that a partition writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvc.compiler.analysis.growable import Growable
from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.partitions import Partition
from kvc.compiler.ir.rewrite import rename_node
from kvc.compiler.lower.group_nodes import (
    Waits,
    groups_of,
    whole_writes,
    without_writers,
)
from kvc.schema.ops import AFTER, DELEGATE, OPS, Aliasing


@dataclass(frozen=True, slots=True)
class Outlined:
    """A method that calls partitions, and the partitions' graphs, which are blocks."""

    method: Method
    partitions: tuple[Partition, ...]


def outline(
    method: Method,
    taken: frozenset[int],
    base: int,
    growable: Growable,
    waits: Waits,
    in_place: bool = False,
    foreign: frozenset[int] = frozenset(),
) -> Outlined:
    """Replace the nodes of a method that a backend takes by calls of partitions.

    Args:
        method: the method, its nodes in write order.
        taken: indices of the nodes that the backend runs.
        base: number of the first partition's block.
        growable: the values whose memory has spare capacity.
        waits: index of a write -> indices of the readers that must run before it.
        in_place: the attribute `Backend.in_place` of the backend.
        foreign: indices of the views that the backend cannot make itself.
    """
    taken = frozenset(
        i for i in taken if method.nodes[i].op != "kvc::append" or i in waits
    )
    if not in_place:
        taken = without_writers(method, taken, waits)
    taken = _without_fringe(method, taken)
    groups = groups_of(method, taken, waits)
    while leaving := _starts_that_leave(method, groups):
        taken -= leaving
        groups = groups_of(method, taken, waits)
    cutter = _Cutter(method, taken, growable, in_place, foreign)
    graphs = [cutter.partition(base + i, indices) for i, indices in enumerate(groups)]
    calls = {
        indices[-1]: _call(method, graph)
        for indices, graph in zip(groups, graphs, strict=True)
    }
    nodes = [
        calls.get(i, node)
        for i, node in enumerate(method.nodes)
        if i not in taken or i in calls
    ]
    changed = replace(method, nodes=_in_running_order(method, cutter.clones + nodes))
    partitions = tuple(map(Partition, graphs))
    return Outlined(_without_unread_constants(changed), partitions)


def _starts_that_leave(
    method: Method, groups: Sequence[Sequence[int]]
) -> frozenset[int]:
    """Return the indices of the `AFTER` nodes whose result another partition reads.

    Nodes outside of all partitions count as readers too. The verifier knows nothing
    about a value that a partition returns, so it could not check that the value is a
    position after a cursor.
    """
    partition_of = {i: number for number, group in enumerate(groups) for i in group}
    made = {
        node.outputs[0].id: i for i, node in enumerate(method.nodes) if node.op == AFTER
    }
    return frozenset(
        made[value.id]
        for i, node in enumerate(method.nodes)
        for value in node.inputs
        if value.id in made
        and made[value.id] in partition_of
        and partition_of.get(i) != partition_of[made[value.id]]
    )


def _call(method: Method, partition: Method) -> Node:
    """Return a call of a partition, with the source line of a node in the partition.

    A node that writes a state or an input is preferred.
    """
    kept = {v.id for v, _ in (*method.state_out, *method.input_out)}
    writers = [n for n in partition.nodes if any(v.id in kept for v in n.outputs)]
    source = next((n.source for n in (*writers, *partition.nodes) if n.source), "")
    over = (None,) * len(partition.outputs)
    return Node(
        DELEGATE, (partition.block, partition.inputs, over), partition.outputs, source
    )


def _without_unread_constants(method: Method) -> Method:
    read = {value.id for node in method.nodes for value in node.inputs}
    read.update(value.id for value in method.results)
    return replace(
        method, constants=tuple(b for b in method.constants if b[0].id in read)
    )


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW


def _without_fringe(method: Method, taken: frozenset[int]) -> frozenset[int]:
    """Remove views from `taken` that nodes outside of it read, or no node in it reads.

    A view outside of a partition costs nothing, and a partition returns only memory
    that it fills itself.
    """
    kept = set(taken)
    results = {value.id for value in method.results}
    changed = True
    while changed:
        changed = False
        inner_reads: set[int] = set()
        outer_reads = set(results)
        for i, node in enumerate(method.nodes):
            reads = inner_reads if i in kept else outer_reads
            reads.update(value.id for value in node.inputs)
        for i in sorted(kept):
            node = method.nodes[i]
            if not _is_view(node):
                continue
            if any(value.id in outer_reads for value in node.outputs) or not any(
                value.id in inner_reads for value in node.outputs
            ):
                kept.discard(i)
                changed = True
                break
    return frozenset(kept)


class _Cutter:
    """Makes the partitions of one method.

    Attributes:
        clones: nodes to add to the method: copies of the values that a partition cannot
            read in their own memory.
    """

    def __init__(
        self,
        method: Method,
        taken: frozenset[int],
        growable: Growable,
        in_place: bool,
        foreign: frozenset[int],
    ) -> None:
        self._method, self._taken, self._in_place = method, taken, in_place
        self._constants = {value.id: (value, name) for value, name in method.constants}
        views = {
            value.id: i
            for i, node in enumerate(method.nodes)
            if i not in taken and _is_view(node)
            for value in node.outputs
        }
        self._views = {v: method.nodes[i] for v, i in views.items() if i not in foreign}
        foreign_views = {v for v, i in views.items() if i in foreign}
        self._strided = foreign_views if in_place else {*growable, *views}
        self._whole_writes = {write.index: write.old for write in whole_writes(method)}
        self._count = method.next_id()
        self._cloned: dict[int, Value] = {}
        self.clones: list[Node] = []

    def partition(self, block: int, indices: Sequence[int]) -> Method:
        """Return nodes as a block, whose outputs are the values read outside of it."""
        method = self._method
        nodes = [method.nodes[i] for i in indices]
        if self._in_place:
            nodes = self._with_views(nodes)
        nodes = self._in_order(nodes)
        defined = {value.id for node in nodes for value in node.outputs}
        read = {value.id: value for node in nodes for value in node.inputs}
        inputs = {
            v.id: v
            for v in read.values()
            if v.id not in defined and v.id not in self._constants
        }
        filled = (self._whole_writes[i] for i in indices if i in self._whole_writes)
        inputs.update((old.id, old) for old in filled)
        inside = set(indices)
        outside_reads = {value.id for value in method.results}
        for i, node in enumerate(method.nodes):
            if i not in inside:
                outside_reads.update(value.id for value in node.inputs)
        made = [value for i in indices for value in method.nodes[i].outputs]
        return replace(
            method,
            name=f"{method.name}.{block}",
            role="",
            inputs=tuple(inputs.values()),
            input_names=tuple(f"%{key}" for key in inputs),
            position="",
            input_tree="",
            output_tree="",
            constants=tuple(self._constants[i] for i in read if i in self._constants),
            state_in=(),
            cursor_in=(),
            state_out=(),
            input_out=(),
            nodes=tuple(nodes),
            outputs=tuple(value for value in made if value.id in outside_reads),
            block=block,
            filled=(),
            in_place=self._in_place,
        )

    def _with_views(self, nodes: Sequence[Node]) -> list[Node]:
        """Add a copy of each view node that `nodes` read, except `foreign` views."""
        names: dict[int, Value] = {}
        found: list[Node] = []

        def add(node: Node) -> None:
            for value in node.inputs:
                view = self._views.get(value.id)
                if view is not None and value.id not in names:
                    add(view)
            renamed = rename_node(node, names)
            if node.outputs and node.outputs[0].id in self._views:
                fresh = tuple(self._fresh(value) for value in node.outputs)
                pairs = zip(node.outputs, fresh, strict=True)
                names.update((old.id, new) for old, new in pairs)
                renamed = replace(renamed, outputs=fresh)
            found.append(renamed)

        for node in nodes:
            add(node)
        return found

    def _in_order(self, nodes: Sequence[Node]) -> list[Node]:
        """Let nodes read clones of values that a partition cannot read in place.

        Such values are views, or have spare capacity.
        """
        for value in dict.fromkeys(v for node in nodes for v in node.inputs):
            if value.id in self._strided and value.id not in self._cloned:
                clone = self._cloned[value.id] = self._fresh(value)
                self.clones.append(Node("aten::clone", (value,), (clone,)))
        return [rename_node(node, self._cloned) for node in nodes]

    def _fresh(self, value: Value) -> Value:
        self._count += 1
        return Value(self._count - 1, value.type)


def _in_running_order(method: Method, nodes: list[Node]) -> tuple[Node, ...]:
    """Order the nodes so that each follows the nodes whose results it reads.

    Calls of partitions run as early as possible, so that a state that they read still
    has its old content; the other nodes keep their order if they can.
    """
    ready = {value.id for value in (*method.inputs, *method.bound)}
    makers = {value.id: node for node in nodes for value in node.outputs}
    calls = [node for node in nodes if node.op == DELEGATE]
    order: dict[int, Node] = {}  # keyed by identity

    def run(node: Node) -> None:
        if id(node) not in order:
            order[id(node)] = node
            ready.update(value.id for value in node.outputs)

    def run_ready_calls() -> None:
        for call in calls:
            if all(value.id in ready for value in call.inputs):
                run(call)

    run_ready_calls()
    for node in nodes:
        stack = [node]
        while stack:
            missing = [makers[v.id] for v in stack[-1].inputs if v.id not in ready]
            if not missing:
                run(stack.pop())
                run_ready_calls()
            stack += missing
            assert len(stack) <= len(nodes) ** 2, "partitions depend on each other"
    return tuple(order.values())
