"""Split a buffer that holds the caches of all layers into one state for each.

A model may keep its caches in one buffer `[layers, batch, heads, capacity, dim]` and
write `self.k[i].index_copy_(2, p, x)`. In: a state that methods read and write only in
parts, one for each position of an axis, where the positions are constant and the parts
are written like caches. Out: a state for each position, `k[0]`, `k[1]`, ..., or
`k[:,0]` for the second axis, which later passes treat like other caches. A buffer with
two such axes, one for layers and one for keys and values, is split along one axis after
the other. A method that writes no single part, such as a method that clears the buffer,
can read and set the whole buffer. If a method reads the whole buffer, the parts are
concatenated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, State, Value
from kvc.compiler.ir.rewrite import NodeList, rename_node, rename_results
from kvc.compiler.passes.axis_writes import axis_write
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.schema.ops import CACHE_UPDATE, RESHAPING_VIEWS
from kvc.schema.stacks import part_name
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class SplitStacks:
    """Split states that hold several caches."""

    name: ClassVar[str] = "split-stacks"

    def run(self, program: Program) -> Program:
        """Return the program without states that are stacks of caches."""
        while (found := _find(program)) is not None:
            # Unread views of the whole would prevent the next split.
            program = DropDeadCode().run(_split(program, found))
        return program


@dataclass(frozen=True, slots=True)
class _Stack:
    """A state to split along an axis."""

    state: State
    axis: int

    @property
    def part(self) -> TensorType:
        """The type of a part, without the axis along which the state is split."""
        dims = self.state.type.dims
        kept = (*dims[: self.axis], *dims[self.axis + 1 :])
        return TensorType(self.state.type.dtype, kept)

    @property
    def row(self) -> TensorType:
        """The type of a part that has the split axis, of size 1."""
        dims = self.state.type.dims
        ones = (*dims[: self.axis], 1, *dims[self.axis + 1 :])
        return TensorType(self.state.type.dtype, ones)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts, in the order of their positions."""
        count, name = self.state.type.dims[self.axis], self.state.name
        assert isinstance(count, int)
        return tuple(part_name(name, self.axis, place) for place in range(count))


@dataclass(frozen=True, slots=True)
class _Uses:
    """The uses of a stack in a method.

    Attributes:
        versions: ids of the values that are the whole stack, at the start of the method
            and after each write.
        reads: id of a value that is a part -> position of the part. The value has the
            stack's axis with size 1, or lacks the axis.
        writes: id of a version -> (position, new part) of the write that makes the
            version; the part has the stack's axis.
        is_closed: whether nothing but these reads and writes uses or makes a version.
    """

    versions: frozenset[int]
    reads: Mapping[int, int]
    writes: Mapping[int, tuple[int, Value]]
    is_closed: bool


def _find(program: Program) -> _Stack | None:
    """Return a state that can be split, None if there is none."""
    for state in program.states:
        if state.grows is None and state.initial is None:
            for axis, size in enumerate(state.type.dims):
                stack = _Stack(state, axis)
                several = isinstance(size, int) and size > 1
                if several and _can_be_split(program.methods, stack):
                    return stack
    return None


def _can_be_split(methods: Sequence[Method], stack: _Stack) -> bool:
    """Tell whether methods write a stack only in parts, and some parts like caches."""
    cached = False
    for method in methods:
        uses = _uses(method, stack)
        if uses.writes and not uses.is_closed:
            return False
        makers = method.makers()
        cached |= any(_is_cached(s, makers, uses) for _, s in uses.writes.values())
    return cached


def _is_cached(value: Value, makers: Mapping[int, Node], uses: _Uses) -> bool:
    """Tell whether a value is a part of a stack with new tokens written into it."""
    node = makers.get(value.id)
    if node is None or not node.inputs or value.id in uses.reads:
        return False
    if node.op == CACHE_UPDATE or _is_at_tokens(node, makers):
        return _is_of_part(node.inputs[0], makers, uses)
    # The new content of a part, or of a slice of it, is the last operand.
    write, copies = axis_write(node), node.op == "aten::copy"
    made_of = node.inputs[1:] if copies else (write.source,) if write else ()
    return any(_is_cached(v, makers, uses) for v in (node.inputs[0], *made_of))


