"""Find where the operands and results of a control instruction lie: `BoundOperands`.

In: the instruction, and the values of the graph around it at some sizes. Out: an array
for each of them, or for a partition the buffer of a state that its backend owns.
Results over an operand get their tensors here.
"""

from collections.abc import Mapping, Sequence

from kvc.runtime.arrays import Array
from kvc.runtime.binding.values import Memory, Values
from kvc.runtime.states.owner import Buffer
from kvc.schema.control import Control, read_control
from kvc.schema.frozen import frozen
from kvc.schema.model import Alias, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing


@frozen
class BoundOperands:
    """Where the operands and results of a control instruction lie, at some sizes.

    Attributes:
        control: what the instruction says.
        sizes: of the program's symbols.
        memory: of the graph around it.
        pred: what a cond asks, None for the others.
        operands: an array for each.
        lent: the memory of each operand, longer than the operand where it grows.
        results: an array for each, the workspace of blocks last.
    """

    control: Control[object]
    sizes: Mapping[str, int]
    memory: Memory
    pred: Array | None
    operands: Sequence[Array]
    lent: Sequence[Array]
    results: Sequence[Array]


def bind_operands(
    instruction: Instruction,
    graph: Graph,
    values: Values,
    memory: Memory,
    sizes: Mapping[str, int],
    makers: Mapping[int, str],
) -> BoundOperands:
    """Bind the operands of an instruction of a graph whose earlier ones are bound.

    `makers` has the op of each value that an instruction of the graph makes.
    """
    control = read_control(instruction.op, instruction.arguments)
    operands = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    _share(instruction, control, operands, graph, values)
    pred = control.pred
    return BoundOperands(
        control=control,
        sizes=sizes,
        memory=memory,
        pred=values.array(pred.value) if isinstance(pred, Ref) else None,
        operands=[values.array(i) for i in operands],
        lent=[_lent(i, graph, values, makers) for i in operands],
        results=[values.array(i) for i in instruction.results],
    )


def bind_partition(
    instruction: Instruction, graph: Graph, values: Values, makers: Mapping[int, str]
) -> tuple[Sequence[Buffer], Sequence[Buffer]]:
    """Return a partition's operands and results, as `Handle.prepare` takes them."""
    control = read_control(instruction.op, instruction.arguments)
    operands = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    grown = _share(instruction, control, operands, graph, values)
    inputs = []
    for index, value in enumerate(operands):
        buffer: Buffer | None = values.buffer(value)
        if buffer is None and index in grown:
            buffer = _lent(value, graph, values, makers)
        inputs.append(values.array(value) if buffer is None else buffer)
    return inputs, [
        values.array(result) if (buffer := values.buffer(result)) is None else buffer
        for result in instruction.results
    ]


def _share(
    instruction: Instruction,
    control: Control[object],
    operands: Sequence[int],
    graph: Graph,
    values: Values,
) -> set[int]:
    """Let results over operands be these; return operands that become longer."""
    grown = set()
    for result, over in zip(instruction.results, control.over, strict=False):
        if over is None:
            continue
        if graph.values[result].type == graph.values[operands[over]].type:
            values.share(result, operands[over])
        else:  # it is made when it is asked for
            grown.add(over)
    return grown


def _lent(
    operand: int, graph: Graph, values: Values, makers: Mapping[int, str]
) -> Array:
    """Return the memory of an operand: with room after it unless it is a view."""
    value = operand
    while isinstance(storage := graph.values[value].storage, Alias):
        if OPS[makers[value]].aliasing is Aliasing.VIEW:
            return values.array(operand)
        value = storage.base
    return values.lent(operand)
