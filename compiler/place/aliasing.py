"""Find the values that share memory, in a method whose writes happen in place.

In: a method in its final order, as `kvc.compiler.place` returns it. Each node on the
path to the new content of a state, or of an input in the caller's array, can write to
the memory of that state or array. Out: for each value, the value whose memory it
shares. An update of any other value reuses the memory of its operand, if that memory is
scratch memory and no later node reads the operand.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import control_of
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class Aliases:
    """The values of a method that share memory.

    Attributes:
        base: value id -> id of the value whose memory it shares directly.
        root: value id -> id of the value that owns the memory. A value that owns its
            memory is mapped to itself.
        callers: ids of the inputs that lie in the caller's arrays.
    """

    base: Mapping[int, int]
    root: Mapping[int, int]
    callers: frozenset[int]


def analyse(method: Method) -> Aliases:
    """Find the values of a method that share memory."""
    stored, callers = _stored(method), callers_of(method)
    bound = [*method.inputs, *method.bound]
    base: dict[int, int] = {}
    root = {value.id: value.id for value in bound}
    # Values that own whole scratch memory.
    scratch = {value.id for value in method.inputs}
    for index, node in enumerate(method.nodes):
        view = OPS[node.op].aliasing is Aliasing.VIEW
        over = _over_operands(node)
        for value in node.outputs:
            if view:
                base[value.id] = node.inputs[0].id
            elif value.id in over:
                base[value.id] = over[value.id]
            elif value.id in stored:
                base[value.id] = stored[value.id]
            elif _reuses(method, index, root, scratch, callers):
                base[value.id] = node.inputs[0].id
                scratch.add(value.id)
            elif OPS[node.op].aliasing in (Aliasing.FRESH, Aliasing.CONTROL):
                scratch.add(value.id)
            root[value.id] = root[base[value.id]] if value.id in base else value.id
    return Aliases(base, root, callers)


def _over_operands(node: Node) -> dict[int, int]:
    """Return result id -> operand id, for results in the memory of an operand.

    Only nodes with control flow have such results here.
    """
    control = control_of(node)
    if control is None:
        return {}
    return {
        value.id: control.operands[over].id
        for value, over in zip(node.outputs, control.over, strict=False)
        if over is not None
    }


def callers_of(method: Method) -> frozenset[int]:
    """Return the ids of the inputs that a method changes or lengthens in place.

    In a block, all inputs except those that the block fills lie in the caller's memory.
    """
    if method.block is not None:
        return frozenset(
            v.id for i, v in enumerate(method.inputs) if i not in method.filled
        )
    changed = {name for _, name in method.input_out}
    named = zip(method.inputs, method.input_names, strict=True)
    grown = {node.inputs[0].id for node in method.nodes if node.op == "kvc::append"}
    return frozenset(
        value.id for value, name in named if name in changed or value.id in grown
    )


def _stored(method: Method) -> dict[int, int]:
    """Return value id -> id of the value that it overwrites, in persistent memory."""
    makers = method.makers()
    states = {name: value for value, name in method.state_in}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    roots = [(new, states[name]) for new, name in method.state_out if name in states]
    roots += [(new, inputs[name]) for new, name in method.input_out]
    stored: dict[int, int] = {}
    for new, old in roots:
        _trace(new, old, makers, stored)
    for node in method.nodes:
        if node.op == "kvc::append":
            stored[node.outputs[0].id] = node.inputs[0].id
    return stored


def _trace(
    new: Value, old: Value, makers: Mapping[int, Node], stored: dict[int, int]
) -> None:
    """Record in `stored` what each write from `old` to `new` overwrites.

    `stored` is value id -> id of the value that it overwrites.
    """
    current = new
    while current.id != old.id and current.id in makers:
        node = makers[current.id]
        if OPS[node.op].aliasing is Aliasing.FRESH:
            stored[current.id] = old.id
            return
        over = _over_operands(node)
        if current.id in over:
            current = next(v for v in node.inputs if v.id == over[current.id])
            continue
        if OPS[node.op].aliasing is Aliasing.UPDATE:
            stored[current.id] = node.inputs[0].id
        current = node.inputs[0]


def _reuses(
    method: Method,
    index: int,
    root: Mapping[int, int],
    scratch: set[int],
    callers: frozenset[int],
) -> bool:
    """Tell whether node `index` is an update that may reuse its operand's memory.

    That memory must be scratch memory that no later node reads.
    """
    node = method.nodes[index]
    if OPS[node.op].aliasing is not Aliasing.UPDATE:
        return False
    operand = node.inputs[0].id
    if operand not in scratch or root[operand] in callers:
        return False
    old = {value for value, owner in root.items() if owner == root[operand]}
    later = (v for n in method.nodes[index + 1 :] for v in n.inputs)
    readers = [*node.inputs[1:], *later, *method.results]
    return not any(value.id in old for value in readers)
