"""Who shares memory with whom, and which updates may be written over their operand.

In: a method in its final order. Out: for each value what it shares memory with, and
for each update of a state whether it happens in place, with the reason where not.
An update may reuse its operand's bytes iff no other operand aliases them, nobody
reads the old value, or a view of it, afterwards, and the method does not hand an
alias of the old value out. The emitted program is checked again, independently, by
`kvc.schema.verify`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, bound_to
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class Update:
    """The verdict on one write to a state.

    Attributes:
        state: name of the state.
        value: id of the new value.
        reason: why it is a copy; "" when it is in place.
        source: the user's line.
    """

    state: str
    value: int
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Aliases:
    """The memory relations of a method.

    Attributes:
        base: value id -> id of the value whose memory it shares directly.
        root: value id -> id of the value whose memory it is, itself where it has own.
        updates: a verdict for each op that updates a state.
    """

    base: Mapping[int, int]
    root: Mapping[int, int]
    updates: tuple[Update, ...]


def analyse(method: Method) -> Aliases:
    """Return the memory relations of a method."""
    states, constants = bound_to(method.state_in), bound_to(method.constants)
    starts = [*method.inputs, *(v for v, _ in method.constants + method.state_in)]
    base: dict[int, int] = {}
    root = {value.id: value.id for value in starts}
    whole = set(states)  # values that are all of their root's memory
    updates = []
    for index, node in enumerate(method.nodes):
        aliasing = OPS[node.op].aliasing
        if aliasing is Aliasing.FRESH:
            root.update((value.id, value.id) for value in node.outputs)
            continue
        operand, result = node.inputs[0], node.outputs[0]
        if aliasing is Aliasing.VIEW:
            base.update((value.id, operand.id) for value in node.outputs)
            root.update((value.id, root[operand.id]) for value in node.outputs)
            continue
        reason = _obstacle(method, index, node, root, whole, constants)
        if root[operand.id] in states:
            name = states[root[operand.id]]
            updates.append(Update(name, result.id, reason, node.source))
        if reason:
            root[result.id] = result.id
        else:
            base[result.id], root[result.id] = operand.id, root[operand.id]
            whole.add(result.id)
    return Aliases(base, root, tuple(updates))


def _obstacle(
    method: Method,
    index: int,
    node: Node,
    root: Mapping[int, int],
    whole: set[int],
    constants: Mapping[int, str],
) -> str:
    """Return why an update cannot be written over its operand, "" if it can."""
    operand = node.inputs[0]
    memory = root[operand.id]
    if memory in constants:
        return "the operand is a constant"
    if operand.id not in whole and root[operand.id] != operand.id:
        return "the operand is a view of a part"
    old = {value for value, owner in root.items() if owner == memory}
    if any(value.id in old for value in node.inputs[1:]):
        return "what is written is a view of what is written over"
    for later in method.nodes[index + 1 :]:
        if any(value.id in old for value in later.inputs):
            return f"the old value is read afterwards, by {later.op} at {later.source}"
    if any(value.id in old for value in method.results):
        return "the method hands the old value out"
    return ""