def _is_of_part(value: Value, makers: Mapping[int, Node], uses: _Uses) -> bool:
    """Tell whether a value's chain of first operands leads to a part of the stack."""
    while value.id not in uses.reads:
        node = makers.get(value.id)
        if node is None or not node.inputs:
            return False
        value = node.inputs[0]
    return True


def _is_at_tokens(node: Node, makers: Mapping[int, Node]) -> bool:
    """Tell whether a node writes along an axis at positions that are not constant."""
    write = axis_write(node, lean=True)
    return write is not None and _constant_place(node, makers) is None


def _constant_place(node: Node, makers: Mapping[int, Node]) -> int | None:
    """Return the one position that a node writes along an axis, if it is constant.

    Return None for any other node.
    """
    write = axis_write(node)
    index = None if write is None else makers.get(write.index.id)
    if write is None or index is None or index.op != "aten::arange.start_step":
        return None
    place = index.arguments[0]
    whole = write.source.type.dims == write.dims
    one = write.index.type.dims == (1,) and whole
    return place if one and isinstance(place, int) and place >= 0 else None


def _uses(method: Method, stack: _Stack) -> _Uses:
    versions = {v.id for v, name in method.state_in if name == stack.state.name}
    makers = method.makers()
    reads: dict[int, int] = {}
    writes: dict[int, tuple[int, Value]] = {}
    is_closed = True
    for node in method.nodes:
        if versions.isdisjoint(value.id for value in node.inputs):
            continue
        place = _place_read(node, stack)
        written = _place_written(node, stack, versions, makers)
        if place is not None:
            reads[node.outputs[0].id] = place
        elif written is not None:
            versions.add(node.outputs[0].id)
            writes[node.outputs[0].id] = written
        else:
            is_closed = False
    kept = [*method.outputs, *(value for value, _ in method.input_out)]
    kept += [value for value, name in method.state_out if name != stack.state.name]
    own = [value for value, name in method.state_out if name == stack.state.name]
    is_closed &= versions.isdisjoint(value.id for value in kept)
    is_closed &= all(value.id in versions for value in own)
    return _Uses(frozenset(versions), reads, writes, is_closed)


def _place_read(node: Node, stack: _Stack) -> int | None:
    """Return the position along the stack's axis that a node reads.

    Return None if the node does not read the part at one constant position.
    """
    rank, size = len(stack.state.type.dims), stack.state.type.dims[stack.axis]
    match node.op, node.arguments:
        case "aten::select.int", (Value(), int(dim), int(place)):
            same = dim % rank == stack.axis
        case "aten::slice.Tensor", (Value(), int(dim), int(place), _, _):
            one = node.outputs[0].type == stack.row
            same = dim % rank == stack.axis and one
        case _:
            return None
    assert isinstance(size, int)
    return place % size if same and -size <= place < size else None


def _place_written(
    node: Node, stack: _Stack, versions: set[int], makers: Mapping[int, Node]
) -> tuple[int, Value] | None:
    """Return (position along the stack's axis, new part) for a node that writes a part.

    Return None for any other node.
    """
    place, write = _constant_place(node, makers), axis_write(node)
    if place is None or write is None or write.axis != stack.axis:
        return None
    own = write.target.id in versions and write.source.id not in versions
    return (place, write.source) if own else None


def _split(program: Program, stack: _Stack) -> Program:
    parts = tuple(State(name, stack.part, None) for name in stack.names)
    states = tuple(
        part
        for state in program.states
        for part in (parts if state == stack.state else (state,))
    )
    methods = tuple(_Splitter(method, stack).split() for method in program.methods)
    return replace(program, states=states, methods=methods)


