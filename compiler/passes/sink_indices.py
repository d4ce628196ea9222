"""Compute the index of a cache write inside the branch that writes.

If code outside of a branch computes `position + torch.arange(n)` and the branch
captures the result, passes that look at the branch see an index tensor of unknown
values. In: a program. Out: the same program, except that small integer computations are
repeated in the blocks that use the results. So a block contains the computation of its
write index.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.control import (
    arguments_of,
    blocks_by_number,
    control_of,
    entries,
)
from kvc.compiler.ir.rewrite import rename_node
from kvc.schema.control import Control
from kvc.schema.dtypes import DType
from kvc.schema.ops import Keeps, ops_that_keep

_LONGEST = 16  # nodes; a longer computation is no index computation
_INTEGERS = (DType.INT32, DType.INT64)
_SMALL = {
    "aten::add.Tensor", "aten::add.Scalar", "aten::sub.Scalar", "aten::_to_copy",
    "aten::arange.start_step", *ops_that_keep(Keeps.ALL, Keeps.SOME, Keeps.REPEATED),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkIndices:
    """Repeat small integer computations in the branches and loops that use them."""

    name: ClassVar[str] = "sink-indices"

    def run(self, program: Program) -> Program:
        """Return the program whose blocks compute their indices themselves."""
        sinker = _Sinker(program)
        for method in entries(program):
            sinker.sink(method)
        return replace(
            program, methods=tuple(sinker.done[m.name] for m in program.methods)
        )


class _Sinker:
    """Rewrites the methods of a program, each before the blocks that it runs."""

    def __init__(self, program: Program) -> None:
        self._blocks = blocks_by_number(program)
        self.done: dict[str, Method] = {}

    def sink(self, method: Method) -> None:
        makers, nodes = method.makers(), list[Node]()
        for node in method.nodes:
            control = control_of(node)
            if control is not None:
                for way in _ways(control, makers):
                    control = self._sink_one(control, way)
                node = replace(node, arguments=arguments_of(control))
                for number in control.blocks:
                    self.sink(self._blocks[number])
            nodes.append(node)
        self.done[method.name] = replace(method, nodes=tuple(nodes))

    def _sink_one(self, control: Control[Value], way: "_Way") -> Control[Value]:
        """Let the blocks of a control node compute an operand instead of passing it."""
        at = control.operands.index(way.result, control.fixed)
        operands = list(control.operands)
        added = [v for v in way.sources if v not in operands[control.fixed :]]
        for number in control.blocks:
            self._blocks[number] = _with_way(
                self._blocks[number], control, at, way, added
            )
        operands = [*operands[:at], *operands[at + 1 :], *added]
        over = tuple(i - 1 if i is not None and i > at else i for i in control.over)
        return replace(control, operands=tuple(operands), over=over)


@dataclass(frozen=True, slots=True)
class _Way:
    """The nodes that compute `result`, in order, and the values they start from."""

    result: Value
    nodes: tuple[Node, ...]
    sources: tuple[Value, ...]


def _ways(control: Control[Value], makers: Mapping[int, Node]) -> list[_Way]:
    """Return the computations of those operands that blocks can compute themselves."""
    found = []
    for value in control.operands[control.fixed :]:
        way = _way_to(value, makers)
        if way is not None:
            found.append(way)
    return found


def _way_to(result: Value, makers: Mapping[int, Node]) -> _Way | None:
    """Return the computation of `result`, if it is a short one of consecutive indices.

    Return None for any other value.
    """
    nodes: list[Node] = []
    sources: list[Value] = []

    def visit(value: Value) -> None:
        node = makers.get(value.id)
        small = node is not None and node.op in _SMALL and len(node.outputs) == 1
        if node is None or not small or value.type.dtype not in _INTEGERS:
            if value not in sources:
                sources.append(value)
            return
        for read in node.inputs:
            visit(read)
        if node not in nodes:
            nodes.append(node)

    visit(result)
    counts = any(node.op == "aten::arange.start_step" for node in nodes)
    short = 0 < len(nodes) <= _LONGEST
    single = all(
        v.type.dtype in _INTEGERS and all(size == 1 for size in v.type.dims)
        for v in sources
    )
    return (
        _Way(result, tuple(nodes), tuple(sources))
        if counts and short and single
        else None
    )


def _with_way(
    block: Method,
    control: Control[Value],
    at: int,
    way: _Way,
    added: list[Value],
) -> Method:
    """Return a block that computes its input `at` instead of taking it.

    Args:
        block: a block that `control` runs.
        control: the control node's arguments.
        at: index of the input.
        way: the computation of the input.
        added: the values that the block gets as further inputs, for the computation.
    """
    count = block.next_id()
    names: dict[int, Value] = {}
    fixed = zip(
        control.operands[control.fixed :], block.inputs[control.fixed :], strict=True
    )
    names.update((outer.id, own) for outer, own in fixed)
    extra = []
    for value in added:
        names[value.id] = Value(count, value.type)
        extra.append(names[value.id])
        count += 1
    nodes = []
    for node in way.nodes:
        (made,) = node.outputs
        own = block.inputs[at] if made.id == way.result.id else Value(count, made.type)
        count += 1
        nodes.append(replace(rename_node(node, names), outputs=(own,)))
        names[made.id] = own
    labels = [*block.input_names[:at], *block.input_names[at + 1 :]]
    return replace(
        block,
        inputs=(*block.inputs[:at], *block.inputs[at + 1 :], *extra),
        input_names=(*labels, *(f"%{value.id}" for value in extra)),
        nodes=(*nodes, *block.nodes),
    )
