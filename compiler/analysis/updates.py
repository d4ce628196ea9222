"""The cache updates of a flat method, and the values that lie in a state.

In: a flat method. Out: the arguments of each `kvc::cache_update` of a state; for each
value that covers a state's memory, the state and the order of its axes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.analysis.flat import Branches, FlatMethod
from kvc.compiler.analysis.whole_views import axis_order
from kvc.compiler.ir import Node, State, Value
from kvc.schema.ops import CACHE_UPDATE, OPS, PERMUTING, Aliasing
from kvc.schema.types import Dim, add_dims


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """One `kvc::cache_update` of a state.

    Attributes:
        state: the name of the state.
        index: the first slot that is written in each row, None for slot 0.
        axis: the axis of the slots, counted from 0.
        count: the number of slots that the update writes.
        slots: the number of slots of the state.
        mode: "linear" or "circular".
        counted: the number of slots, at most `count`, that are written in each row;
            None if `count` slots are written in every row.
        branches: the enclosing branches, as in `FlatMethod.within`.
    """

    state: str
    index: Value | None
    axis: int
    count: Dim
    slots: Dim
    mode: str
    counted: Value | None
    branches: Branches


@dataclass(frozen=True, slots=True)
class InState:
    """A value that lies in a state's memory.

    Attributes:
        state: the name of the state.
        order: axis of the value -> axis of the state; None if a view did more than
            permute the axes.
    """

    state: str
    order: tuple[int, ...] | None

    @property
    def whole(self) -> bool:
        """Tell whether the value has the axes of the state, in order."""
        return self.order is not None and self.order == tuple(range(len(self.order)))


def cache_writes(method: FlatMethod) -> Iterator[CacheWrite]:
    """Yield the writes of states that are cache updates."""
    for state, node in method.writes:
        if node.op == CACHE_UPDATE:
            yield cache_write(state, node, method)


def cache_write(state: str, node: Node, method: FlatMethod) -> CacheWrite:
    """Return the arguments of a cache update of a method."""
    cache, update, index, axis, mode, counted, *_ = node.arguments
    assert isinstance(cache, Value)
    assert isinstance(update, Value)
    assert isinstance(axis, int)
    assert isinstance(mode, str)
    assert index is None or isinstance(index, Value)
    assert counted is None or isinstance(counted, Value)
    axis %= len(cache.type.dims)
    slots, count = cache.type.dims[axis], update.type.dims[axis]
    branches = method.within[node.outputs[0].id]
    return CacheWrite(state, index, axis, count, slots, mode, counted, branches)


def find_held(method: FlatMethod) -> dict[int, InState]:
    """Return value id -> state, for the values that lie in a state's memory."""
    held = {
        value.id: InState(name, tuple(range(len(value.type.dims))))
        for value, name in method.state_in
    }
    for node in method.nodes:
        made = held_by(node, held.get(node.inputs[0].id) if node.inputs else None)
        for value in node.outputs:
            joined = method.joins.get(value.id)
            ways = {held.get(way.id) for way in joined.ways} if joined else set()
            one = made if len(ways) != 1 else ways.pop()
            if one is not None:
                held[value.id] = one
    return held


def held_by(node: Node, one: InState | None) -> InState | None:
    """Return the state that a node's result lies in, None if it is in no state.

    `one` is the state that the node's first input lies in.
    """
    if one is None or node.op == CACHE_UPDATE:
        return one
    if OPS[node.op].aliasing is not Aliasing.VIEW:
        return None
    if node.op in PERMUTING and one.order is not None:
        return replace(one, order=tuple(one.order[axis] for axis in axis_order(node)))
    return one if node.op == "aten::alias" else replace(one, order=None)


# By how much methods lengthen growing states, and whether old rows stay.


def growth(method: FlatMethod, state: State) -> Dim | None:
    """Return by how much a method lengthens a state, None if it drops old rows."""
    assert state.grows is not None
    olds = {name: value.type.dims for value, name in method.state_in}
    news = {name: value.type.dims for value, name in method.state_out}
    if state.name not in news:
        return 0
    new = news[state.name][state.grows]
    old = olds[state.name][state.grows] if state.name in olds else 0
    if old == 0 and new != 0 and state.name not in _lengthened(method):
        return None
    return add_dims(new, old, -1)


def keeps_old_rows(method: FlatMethod, state: State) -> bool:
    """Tell whether a growing state's new content starts with the old content."""
    written = {name for _, name in method.state_out}
    if state.name not in written or state.name in _lengthened(method):
        return True
    return growth(method, state) is None


def one_length(method: FlatMethod, growing: Sequence[State]) -> bool:
    """Tell whether growing states of one length still have one after a method."""
    axes = {state.name: state.grows for state in growing}
    lengths = {
        value.type.dims[axis]
        for value, name in method.state_out
        if (axis := axes.get(name)) is not None
    }
    return len(lengths) == 1


def _lengthened(method: FlatMethod) -> set[str]:
    """Return the names of growing states whose new content starts with the old one."""
    makers = method.makers()
    return {
        name
        for value, name in method.state_out
        if all(
            leaf.id in makers and makers[leaf.id].op == "kvc::append"
            for leaf in method.leaves(value)
        )
    }
