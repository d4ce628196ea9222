"""Find the values that share memory, in a method whose writes happen in place.

In: a method in its final order, as `kvc.compiler.place` returns it. Each node on the
path to the new content of a state, or of an input in the caller's array, can write to
the memory of that state or array. Out: for each value, the value whose memory it
shares. An update of any other value reuses the memory of its operand, and a pointwise
result the memory of any operand of its type, if that memory is scratch memory and no
later node reads the operand.
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


def analyse(method: Method, over_operands: bool = True) -> Aliases:
    """Find the values of a method that share memory.

    Args:
        method: a method in its final order.
        over_operands: whether the kernels that run the method may write a pointwise
            result over an operand.
    """
    stored, callers = _stored(method), callers_of(method)
    memory = _Memory(method, callers)
    for index, node in enumerate(method.nodes):
        elsewhere = {value.id: stored.get(value.id) for value in node.outputs}
        if OPS[node.op].aliasing is Aliasing.VIEW:
            elsewhere = {value.id: node.inputs[0].id for value in node.outputs}
        for value, base in {**elsewhere, **_over_operands(node)}.items():
            if base is None:
                memory.note_whole(value, memory.reused(index, over_operands))
            else:
                memory.note(value, base)
    return Aliases(memory.base, memory.root, callers)


class _Memory:
    """The memory of the values of a method's first nodes.

    Attributes:
        base: value id -> id of the value whose memory it shares directly.
        root: value id -> id of the value that owns the memory.
    """

    def __init__(self, method: Method, callers: frozenset[int]) -> None:
        self._nodes, self._callers = method.nodes, callers
        self._inputs = frozenset(value.id for value in method.inputs)
        self._last = _last_reads(method)
        bound = [*method.inputs, *method.bound]
        self.base: dict[int, int] = {}
        self.root = {value.id: value.id for value in bound}
        self._sharing = {value.id: [value.id] for value in bound}  # by root
        self._whole = set(self._inputs)  # values that are all of their memory

    def note(self, value: int, base: int) -> None:
        """Record a value in the memory of `base`, perhaps in a part of it."""
        self.base[value] = base
        self.root[value] = self.root[base]
        self._sharing[self.root[base]].append(value)

    def note_whole(self, value: int, base: int | None) -> None:
        """Record a value that is all of the memory of `base`, or of memory of its own.

        That memory is scratch memory.
        """
        self._whole.add(value)
        if base is not None:
            self.note(value, base)
            return
        self.root[value] = value
        self._sharing[value] = [value]

    def reused(self, index: int, over_operands: bool) -> int | None:
        """Return the operand over which node `index` writes its result, or None.

        `over_operands` is as for `analyse`. Pointwise results never lie over inputs:
        the runtime recognises tokens, for example, by their memory.
        """
        node = self._nodes[index]
        if OPS[node.op].aliasing is Aliasing.UPDATE:
            target, *others = node.inputs
            clear = target not in others and self._is_free(target, index)
            return target.id if clear else None
        if OPS[node.op].pointwise and over_operands:
            for value in node.inputs:
                same = value.type == node.outputs[0].type
                given = self.root[value.id] in self._inputs
                if same and not given and self._is_free(value, index):
                    return value.id
        return None

    def _is_free(self, value: Value, index: int) -> bool:
        """Tell whether only node `index` still reads the scratch memory of a value.

        It must read the memory as that value.
        """
        root = self.root[value.id]
        if value.id not in self._whole or root in self._callers:
            return False
        last = max(self._last.get(each, -1) for each in self._sharing[root])
        reads = {each.id for each in self._nodes[index].inputs}
        return last <= index and reads.isdisjoint({*self._sharing[root]} - {value.id})


def _last_reads(method: Method) -> dict[int, int]:
    """Return value id -> index of the last node that reads it.

    The index of what the method returns is the number of nodes.
    """
    last = {v.id: i for i, node in enumerate(method.nodes) for v in node.inputs}
    return last | {value.id: len(method.nodes) for value in method.results}


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
