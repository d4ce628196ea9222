"""Make the moves explicit that put a state's new value into the state.

At a method's end a state's memory must hold its new value. Where the update itself
was written there, nothing is left to do. Where not, a `copy` into the state closes
the method; and whatever would be overwritten by such a copy before it is read (an
output that is the old state, two states that swap) is cloned first.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value, bound_to
from kvc.compiler.memory.aliasing import Aliases, analyse
from kvc.compiler.passes.rewrite import each_method


@dataclass(frozen=True, slots=True)
class StoreStates:
    """Close each method with the copies that its states need."""

    name: ClassVar[str] = "store-states"

    def run(self, program: Program) -> Program:
        """Return the program whose states are all updated where they lie."""
        return each_method(program, _store)


def _store(method: Method) -> Method:
    aliases = analyse(method)
    states = bound_to(method.state_in)
    moved = [b for b in method.state_out if not _is_in_place(b, aliases, states)]
    if not moved:
        return method
    return _with_copies(method, moved, aliases)


def _is_in_place(
    binding: tuple[Value, str], aliases: Aliases, states: dict[int, str]
) -> bool:
    """Tell whether a new value already lies, whole, in its state's memory."""
    value, name = binding
    updated = {update.value for update in aliases.updates if not update.reason}
    return value.id in updated and states.get(aliases.root[value.id]) == name


def _newest(method: Method, aliases: Aliases) -> dict[str, Value]:
    """Return state -> the newest value that was written over it in place."""
    values = {value.id: value for node in method.nodes for value in node.outputs}
    return {u.state: values[u.value] for u in aliases.updates if not u.reason}


def _with_copies(
    method: Method, moved: list[tuple[Value, str]], aliases: Aliases
) -> Method:
    closing = _Closing(method, aliases, {name for _, name in moved})
    sources = [(closing.saved(value), name) for value, name in moved]
    outputs = tuple(closing.saved(value) for value in method.outputs)
    state_in = list(method.state_in)
    targets = {name: value for value, name in state_in} | _newest(method, aliases)
    done: dict[str, Value] = {}
    for value, name in sources:
        if name not in targets:  # written without being read
            targets[name] = closing.fresh(value)
            state_in.append((targets[name], name))
        done[name] = closing.add("aten::copy", targets[name], value)
    state_out = tuple((done.get(name, value), name) for value, name in method.state_out)
    return replace(
        method,
        nodes=tuple(closing.nodes),
        outputs=outputs,
        state_in=tuple(state_in),
        state_out=state_out,
    )


class _Closing:
    """The nodes of a method, growing by those that close it."""

    def __init__(self, method: Method, aliases: Aliases, overwritten: set[str]) -> None:
        self.nodes = list(method.nodes)
        self._count = method.next_id()
        self._lines = {v.id: n.source for n in method.nodes for v in n.outputs}
        self._root = aliases.root
        self._lost = {
            value.id for value, name in method.state_in if name in overwritten
        }
        self._clones: dict[int, Value] = {}

    def fresh(self, like: Value) -> Value:
        """Return a new value of the type of another."""
        self._count += 1
        return Value(self._count - 1, like.type)

    def add(self, op: str, *operands: Value) -> Value:
        """Add a node, at the line of its last operand; return its result."""
        result = self.fresh(operands[-1])
        line = self._lines.get(operands[-1].id, "")
        self._lines[result.id] = line
        self.nodes.append(Node(op, operands, (result,), line))
        return result

    def saved(self, value: Value) -> Value:
        """Return the value, out of reach of the copies that follow."""
        if self._root[value.id] not in self._lost:
            return value
        if value.id not in self._clones:
            self._clones[value.id] = self.add("aten::clone", value)
        return self._clones[value.id]
