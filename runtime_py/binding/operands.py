"""Find where the operands and results of a control instruction lie: `BoundOperands`.

In: the instruction, and the values of the graph around it at some sizes. Out: an array
for each of them. Results over an operand get their tensors here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.runtime.arrays import Array
from kvc.runtime.binding.values import Memory, Values
from kvc.schema.control import Control, read_control
from kvc.schema.model import Alias, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class BoundOperands:
    """Where the operands and results of a control instruction lie, at some sizes.

    Attributes:
        control: what the instruction says.
        sizes: of the program's symbols.
        memory: of the graph around it.
        pred: what a cond asks, None for the others.
        operands: an array for each.
        lent: the memory of each operand, longer than the operand where it grows.
        grown: the operands over which a longer result lies.
        results: an array for each, the workspace of blocks last.
    """

    control: Control[object]
    sizes: Mapping[str, int]
    memory: Memory
    pred: Array | None
    operands: Sequence[Array]
    lent: Sequence[Array]
    grown: Sequence[int]
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
    grown = []
    for result, over in zip(instruction.results, control.over, strict=False):
        if over is None:
            continue
        if graph.values[result].type == graph.values[operands[over]].type:
            values.share(result, operands[over])
        else:  # it is made when it is asked for
            grown.append(over)
    pred = control.pred
    return BoundOperands(
        control=control,
        sizes=sizes,
        memory=memory,
        pred=values.array(pred.value) if isinstance(pred, Ref) else None,
        operands=[values.array(i) for i in operands],
        lent=[_lent(i, graph, values, makers) for i in operands],
        grown=grown,
        results=[values.array(i) for i in instruction.results],
    )


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