class _Splitter:
    """Rewrites a method with a split stack.

    `parts`: id of a version of the stack -> the values of its parts.
    """

    def __init__(self, method: Method, stack: _Stack) -> None:
        self._method, self._stack = method, stack
        self._uses = _uses(method, stack)
        self._rebuilt = NodeList(method)
        self._names: dict[int, Value] = {}
        self._parts: dict[int, tuple[Value, ...]] = {}

    def split(self) -> Method:
        """Return the method with a state for each part in place of the stack."""
        if not self._uses.versions and not any(
            name == self._stack.state.name for _, name in self._method.state_out
        ):
            return self._method
        state_in = tuple(self._states_in())
        for node in self._method.nodes:
            self._rewrite(node)
        outputs = {v.id for v in self._method.outputs} & self._parts.keys()
        self._names.update((v, self._whole(v)) for v in sorted(outputs))
        method = replace(
            self._method, state_in=state_in, state_out=tuple(self._states_out())
        )
        renamed = rename_results(method, self._names)
        return replace(renamed, nodes=tuple(self._rebuilt.nodes))

    def _states_in(self) -> Iterator[tuple[Value, str]]:
        for value, name in self._method.state_in:
            if name == self._stack.state.name:
                new = [self._rebuilt.value(self._stack.part) for _ in self._stack.names]
                self._parts[value.id] = tuple(new)
                yield from zip(new, self._stack.names, strict=True)
            else:
                yield value, name

    def _rewrite(self, node: Node) -> None:
        """Add a node, or nodes on parts of the stack that compute the same."""
        made = node.outputs[0].id if node.outputs else -1
        if made in self._uses.reads:
            self._read(node, self._uses.reads[made])
        elif made in self._uses.writes:
            place, source = self._uses.writes[made]
            parts = list(self._parts[node.inputs[0].id])
            parts[place] = self._part_of(self._names.get(source.id, source), node)
            self._parts[made] = tuple(parts)
        else:
            for value in node.inputs:
                if value.id in self._parts and value.id not in self._names:
                    self._names[value.id] = self._whole(value.id)
            self._rebuilt.keep(rename_node(node, self._names))

    def _read(self, node: Node, place: int) -> None:
        part = self._parts[node.inputs[0].id][place]
        if node.outputs[0].type == part.type:
            self._names[node.outputs[0].id] = part
            return
        arguments = (part, self._stack.row.dims)
        self._rebuilt.keep(replace(node, op="aten::view", arguments=arguments))

    def _part_of(self, source: Value, node: Node) -> Value:
        """Return the new content of a part as a value without the stack's axis."""
        maker = self._rebuilt.makers.get(source.id)
        if maker is not None and maker.op in RESHAPING_VIEWS:
            without = maker.inputs[0]
            if without.type == self._stack.part:
                return without
        return self._view(source, self._stack.part, node.source)

    def _whole(self, version: int) -> Value:
        """Add nodes that concatenate the parts of a version; return the whole."""
        stack = self._stack
        rows = tuple(self._view(v, stack.row, "") for v in self._parts[version])
        return self._rebuilt.add("aten::cat", (rows, stack.axis), stack.state.type, "")

    def _view(self, value: Value, kind: TensorType, source: str) -> Value:
        return self._rebuilt.add("aten::view", (value, kind.dims), kind, source)

    def _states_out(self) -> Iterator[tuple[Value, str]]:
        stack = self._stack
        for value, name in self._method.state_out:
            if name != stack.state.name:
                if value.id in self._parts:
                    self._names[value.id] = self._whole(value.id)
                yield value, name
                continue
            parts = self._parts.get(value.id)
            if parts is None:
                whole = self._names.get(value.id, value)
                parts = tuple(self._selected(whole, i) for i in range(len(stack.names)))
            given = {v.id for v, n in self._method.state_in if n == stack.state.name}
            old = {v.id for version in given for v in self._parts[version]}
            for part, own in zip(parts, stack.names, strict=True):
                if part.id not in old:
                    yield part, own

    def _selected(self, whole: Value, place: int) -> Value:
        arguments = (whole, self._stack.axis, place)
        return self._rebuilt.add("aten::select.int", arguments, self._stack.part, "")
