"""Memory that outlives a method, and the writes that lead to its new content.

A state that a method changes has persistent memory, and so has an input whose array the
method changes. The new content is traced back to its origin. If all nodes on the path
are updates of the old content, they can all work in that memory. If the path begins at
a node that computes a whole new value, that node and the updates after it can work in
that memory. In some cases the new content cannot be computed in the memory: it is a
view, it lies in other memory, or its node reads the old content. Then a copy at the end
of the method writes it there: the closing copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import control_of
from kvc.compiler.place.schedule import Schedule
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing
from kvc.schema.types import Symbol, TensorType

# Why a write copies bytes, and how to change the model to avoid the copy.


@dataclass(frozen=True, slots=True)
class CopyReason:
    """Why a write copies.

    Attributes:
        text: the reason.
        remedy: a change of the model that avoids the copy.
    """

    text: str
    remedy: str


VIEW_STORED: Final = CopyReason(
    "the stored value is a view of another value",
    "write rows into the state itself (index_copy_, cache_update), not a view",
)
VIEW_WRITTEN: Final = CopyReason(
    "the written value is a view of the overwritten value",
    "write new values only; of rows that move a ring keeps the order "
    '(cache_update with mode="circular")',
)
HANDED_OUT: Final = CopyReason(
    "the method returns the old value",
    "return the new value, or only values computed from the old one",
)


def other_length(op: str) -> CopyReason:
    """Return the reason to copy a content whose length differs from the old one."""
    return CopyReason(
        f"{op} makes a value of another length",
        "keep a state of the greatest length, and write rows into it (cache_update)",
    )


def old_value_read(op: str) -> CopyReason:
    """Return the reason to copy a new content whose operator reads the old content."""
    return CopyReason(
        f"the old value is still read when {op} makes the new one",
        f"change the state in place (add_, index_copy_, cache_update), not by {op}",
    )


def branches_elsewhere(op: str, state: str) -> CopyReason:
    """Return the reason to copy the result of control flow into the state's memory."""
    return CopyReason(
        f"{op} does not compute it from the old value of {state}",
        f"give {op} the old value of {state}, and change it in place in each branch",
    )


def written_elsewhere(op: str, state: str) -> CopyReason:
    """Return the reason to copy a state's new content that lies in other memory."""
    return CopyReason(
        f"{op} does not write over the old value of {state}",
        f"let {op} write into {state} itself, not into another value",
    )


def both_read(op: str, source: str) -> CopyReason:
    """Return the reason to copy an old value for a node that also reads the new one."""
    place = f" at {source}" if source else ""
    return CopyReason(
        f"{op}{place} reads the old value and needs the new one",
        f"let {op}{place} read the old value alone, before the write, or the new one "
        "alone",
    )


# Find persistent memory.


@dataclass(frozen=True, slots=True)
class Write:
    """A node that works in persistent memory.

    Attributes:
        key: the key of the node in the schedule.
        old: the value whose bytes the node overwrites.
        result: the value that is in the memory after the write.
        reason: why the compiler added the write; None for a write of the program.
    """

    key: int
    old: Value
    result: Value
    reason: CopyReason | None = None


@dataclass(frozen=True, slots=True)
class Persistent:
    """The memory of a state or caller's array: its name, and ordered writes to it."""

    name: str
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """The old and the new content of one persistent memory.

    `is_input` tells whether the memory is that of an input. `grows` is the axis along
    which a state grows, None for a fixed size.
    """

    name: str
    is_input: bool
    new: Value
    old: Value
    grows: int | None


def find_persistent(
    schedule: Schedule, grows: Mapping[str, int], symbols: Mapping[str, Symbol]
) -> list[Persistent]:
    """Return the persistent memory of a method; add closing copies to the schedule.

    Args:
        schedule: the schedule of the method.
        grows: name of a growing state -> the axis along which it grows.
        symbols: the program's symbols by name, for comparisons of sizes.
    """
    memories, claimed = [], set[int]()
    for content in _contents(schedule, grows):
        writes = _chain(schedule, content, claimed, symbols)
        if not writes:
            writes = (_closing(schedule, content),)
            _store(schedule, content, writes[-1].result)
        claimed.update(write.result.id for write in writes)
        memories.append(Persistent(content.name, writes))
    return memories


def _contents(schedule: Schedule, grows: Mapping[str, int]) -> list[_Content]:
    method = schedule.method
    states = {name: value for value, name in method.state_in}
    found = [
        _Content(name, False, new, states[name], grows.get(name))
        for new, name in method.state_out
    ]
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    return found + [
        _Content(name, True, new, inputs[name], None)
        for new, name in method.input_out
        if new.id != inputs[name].id
    ]


def with_old_contents(method: Method, grows: Mapping[str, int]) -> Method:
    """Return a method that has a value for the old content of each state it writes."""
    known = {name for _, name in method.state_in}
    written = [(new, name) for new, name in method.state_out if name not in known]
    count = method.next_id()
    added = tuple(
        (Value(count + i, _emptied(new.type, grows.get(name))), name)
        for i, (new, name) in enumerate(written)
    )
    return replace(method, state_in=(*method.state_in, *added))


