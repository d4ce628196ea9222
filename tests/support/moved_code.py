"""Programs made by hand whose one method does all its work in a block.

`in_partition` and `in_branches` take a program of one method, with states and
partitions of a cursor, and move its instructions into a block: that of a delegate, or
two equal branches. The block is lent the method's inputs, its states and the fields of
its cursors. Whatever of these the block writes is also a result of the block.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sample_programs import changed, in_place
from stateful_programs import Builder

from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Caller,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    StateSlot,
)
from kvc.schema.model import Block, Delegate, MemoryKind, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType


def in_partition(whole: Program) -> Program:
    moved = _Moved(whole)
    step = Instruction("kvc::delegate", (0, *moved.passed), tuple(moved.results))
    nbytes = moved.block.graph.scratch_nbytes
    partition = Delegate("sample", 0, 0, b"", (), MemoryKind.PLANNED, nbytes, 0)
    return replace(moved.program(step, 1), delegates=(partition,))


def in_branches(whole: Program) -> Program:
    """Return a program whose method does its work in either of two equal branches.

    The method has one more input, the bool `yes`, which chooses the branch.
    """
    moved = _Moved(whole)
    nbytes, b = moved.block.graph.scratch_nbytes, moved.around
    moved.inputs["yes"] = yes = b.scratch(TensorType(DType.BOOL, (1,)))
    workspace = b.scratch(TensorType(DType.UINT8, (nbytes,)))
    results = (*moved.results, workspace)
    step = Instruction("kvc::cond", (Ref(yes), 0, 1, *moved.passed), results)
    return moved.program(step, 2)


class _Moved:
    """A method's code as a block, and the method around it that runs the block.

    Attributes:
        block: the former code of the method.
        around: the builder of the new code of the method.
        inputs: the method's inputs, by name.
        passed: the block's operands, and for each result the operand that it overwrites
            or None.
        results: the values that the block returns.
    """

    def __init__(self, whole: Program) -> None:
        self._whole, method = whole, whole.methods[0]
        self.block, lent, bases = _block_of(method.graph)
        self.around = b = Builder({symbol.name: symbol for symbol in whole.symbols})
        outer: dict[int, int] = {}
        for i in lent:
            value = method.graph.values[i]
            given = i in method.graph.inputs
            own = b.scratch if given else partial(b.value, storage=value.storage)
            outer[i] = own(value.type)
        names = zip(method.input_names, method.graph.inputs, strict=True)
        self.inputs = {name: outer[i] for name, i in names}
        made = self.block.graph
        types = [made.values[value].type for value in made.outputs]
        over = [
            b.value(t, Alias(outer[lent[h]]))
            for t, h in zip(types, bases, strict=False)
        ]
        self._outputs = [b.scratch(kind) for kind in types[len(bases) :]]
        self.results = [*over, *self._outputs]
        fresh = (None,) * len(self._outputs)
        self.passed = tuple(Ref(outer[i]) for i in lent), (*bases, *fresh)

    def program(self, step: Instruction, count: int) -> Program:
        self.around.instructions.append(step)
        method = self._whole.methods[0]
        made = self.around.method(
            method.name,
            self.inputs,
            self._outputs,
            advances=method.advances,
            blocks=(self.block,) * count,
        )
        return replace(self._whole, methods=(made,))


def _block_of(graph: Graph) -> tuple[Block, Sequence[int], Sequence[int]]:
    lent = [
        i
        for i, value in enumerate(graph.values)
        if isinstance(value.storage, StateSlot | CursorSlot) or i in graph.inputs
    ]
    ends: dict[int, int] = {}  # what is written -> the value that it is at the end
    for step in graph.instructions:
        if OPS[step.op].aliasing is not Aliasing.VIEW:
            shared = [v for v in step.results if graph.root_of(v) != v]
            ends.update((graph.root_of(value), value) for value in shared)
    values = [
        replace(value, storage=Caller()) if i in lent else value
        for i, value in enumerate(graph.values)
    ]
    outputs = (*ends.values(), *graph.outputs)
    made = replace(graph, values=tuple(values), inputs=tuple(lent), outputs=outputs)
    return Block(made, in_place(made)), lent, [lent.index(root) for root in ends]


def with_block(whole: Program, **changes: object) -> Program:
    blocks = whole.methods[0].blocks
    graph = replace(blocks[0].graph, **changes)
    moved = changed(whole.methods, 0, blocks=changed(blocks, 0, graph=graph))
    return replace(whole, methods=moved)
