"""Remove repeated and unread values: dead nodes, equal nodes, equal constants, copies.

Each pass below removes one kind: nodes and states that nothing reads, nodes with equal
arguments, constants with equal content, copies that change nothing, and writes of
values that are already in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Constant, Method, Node, Program, Value
from kvc.compiler.ir.control import blocks_by_number, blocks_of, entries
from kvc.compiler.ir.rewrite import (
    each_method,
    read_through,
    rename_node,
    rename_results,
)
from kvc.compiler.passes.axis_writes import axis_write
from kvc.compiler.passes.same_index import equal, is_read_at
from kvc.compiler.weights.sources import TensorSource
from kvc.compiler.weights.weight_reader import bytes_of, read
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class DropDeadCode:
    """Keep only nodes that outputs and states need; a method keeps all its inputs."""

    name: ClassVar[str] = "drop-dead-code"

    def run(self, program: Program) -> Program:
        """Return the program without dead nodes, constants and states."""
        program = each_method(program, _drop_in_method)
        blocks = blocks_by_number(program)
        run = {b.block for m in entries(program) for b in blocks_of(m, blocks)}
        kept = (m for m in program.methods if m.block is None or m.block in run)
        program = replace(program, methods=tuple(kept))
        states = {n for m in program.methods for _, n in m.state_in + m.state_out}
        kept_states = tuple(s for s in program.states if s.name in states)
        constants = {name for m in program.methods for _, name in m.constants}
        constants |= {s.initial for s in kept_states if s.initial is not None}
        kept_constants = tuple(c for c in program.constants if c.name in constants)
        return replace(program, states=kept_states, constants=kept_constants)


def _drop_in_method(method: Method) -> Method:
    unchanged = {(value.id, name) for value, name in method.state_in}
    state_out = tuple(b for b in method.state_out if (b[0].id, b[1]) not in unchanged)
    inputs = {
        (v.id, name) for v, name in zip(method.inputs, method.input_names, strict=True)
    }
    input_out = tuple(b for b in method.input_out if (b[0].id, b[1]) not in inputs)
    method = replace(method, state_out=state_out, input_out=input_out)
    needed = {value.id for value in method.results}
    kept = []
    for node in reversed(method.nodes):
        check = OPS[node.op].aliasing is Aliasing.CHECK
        if check or any(value.id in needed for value in node.outputs):
            kept.append(node)
            needed |= {value.id for value in node.inputs}
    return replace(
        method,
        nodes=tuple(reversed(kept)),
        constants=tuple(b for b in method.constants if b[0].id in needed),
        state_in=tuple(b for b in method.state_in if b[0].id in needed),
        cursor_in=tuple(b for b in method.cursor_in if b[0].id in needed),
    )


# Compute equal nodes once.


@dataclass(frozen=True, slots=True)
class ShareEqualNodes:
    """Keep the first of equal nodes, and read its results in place of the others."""

    name: ClassVar[str] = "share-equal-nodes"

    def run(self, program: Program) -> Program:
        """Return the program without repeated computations."""
        return each_method(program, _share)


def _share(method: Method) -> Method:
    first: dict[object, Node] = {}

    def equal(node: Node) -> Node | tuple[Value, ...]:
        types = tuple(value.type for value in node.outputs)
        key = (node.op, tuple(_exact(a) for a in node.arguments), types)
        found = first.setdefault(key, node)
        return node if found is node else found.outputs

    return read_through(method, equal)


def _exact(argument: Argument) -> object:
    """Return a key for an argument that distinguishes 1, 1.0 and True."""
    if isinstance(argument, tuple):
        return tuple(_exact(item) for item in argument)
    return (type(argument), repr(argument) if isinstance(argument, float) else argument)


# Let readers skip copies that change nothing: a whole `copy`, `clone`, `alias`.


# Operator -> index of the argument that equals the result if their types are equal.
_REPEATS = {
    "aten::copy": 1,
    "aten::alias": 0,
    "aten::clone": 0,
    "aten::view": 0,
    "aten::expand": 0,
    "aten::slice.Tensor": 0,
}


@dataclass(frozen=True, slots=True)
class ForwardCopies:
    """Replace the result of a node that only repeats an operand by that operand."""

    name: ClassVar[str] = "forward-copies"

    def run(self, program: Program) -> Program:
        """Return the program without nodes that only repeat an operand."""
        return each_method(program, lambda method: read_through(method, _copied))


def _copied(node: Node) -> Node | tuple[Value, ...]:
    """Return the operand that equals a node's result, or the node if there is none."""
    if node.op not in _REPEATS:
        return node
    copied = node.arguments[_REPEATS[node.op]]
    assert isinstance(copied, Value)
    return (copied,) if copied.type == node.outputs[0].type else node


