"""Turn writes to caches into `kvc::append` and `kvc::cache_update`.

In: a program. Out: the same program, changed by two passes. `AppendToCaches` turns a
concatenation that lengthens a cache, `cat([past, new])`, into `kvc::append`. `past` is
the cache before the call: a state that the result replaces, or an input of dynamic size
whose longer version is returned to the caller. The pass also removes empty tensors from
all concatenations, and concatenations of one tensor alone. `RecognizeCacheWrites` turns
a write into consecutive slots of a cache, such as `index_copy` at a position and the
positions after it, into `kvc::cache_update`. Other concatenations and writes stay.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from kvc.compiler.analysis.index_sums import (
    IndexSum,
    IndexSums,
    NonNegative,
    index_range,
    start_of_rows,
    sums_of,
)
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.arguments import arguments_of
from kvc.compiler.ir.control import blocks_by_number, control_of, entries
from kvc.compiler.ir.rewrite import (
    NodeList,
    each_method,
    read_through,
)
from kvc.compiler.ir.verify import sample_sizes
from kvc.compiler.passes.axis_writes import AxisWrite, axis_write, whole_source
from kvc.schema.ops import CACHE_UPDATE, COND, OPS, Aliasing
from kvc.schema.types import Affine, Dim, Symbol, TensorType, add_dims, bounds, evaluate


@dataclass(frozen=True, slots=True)
class AppendToCaches:
    """Replace concatenations that lengthen a cache by `kvc::append`."""

    name: ClassVar[str] = "append-to-caches"

    def run(self, program: Program) -> Program:
        """Return the program with appends to its growing caches."""
        grows = {s.name: s.grows for s in program.states if s.grows is not None}
        program = each_method(program, lambda m: read_through(m, _without_empty_parts))
        blocks = blocks_by_number(program)
        joins = {
            id(node)
            for method in entries(program)
            for chain in _chains(method, grows, blocks)
            for node in chain
        }
        return each_method(program, lambda method: _append(method, joins))


def _without_empty_parts(node: Node) -> Node | tuple[Value, ...]:
    """Drop the empty parts of a concatenation; remove a concatenation of one part."""
    parts = _parts(node) if node.op == "aten::cat" else ()
    if len(parts) == 1 and parts[0].type == node.outputs[0].type:
        return parts
    return replace(node, arguments=(parts, node.arguments[1])) if parts else node


def _parts(node: Node) -> tuple[Value, ...]:
    """Return the parts of a `cat`, without empty parts of the result's dtype."""
    axis, result = _axis(node), node.outputs[0].type
    return tuple(
        part
        for part in node.inputs
        if part.type.dtype is not result.dtype
        or (len(part.type.dims) == len(result.dims) and part.type.dims[axis] != 0)
    )


def _axis(node: Node) -> int:
    """Return the axis of a `cat`, counted from 0."""
    dim = node.arguments[1]
    assert isinstance(dim, int)
    return dim % max(1, len(node.outputs[0].type.dims))


def _append(method: Method, joins: Set[int]) -> Method:
    """Replace the concatenations of growing caches by appends."""
    rebuilt = NodeList(method)
    for node in method.nodes:
        if id(node) in joins:
            _keep_as_appends(node, rebuilt)
        else:
            rebuilt.keep(node)
    return replace(method, nodes=tuple(rebuilt.nodes))


def _chains(
    method: Method, grows: Mapping[str, int], blocks: Mapping[int, Method]
) -> Iterator[Sequence[Node]]:
    """Yield, for each growing cache, the list of concatenations that lengthen it."""
    states = {name: value for value, name in method.state_in}
    for new, name in method.state_out:
        if name in grows and name in states:
            yield _chain(method, states[name], new, grows[name], blocks) or ()
    changed = {name for _, name in method.input_out}
    for past, name in zip(method.inputs, method.input_names, strict=True):
        found = (
            _chain(method, past, new, axis, {})
            for axis, size in enumerate(past.type.dims)
            if isinstance(size, Affine) and name not in changed
            for new in method.outputs
        )
        yield next((chain for chain in found if chain), [])


def _chain(
    method: Method,
    past: Value,
    new: Value,
    axis: int,
    blocks: Mapping[int, Method],
) -> list[Node] | None:
    """Return the concatenations that turn `past` into `new`, the last one first.

    Return None if anything else is on the path from `past` to `new`. A value between
    two of the concatenations must have no other reader, since appends leave it no
    separate memory.
    """
    makers = method.makers()
    chain: list[Node] = []
    current = new
    while current.id != past.id:
        node = makers.get(current.id)
        if node is not None and node.op == COND and blocks:
            through = _through(node, current, axis, blocks)
            if through is None:
                return None
            current, inside = through
            chain += inside
            continue
        if node is None or node.op != "aten::cat" or _axis(node) != axis:
            return None
        if any(part.type.dtype is not past.type.dtype for part in node.inputs):
            return None
        if any(_viewed(part, makers) == past.id for part in node.inputs[1:]):
            return None  # an append may not read the memory that it writes
        if chain and not _is_read_once(method, current):
            return None
        chain.append(node)
        current = node.inputs[0]
    return chain


def _viewed(value: Value, makers: Mapping[int, Node]) -> int:
    """Return the id of the value that `value` is a view of, or its own id."""
    while value.id in makers:
        node = makers[value.id]
        if OPS[node.op].aliasing is not Aliasing.VIEW:
            break
        value = node.inputs[0]
    return value.id


def _through(
    node: Node, result: Value, axis: int, blocks: Mapping[int, Method]
) -> tuple[Value, list[Node]] | None:
    """Return the operand that all branches lengthen, and the branches' concatenations.

    Return None if the branches lengthen no common operand to `result`.
    """
    control, at = control_of(node), node.outputs.index(result)
    assert control is not None
    for i, operand in enumerate(control.operands):
        found: list[Node] = []
        for number in control.blocks:
            block = blocks[number]
            chain = _chain(block, block.inputs[i], block.outputs[at], axis, blocks)
            if chain is None:
                break
            found += chain
        else:
            return operand, found
    return None


def _is_read_once(method: Method, value: Value) -> bool:
    readers = [v for node in method.nodes for v in node.inputs if v.id == value.id]
    return len(readers) == 1 and all(v.id != value.id for v in method.results)


def _keep_as_appends(node: Node, rebuilt: NodeList) -> None:
    """Add one append node for each part of a concatenation except the first part."""
    axis, (past, *parts) = _axis(node), node.inputs
    for part in parts[:-1]:
        length = add_dims(past.type.dims[axis], part.type.dims[axis])
        kind = TensorType(
            past.type.dtype,
            (*past.type.dims[:axis], length, *past.type.dims[axis + 1 :]),
        )
        past = rebuilt.add("kvc::append", (past, part, axis), kind, node.source)
    arguments: tuple[Argument, ...] = (past, parts[-1], axis)
    rebuilt.keep(replace(node, op="kvc::append", arguments=arguments))


# Turn writes into consecutive slots into `kvc::cache_update`.


@dataclass(frozen=True, slots=True)
class RecognizeCacheWrites:
    """Replace writes into consecutive slots by `kvc::cache_update`."""

    name: ClassVar[str] = "recognize-cache-writes"

    def run(self, program: Program) -> Program:
        """Return the program with `kvc::cache_update` nodes."""
        recognizer = _Recognizer(program.symbols, NonNegative(program))
        return each_method(program, recognizer.rewrite)


class _Recognizer:
    def __init__(self, symbols: Sequence[Symbol], non_negative: NonNegative) -> None:
        self._symbols = {symbol.name: symbol for symbol in symbols}
        self._samples = tuple(sample_sizes(tuple(symbols)))
        self._non_negative = non_negative

    def rewrite(self, method: Method) -> Method:
        """Return the method with `kvc::cache_update` nodes."""
        rebuilt = NodeList(method)
        sums = sums_of(method, rebuilt.makers)
        for node in method.nodes:
            write = axis_write(node, lean=True)
            start = self._start(write, method, sums) if write else None
            if write is None or start is None:
                rebuilt.keep(node)
                continue
            add = partial(rebuilt.add, source=node.source)
            rows = start_of_rows(start, write.target.type.dims[0], add)
            given: dict[str, Argument] = {
                "cache": write.target,
                "update": whole_source(write, add),
                "write_indices": rows,
                "axis": write.axis,
                "mode": "linear",
            }
            arguments = arguments_of(CACHE_UPDATE, given)
            rebuilt.keep(replace(node, op=CACHE_UPDATE, arguments=arguments))
        return replace(method, nodes=tuple(rebuilt.nodes))

    def _start(
        self, write: AxisWrite, method: Method, sums: IndexSums
    ) -> IndexSum | None:
        """Return the first position of a cache write, None for any other write."""
        cache, axis = write.target.type.dims, write.axis
        if axis == 0:
            return None
        count = write.dims[axis]
        found = index_range(write.index, sums)
        if found is None or not found.addends or not self._fits(count, cache[axis]):
            return None
        if write.from_back and not self._is_non_negative(found, method):
            return None
        listed = any(size != 1 for v in found.addends for size in v.type.dims)
        if listed and (count == cache[0] or bounds(count, self._symbols)[0] < 1):
            return None  # a position for each row, or no position
        return found

    def _fits(self, count: Dim, slots: Dim) -> bool:
        """Tell whether a write of `count` slots fits, for all sizes."""
        return all(evaluate(count, s) <= evaluate(slots, s) for s in self._samples)

    def _is_non_negative(self, found: IndexSum, method: Method) -> bool:
        return bounds(found.constant, self._symbols)[0] >= 0 and all(
            self._non_negative.holds(method, addend) for addend in found.addends
        )
