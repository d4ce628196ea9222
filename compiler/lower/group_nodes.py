"""Group a backend's nodes into partitions by depth, and leave out writers of states.

A node that reads the old content of a state element by element can overwrite the state
element by element, even if its operands were computed from the old content. A partition
that reads the old content runs as one call, so the partition cannot overwrite the state
while reading it, and the whole state would have to be copied. A node that would
overwrite the state in such a partition is left out of the partition.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, Value
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing

# Find nodes that compute the whole new content of a state or an input.


@dataclass(frozen=True, slots=True)
class WholeWrite:
    """A node that could fill a whole buffer in place.

    Attributes:
        old: the content of the buffer when the method begins.
        index: the index of the node in the method.
        maker: the node, which has one result; updates and reshapes of the result may
            follow.
    """

    old: Value
    index: int
    maker: Node


def whole_writes(method: Method) -> Iterator[WholeWrite]:
    """Yield the nodes that compute the whole new content of a state or of an input."""
    olds = {name: value for value, name in method.state_in}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    pairs = [(olds.get(name), new) for new, name in method.state_out]
    pairs += [(inputs[name], new) for new, name in method.input_out]
    makers = {v.id: i for i, node in enumerate(method.nodes) for v in node.outputs}
    for old, new in pairs:
        index = _maker(method, makers, new)
        if old is None or index is None:
            continue
        maker = method.nodes[index]
        fresh = OPS[maker.op].aliasing is Aliasing.FRESH
        if fresh and [value.type for value in maker.outputs] == [old.type]:
            yield WholeWrite(old, index, maker)


def _maker(method: Method, makers: dict[int, int], new: Value) -> int | None:
    """Return the index of the node whose result, updated and reshaped, is `new`.

    Return None if no node computes such a result.
    """
    while (index := makers.get(new.id)) is not None:
        node = method.nodes[index]
        update = OPS[node.op].aliasing is Aliasing.UPDATE
        if not update and node.op not in RESHAPING_VIEWS:
            return index
        new = node.inputs[0]
    return None


# Group the nodes that a backend takes into partitions, by depth.


Waits = Mapping[int, Set[int]]  # index of a write -> readers that run before it


def groups_of(method: Method, taken: frozenset[int], waits: Waits) -> list[list[int]]:
    """Return the indices of the taken nodes, grouped by depth and in running order.

    The depth of a node is how many times a path to the node enters the taken nodes from
    outside. A path leads through the node's operands. It also leads through the readers
    of the memory that the node overwrites, which must run before the node.
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


# Keep nodes out of partitions.


def without_writers(
    method: Method, taken: frozenset[int], waits: Waits
) -> frozenset[int]:
    """Remove the taken nodes that overwrite memory that their own partition reads.

    If a pointwise node that overwrites a state is left out, so are the pointwise nodes
    between the old content and this node, unless another node needs their results. All
    updates of states and of callers' arrays are left out. All other nodes, such as
    matrix products, stay.
    """
    fresh = {i for i in taken if OPS[method.nodes[i].op].aliasing is Aliasing.FRESH}
    taken = frozenset(i for i in taken if i in fresh or i not in waits)
    while True:
        write = _next_write(method, taken, waits)
        if write is None:
            return taken
        taken -= _chain(method, taken, write)


def _next_write(
    method: Method, taken: frozenset[int], waits: Waits
) -> WholeWrite | None:
    """Return the first pointwise node that overwrites what its own partition reads.

    Return None if there is no such node. If the node is left out of the partition, the
    nodes after it move to another partition.
    """
    group_of = {
        i: number
        for number, group in enumerate(groups_of(method, taken, waits))
        for i in group
    }
    for write in sorted(whole_writes(method), key=lambda write: write.index):
        group = group_of.get(write.index)
        if group is None or not OPS[write.maker.op].pointwise:
            continue
        if any(group_of.get(i) == group for i in _readers(method, write.old.id)):
            return write
    return None


def _readers(method: Method, old: int) -> list[int]:
    """Return the indices of the nodes that read a value or a view of the value."""
    views, readers = {old}, []
    for i, node in enumerate(method.nodes):
        if any(value.id in views for value in node.inputs):
            readers.append(i)
            if OPS[node.op].aliasing is Aliasing.VIEW:
                views.update(value.id for value in node.outputs)
    return readers


def _chain(method: Method, taken: frozenset[int], write: WholeWrite) -> set[int]:
    """Return the indices of a write and of the pointwise nodes that lead to it.

    These nodes lie on the paths from the old content to the write.
    """
    chain = {write.index}
    reached = _pointwise_from(method, taken, write)
    users: dict[int, set[int]] = {value.id: {-1} for value in method.results}
    for i, node in enumerate(method.nodes):
        for value in node.inputs:
            users.setdefault(value.id, set()).add(i)
    for i in sorted(reached - chain, reverse=True):
        if all(users.get(value.id, {-1}) <= chain for value in method.nodes[i].outputs):
            chain.add(i)
    return chain


def _pointwise_from(
    method: Method, taken: frozenset[int], write: WholeWrite
) -> set[int]:
    """Return the taken pointwise nodes that compute from the old content of a write.

    The nodes precede the write; they are returned by index. A node is left out if it
    reads a view that a taken node makes: otherwise the view would leave the partition
    too, away from its other readers.
    """
    values, found = {write.old.id}, set()
    views: set[int] = set()
    for i in sorted(taken):
        node = method.nodes[i]
        if OPS[node.op].aliasing is Aliasing.VIEW:
            views.update(value.id for value in node.outputs)
        elif OPS[node.op].pointwise and i < write.index:
            read = {value.id for value in node.inputs}
            if read & values and not read & views:
                values.update(value.id for value in node.outputs)
                found.add(i)
    return found