# Give equal constants one name: those of one source, and equal literals.


_LITERAL_BYTES = 1 << 16  # literals up to this size are compared by content


@dataclass(frozen=True, slots=True)
class DedupeConstants:
    """Keep the first of equal constants, and read it in place of the others.

    Weights are compared by their source, without reading bytes; equal bytes of
    different sources are found when blobs are written. Literals in the code are small
    and are different objects in each method, so they are compared by content.
    """

    name: ClassVar[str] = "dedupe-constants"

    def run(self, program: Program) -> Program:
        """Return the program with one name for each constant."""
        first: dict[object, str] = {}
        names = {c.name: first.setdefault(_key(c), c.name) for c in program.constants}
        kept = tuple(c for c in program.constants if names[c.name] == c.name)
        program = replace(program, constants=kept)
        return each_method(program, lambda method: _rebind(method, names))


def _key(constant: Constant) -> object:
    source, kind = constant.source, constant.type
    literal = isinstance(source, TensorSource) and constant.provenance == "literal"
    if literal and kind.nbytes({}) <= _LITERAL_BYTES:
        return (kind, bytes(bytes_of(read(source))))
    initial = constant.provenance == "initial value"  # a state's own, never shared
    return (kind, source, initial)


def _rebind(method: Method, names: dict[str, str]) -> Method:
    first: dict[str, Value] = {}
    renamed: dict[int, Value] = {}
    kept = []
    for value, name in method.constants:
        if names[name] in first:
            renamed[value.id] = first[names[name]]
        else:
            first[names[name]] = value
            kept.append((value, names[name]))
    nodes = tuple(rename_node(node, renamed) for node in method.nodes)
    return rename_results(replace(method, constants=tuple(kept), nodes=nodes), renamed)


# Drop writes of values that are already there.


@dataclass(frozen=True, slots=True)
class DropIdleWrites:
    """Remove writes that change nothing."""

    name: ClassVar[str] = "drop-idle-writes"

    def run(self, program: Program) -> Program:
        """Return the program without writes that change nothing."""
        return each_method(program, _drop)


def _drop(method: Method) -> Method:
    makers: dict[int, Node] = {}

    def written(node: Node) -> Node | tuple[Value, ...]:
        if _is_idle(node, makers):
            return (node.inputs[0],)
        makers.update((value.id, node) for value in node.outputs)
        return node

    return read_through(method, written)


def _is_idle(node: Node, makers: Mapping[int, Node]) -> bool:
    """Tell whether a node writes back the content that it read, at valid indices.

    The indices must be constant, or those of the previous write: a write at any other
    index can raise an error at run time, so it must stay.
    """
    write = axis_write(node) if node.op == "aten::index_copy" else None
    if write is None:
        return False
    read = is_read_at(write.source, write.target, write.axis, write.index, makers)
    counted, before = makers.get(write.index.id), makers.get(write.target.id)
    fixed = counted is not None and counted.op == "aten::arange.start_step"
    last = axis_write(before) if before is not None else None
    again = last is not None and (
        last.axis == write.axis and equal(last.index, write.index, makers)
    )
    return read and (fixed or again)
