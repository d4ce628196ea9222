"""Cut the nodes that a backend takes out of a method, in parts as large as they come.

Nodes are grouped by depth: how many times the way to them leaves the backend's
nodes. All of the backend's nodes of one depth make one part. No way leads from a
part through other nodes back into it, since that would raise the depth; so each part
can run as one call. A part reads states where they lie. What writes a state over an old
content that the same part would read stays outside, where that is in place.
"""

from dataclasses import dataclass, replace

from kvc.compiler.backends.base import Partition
from kvc.compiler.backends.groups import groups_of
from kvc.compiler.backends.state_writers import without_writers
from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.passes.rewrite import rename_node
from kvc.compiler.passes.rooms import Rooms
from kvc.schema.ops import DELEGATE, OPS, Aliasing


@dataclass(frozen=True, slots=True)
class Outlined:
    """A method with calls for its parts: delegate `base + i` is part i."""

    method: Method
    partitions: tuple[Partition, ...]


def outline(method: Method, taken: frozenset[int], base: int, rooms: Rooms) -> Outlined:
    """Replace the taken nodes of a method by calls of delegates.

    Args:
        method: the method.
        taken: indices of the nodes that the backend runs.
        base: number of the first delegate.
        rooms: the values with room behind them.
    """
    taken = _without_fringe(method, without_writers(method, taken))
    method, taken = _with_inputs_in_order(method, taken, rooms)
    groups = groups_of(method, taken)
    parts = [_partition(method, indices) for indices in groups]
    calls = {
        indices[-1]: _call(method, base + i, part)
        for i, (indices, part) in enumerate(zip(groups, parts, strict=True))
    }
    outlined = {index for indices in groups for index in indices}
    nodes = [
        calls.get(i, node)
        for i, node in enumerate(method.nodes)
        if i not in outlined or i in calls
    ]
    changed = replace(method, nodes=_in_running_order(method, nodes))
    return Outlined(_without_unread_constants(changed), tuple(parts))


def _call(method: Method, number: int, part: Partition) -> Node:
    """Return a part's call; its source is that of a new content of a state, if any."""
    graph = part.graph
    kept = {v.id for v, _ in (*method.state_out, *method.input_out)}
    writers = [n for n in graph.nodes if any(v.id in kept for v in n.outputs)]
    source = next((n.source for n in (*writers, *graph.nodes) if n.source), "")
    return Node(DELEGATE, (number, graph.inputs), graph.outputs, source)


def _without_unread_constants(method: Method) -> Method:
    read = {value.id for node in method.nodes for value in node.inputs}
    read.update(value.id for value in method.results)
    return replace(
        method, constants=tuple(b for b in method.constants if b[0].id in read)
    )


def _with_inputs_in_order(
    method: Method, taken: frozenset[int], rooms: Rooms
) -> tuple[Method, frozenset[int]]:
    """Clone views from outside that a part reads, and renumber the taken nodes."""
    views = set(rooms) | {
        value.id
        for i, node in enumerate(method.nodes)
        if i not in taken and _is_view(node)
        for value in node.outputs
    }
    count = method.next_id()
    clones: dict[int, Value] = {}
    nodes: list[Node] = []
    kept = set()
    for i, node in enumerate(method.nodes):
        if i in taken:
            for value in node.inputs:
                if value.id in views and value.id not in clones:
                    clones[value.id] = Value(count, value.type)
                    count += 1
                    nodes.append(Node("aten::clone", (value,), (clones[value.id],)))
            node = rename_node(node, clones)
            kept.add(len(nodes))
        nodes.append(node)
    return replace(method, nodes=tuple(nodes)), frozenset(kept)


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW


def _without_fringe(method: Method, taken: frozenset[int]) -> frozenset[int]:
    """Leave views outside whose results leave a part: they cost nothing there.

    A part hands over only memory that it fills itself, and takes in memory in order.
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


def _partition(method: Method, indices: list[int]) -> Partition:
    nodes = tuple(method.nodes[i] for i in indices)
    constants = {value.id: (value, name) for value, name in method.constants}
    defined = {value.id for node in nodes for value in node.outputs}
    read = {value.id: value for node in nodes for value in node.inputs}
    inside = set(indices)
    outside_reads = {value.id for value in method.results}
    for i, node in enumerate(method.nodes):
        if i not in inside:
            outside_reads.update(value.id for value in node.inputs)
    inputs = tuple(
        v for v in read.values() if v.id not in defined and v.id not in constants
    )
    outputs = tuple(v for node in nodes for v in node.outputs if v.id in outside_reads)
    graph = replace(
        method,
        role="",
        inputs=inputs,
        input_names=tuple(f"%{value.id}" for value in inputs),
        position="",
        input_tree="",
        output_tree="",
        constants=tuple(constants[i] for i in read if i in constants),
        state_in=(),
        state_out=(),
        input_out=(),
        nodes=nodes,
        outputs=outputs,
        block=None,
        filled=(),
    )
    return Partition(graph)


def _in_running_order(method: Method, nodes: list[Node]) -> tuple[Node, ...]:
    """Return the nodes so that each stands behind what it reads.

    Calls run as soon as they can, so that a state which they read is still the old
    one; all else keeps its order, but for what must come earlier.
    """
    bound = [v for v, _ in method.constants + method.state_in]
    ready = {value.id for value in (*method.inputs, *bound)}
    makers = {value.id: node for node in nodes for value in node.outputs}
    calls = [node for node in nodes if node.op == DELEGATE]
    order: dict[int, Node] = {}  # by identity

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
            assert len(stack) <= len(nodes) ** 2, "parts depend on each other"
    return tuple(order.values())
