"""Keep nodes out of partitions that could then not write a state in place.

A node that reads the old content of a state element by element may overwrite the state
as it goes, and so may one whose operands follow from the old content. A partition that
reads the old content may not, since it is one call: the whole state would be copied.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, Value
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing

# Find nodes that compute all the new content of a state or of a caller's array.


@dataclass(frozen=True, slots=True)
class WholeWrite:
    """A node that could fill a piece of memory anew.

    Attributes:
        old: what the memory holds when the method begins.
        index: of the node.
        maker: the node; updates and reshapes of its one result may follow.
    """

    old: Value
    index: int
    maker: Node


def whole_writes(method: Method) -> Iterator[WholeWrite]:
    """Yield the makers of new contents that have the type of the old ones."""
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
    """Return the node at the end of a chain of updates and reshapes."""
    while (index := makers.get(new.id)) is not None:
        node = method.nodes[index]
        update = OPS[node.op].aliasing is Aliasing.UPDATE
        if not update and node.op not in RESHAPING_VIEWS:
            return index
        new = node.inputs[0]
    return None


# Keep nodes out of partitions that could then not write a state in place.


# Group the nodes that a backend takes into partitions, by depth.


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


# Keep nodes out of partitions that could then not write a state in place.


def without_writers(
    method: Method, taken: frozenset[int], waits: Waits
) -> frozenset[int]:
    """Return the taken nodes without those that write what their own partition reads.

    With a pointwise writer go the pointwise nodes that lead from the old content to it,
    unless somebody else needs them too. No other nodes are left outside, and so no
    products of matrices. Updates of states and of callers' arrays all are.
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
    """Return the first pointwise writer in a partition that reads the old content.

    The first one, since what follows it is in another partition once it is outside.
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
    """Return the nodes that read a value or a view of it."""
    views, readers = {old}, []
    for i, node in enumerate(method.nodes):
        if any(value.id in views for value in node.inputs):
            readers.append(i)
            if OPS[node.op].aliasing is Aliasing.VIEW:
                views.update(value.id for value in node.outputs)
    return readers


def _chain(method: Method, taken: frozenset[int], write: WholeWrite) -> set[int]:
    """Return a writer and the way of pointwise nodes to it from the old content."""
    chain = {write.index}
    reached = _pointwise_from(method, taken, write)
    users: dict[int, set[int]] = {value.id: {-1} for value in method.results}
    for i, node in enumerate(method.nodes):
        for value in node.inputs:
            users.setdefault(value.id, set()).add(i)
    for i in sorted(reached - chain, reverse=True):
        results = method.nodes[i].outputs
        if all(users.get(value.id, {-1}) <= chain for value in results):
            chain.add(i)
    return chain


def _pointwise_from(
    method: Method, taken: frozenset[int], write: WholeWrite
) -> set[int]:
    """Return the pointwise nodes that the old content alone leads to, before a writer.

    One that reads a view of something made inside is not among them: the view would
    have to be outside too, and what else reads it inside would be cut off.
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