def _emptied(kind: TensorType, axis: int | None) -> TensorType:
    """Return a state's type, with length 0 along `axis` if the state grows."""
    if axis is None:
        return kind
    dims = (*kind.dims[:axis], 0, *kind.dims[axis + 1 :])
    return TensorType(kind.dtype, dims)


def _chain(
    schedule: Schedule,
    content: _Content,
    claimed: set[int],
    symbols: Mapping[str, Symbol],
) -> tuple[Write, ...]:
    """Return the writes that compute the new content in place, in order.

    Return () if the new content cannot be computed in place.
    """
    writes: list[Write] = []
    current = _in_one_piece(schedule, content.new)
    while current.id != content.old.id:
        key = schedule.makers.get(current.id)
        if key is None or current.id in claimed:
            return ()
        node = schedule.nodes[key]
        aliasing = OPS[node.op].aliasing
        if aliasing in (Aliasing.UPDATE, Aliasing.CONTROL):
            target = _target(node, current)
            if target is None:
                return ()
            before = _in_one_piece(schedule, target)
            writes.append(Write(key, before, current))
            current = before
            continue
        fresh = aliasing is Aliasing.FRESH and current.type == content.old.type
        if not fresh or not _may_fill(schedule, key, content.old, symbols):
            return ()
        writes.append(Write(key, content.old, current))
        break
    return tuple(reversed(writes))


def _target(node: Node, result: Value) -> Value | None:
    """Return the operand that a node overwrites with `result`, None if it has none."""
    control = control_of(node)
    if control is None:
        return node.inputs[0]
    over = control.over[node.outputs.index(result)]
    return None if over is None else control.operands[over]


def _in_one_piece(schedule: Schedule, value: Value) -> Value:
    """Return the value that `value` is made from by views that only reshape."""
    while (key := schedule.makers.get(value.id)) is not None:
        if schedule.nodes[key].op not in RESHAPING_VIEWS:
            break
        value = schedule.nodes[key].inputs[0]
    return value


def _may_fill(
    schedule: Schedule, key: int, old: Value, symbols: Mapping[str, Symbol]
) -> bool:
    """Tell whether a node can write its whole result over the old content.

    The node may read the old content only element by element. A later node that reads
    both the old and the new content can get a copy of the old rows that it reads, if
    that copy is smaller than the closing copy.
    """
    lost, node = schedule.closure(old), schedule.nodes[key]
    read = [value for value in node.inputs if value.id in lost]
    if read and not (OPS[node.op].pointwise and all(v.id == old.id for v in read)):
        return False
    if not any(user != key for i in lost for user in schedule.users(i)):
        return True
    late = schedule.descendants(key)
    saved = [v for i, v in lost.items() if not late.isdisjoint(schedule.users(i))]
    nbytes = sum(value.type.max_nbytes(symbols) for value in saved)
    return nbytes < old.type.max_nbytes(symbols) or not saved


def _closing(schedule: Schedule, content: _Content) -> Write:
    """Add a node that copies or recomputes the new content into the memory."""
    new, old = content.new, content.old
    key = schedule.makers.get(new.id)
    source = schedule.nodes[key].source if key is not None else ""
    result = schedule.fresh(new.type)
    if key is not None and _is_cheap(schedule.nodes[key], old):
        again = replace(schedule.nodes[key], outputs=(result,))
        return Write(schedule.add_closing(again), old, result)
    if content.grows is None:
        node = Node("aten::copy", (old, new), (result,), source)
    else:
        node = Node("kvc::replace", (old, new, content.grows), (result,), source)
    return Write(
        schedule.add_closing(node), old, result, _why_elsewhere(schedule, content)
    )


def _is_cheap(node: Node, old: Value) -> bool:
    """Tell whether a node computes the new content pointwise from the old one alone.

    Computing the new content again, in place, costs no more than a copy.
    """
    fits = [value.type for value in node.outputs] == [old.type]
    return OPS[node.op].pointwise and node.inputs == (old,) and fits


def _why_elsewhere(schedule: Schedule, content: _Content) -> CopyReason | None:
    """Return why the new content must be copied, None if no node computes it."""
    if schedule.makers.get(_root(schedule, content.new).id) is None:
        return None
    node = schedule.nodes[schedule.makers[content.new.id]]
    match OPS[node.op].aliasing:
        case Aliasing.VIEW:
            return VIEW_STORED
        case Aliasing.FRESH if content.new.type != content.old.type:
            return other_length(node.op)
        case Aliasing.CONTROL:
            return branches_elsewhere(node.op, content.name)
        case Aliasing.FRESH:
            return old_value_read(node.op)
        case _:
            return written_elsewhere(node.op, content.name)


def _root(schedule: Schedule, value: Value) -> Value:
    """Return the value that `value` is a view of, or `value` if it is no view."""
    while (key := schedule.makers.get(value.id)) is not None:
        if OPS[schedule.nodes[key].op].aliasing is not Aliasing.VIEW:
            break
        value = schedule.nodes[key].inputs[0]
    return value


def _store(schedule: Schedule, content: _Content, stored: Value) -> None:
    """Make `stored` the content of the memory at the method's end."""
    method = schedule.method
    pairs = method.input_out if content.is_input else method.state_out
    pairs = tuple((stored if n == content.name else v, n) for v, n in pairs)
    if content.is_input:
        schedule.method = replace(method, input_out=pairs)
    else:
        schedule.method = replace(method, state_out=pairs)
