"""What a proven method writes: the nodes that work on states, the cache updates."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvc.compiler.analysis.flat import FlatMethod
from kvc.compiler.ir import Method, Node, Value, bound_to
from kvc.compiler.memory.aliasing import analyse
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Dim

CACHE_UPDATE = "kvc::cache_update"


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """One `kvc::cache_update` of a state.

    Attributes:
        state: its name.
        index: the first slot of each row, None for slot 0.
        axis: of the slots, counted from 0.
        count: how many slots it writes.
        slots: how many there are.
        mode: "linear" or "circular".
        counted: how many of `count` each row writes, None for all.
    """

    state: str
    index: Value | None
    axis: int
    count: Dim
    slots: Dim
    mode: str
    counted: Value | None


def state_writes(method: Method) -> Iterator[tuple[str, Node]]:
    """Yield (state, node) for every node that works in a state's memory."""
    if isinstance(method, FlatMethod):
        yield from method.writes
        return
    states, aliases = bound_to(method.state_in), analyse(method)
    views = {v.id for n in method.nodes if _is_view(n) for v in n.outputs}
    for node in method.nodes:
        for value in node.outputs:
            root = aliases.root[value.id]
            if root in states and value.id not in views:
                yield states[root], node


def cache_writes(method: Method) -> Iterator[CacheWrite]:
    """Yield the writes of states that are cache updates."""
    for state, node in state_writes(method):
        if node.op == CACHE_UPDATE:
            yield cache_write(state, node)


def cache_write(state: str, node: Node) -> CacheWrite:
    """Return what a cache update says."""
    cache, update, index, axis, mode, counted, *_ = node.arguments
    assert isinstance(cache, Value)
    assert isinstance(update, Value)
    assert isinstance(axis, int)
    assert isinstance(mode, str)
    assert index is None or isinstance(index, Value)
    assert counted is None or isinstance(counted, Value)
    axis %= len(cache.type.dims)
    slots, count = cache.type.dims[axis], update.type.dims[axis]
    return CacheWrite(state, index, axis, count, slots, mode, counted)


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW
