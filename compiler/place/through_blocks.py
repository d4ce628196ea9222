"""Assign results of control flow to the memory of an operand.

In: a functional method. Out: the method, whose control nodes record in `over` which
results lie in the memory of which operands. A result of branches lies in the memory of
an operand under two conditions. First, the result is a step on the way from the old to
the new content of persistent memory. Second, a branch computes the result from the
operand, by updates or by control flow inside it, or returns the operand itself. The
other branch then writes its whole result into the operand's memory. The values that a
loop carries always stay in place.

When the method has been proven, `blocks_to_prove` returns its blocks, in which outputs
are assigned to the memory of inputs (`input_out`) in the same way. `proof.py` decides
whether a block can leave its outputs there, and how many bytes that copies.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import control_of, with_over
from kvc.schema.ops import DELEGATE, OPS, RESHAPING_VIEWS, Aliasing


@dataclass(frozen=True, slots=True)
class _Mark:
    """Assigns result number `result` of a node to the memory of operand `operand`."""

    node: Node
    result: int
    operand: int


class Placer:
    """Assigns results of control flow to memory; `blocks` are the program's blocks."""

    def __init__(self, blocks: Mapping[int, Method]) -> None:
        self._blocks = blocks

    def mark(self, method: Method) -> Method:
        """Return a method in which `over` of each control node assigns its results."""
        over: dict[int, dict[int, int]] = {}  # id of a node -> result -> operand
        for new, old in _homes(method):
            marks = self._trace(method, new, old) or ()
            # A result on the paths of two memories is assigned to the first memory.
            if not any(m.result in over.get(id(m.node), {}) for m in marks):
                for mark in marks:
                    over.setdefault(id(mark.node), {})[mark.result] = mark.operand
        nodes = []
        for node in method.nodes:
            control = control_of(node)
            if control is not None:
                places = over.get(id(node), {})
                operands = tuple(places.get(i) for i in range(len(control.over)))
                node = with_over(node, operands)
            nodes.append(node)
        return replace(method, nodes=tuple(nodes))

    def blocks_to_prove(self, method: Method) -> Iterator[Method]:
        """Yield the blocks that a proven method runs, with their outputs assigned.

        An assigned output lies in the memory of an input of the block.
        """
        for node in method.nodes:
            control = control_of(node)
            if control is None:
                continue
            places = {i: k for i, k in enumerate(control.over) if k is not None}
            if control.is_loop:
                places = {i: i for i in range(control.carried)}
            for which, number in enumerate(control.blocks):
                inside = {} if control.tests(which) else places
                yield _with_homes(self._blocks[number], inside)

    def _trace(
        self, method: Method, new: Value, old: Value
    ) -> tuple[_Mark, ...] | None:
        """Return a `_Mark` for each control node between an old and a new content.

        Return None if every path from the old to the new content needs a copy.
        """
        makers, marks = method.makers(), list[_Mark]()
        current = _in_one_piece(new, makers)
        while current.id != old.id:
            node = makers.get(current.id)
            if node is None:
                return None
            if OPS[node.op].aliasing is Aliasing.UPDATE:
                current = _in_one_piece(node.inputs[0], makers)
                continue
            if OPS[node.op].aliasing is not Aliasing.CONTROL:
                fills = OPS[node.op].aliasing is Aliasing.FRESH
                return tuple(marks) if fills and current.type == old.type else None
            return self._through(method, node, current, old, marks)
        return tuple(marks)

    def _through(
        self, method: Method, node: Node, current: Value, old: Value, marks: list[_Mark]
    ) -> tuple[_Mark, ...] | None:
        """Continue a trace from a result of a node to an operand of that node.

        The result must be able to take the operand's memory. The operand that is the
        old content is tried first.
        """
        result = [value.id for value in node.outputs].index(current.id)
        makers = method.makers()
        candidates = self._candidates(node, result)
        for operand, value in sorted(candidates, key=lambda one: one[1].id != old.id):
            if not _is_whole(value, makers):
                continue  # a block needs whole memory, in its own shape
            further = self._trace(method, value, old)
            if further is not None:
                return (*marks, _Mark(node, result, operand), *further)
        return None

    def _candidates(self, node: Node, result: int) -> Iterator[tuple[int, Value]]:
        """Yield (index, operand) for operands whose memory a result can take."""
        control = control_of(node)
        assert control is not None
        for i, value in enumerate(control.operands):
            if control.is_loop:
                fits = i == result and i < control.carried
            else:
                blocks = [self._blocks[number] for number in control.blocks]
                led = [self._leads(block, result, i) for block in blocks]
                same = value.type == node.outputs[result].type
                fits = any(led) if same else all(led) and _grows(value, node, result)
                if control.op == DELEGATE and same and not fits:
                    fits = _may_fill(blocks[0], result, i)
            if fits:
                yield i, value

    def _leads(self, block: Method, output: int, operand: int) -> bool:
        """Tell whether a block computes output `output` by updating input `operand`."""
        makers, root = block.makers(), block.inputs[operand]
        current = _in_one_piece(block.outputs[output], makers)
        while current.id != root.id:
            node = makers.get(current.id)
            if node is None:
                return False
            if OPS[node.op].aliasing is Aliasing.UPDATE:
                current = _in_one_piece(node.inputs[0], makers)
            elif OPS[node.op].aliasing is Aliasing.CONTROL:
                result = [value.id for value in node.outputs].index(current.id)
                ways = self._candidates(node, result)
                return any(self._trace(block, v, root) is not None for _, v in ways)
            else:
                # A backend's library may write before it has read all inputs.
                return block.in_place and _fills_itself(node, root)
        return True


def _may_fill(block: Method, output: int, operand: int) -> bool:
    """Tell whether a partition can write an output into an operand's memory."""
    makers, root = block.makers(), block.inputs[operand]
    current = _in_one_piece(block.outputs[output], makers)
    while current.id in makers:
        node = makers[current.id]
        if OPS[node.op].aliasing is Aliasing.FRESH:
            read = any(root in node.inputs for node in block.nodes)
            return current.type == root.type and (block.in_place or not read)
        if OPS[node.op].aliasing is not Aliasing.UPDATE:
            break
        current = _in_one_piece(node.inputs[0], makers)
    return False


def _grows(operand: Value, node: Node, result: int) -> bool:
    """Tell whether a result and an operand have equal shapes, except along one axis."""
    old, new = operand.type.dims, node.outputs[result].type.dims
    pairs = zip(old, new, strict=False)
    return len(old) == len(new) and sum(a != b for a, b in pairs) == 1


def _fills_itself(node: Node, root: Value) -> bool:
    """Tell whether a node computes its result pointwise from `root`, of equal type."""
    same = [value.type for value in node.outputs] == [root.type]
    return OPS[node.op].pointwise and root in node.inputs and same


def _homes(method: Method) -> Iterator[tuple[Value, Value]]:
    """Yield (new content, old content) for all memory that outlives a method."""
    states = {name: value for value, name in method.state_in}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    for new, name in method.state_out:
        if name in states:
            yield new, states[name]
    for new, name in method.input_out:
        yield new, inputs[name]


def _with_homes(block: Method, places: Mapping[int, int]) -> Method:
    """Return a block that leaves some outputs in the memory of inputs.

    `places` is output index -> input index. If one value is to be left in two inputs,
    the second input gets a copy.
    """
    outputs, nodes = list(block.outputs), list(block.nodes)
    count, seen = block.next_id(), set[int]()
    for output in places:
        value = outputs[output]
        if value.id in seen:
            outputs[output] = Value(count, value.type)
            nodes.append(Node("aten::clone", (value,), (outputs[output],)))
            count += 1
        seen.add(value.id)
    pairs = tuple(
        (outputs[output], block.input_names[operand])
        for output, operand in places.items()
    )
    return replace(block, outputs=tuple(outputs), nodes=tuple(nodes), input_out=pairs)


def _is_whole(value: Value, makers: Mapping[int, Node]) -> bool:
    """Tell whether a value is neither a view nor made by updates of a view."""
    while (node := makers.get(value.id)) is not None:
        if OPS[node.op].aliasing is not Aliasing.UPDATE:
            return OPS[node.op].aliasing is not Aliasing.VIEW
        value = node.inputs[0]
    return True


def _in_one_piece(value: Value, makers: Mapping[int, Node]) -> Value:
    """Return the value that `value` is made from by views that only reshape."""
    while value.id in makers and makers[value.id].op in RESHAPING_VIEWS:
        value = makers[value.id].inputs[0]
    return value
