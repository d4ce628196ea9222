"""Find which values of partitions lie in the memory of states.

In: a program. Out: for each value of a partition, a key for the value's memory. The key
is a state, if the value lies in one: partitions of all methods share the state. The key
of any other memory is different for each partition.
"""

from collections.abc import Iterator, Mapping

from kvc.schema.control import Control, read_control
from kvc.schema.graph import Graph, Instruction, Ref, StateSlot
from kvc.schema.model import Method, Program
from kvc.schema.ops import CONTROL_OPS, DELEGATE

_States = Mapping[int, int]  # from values in a state's memory to the state


class StateMemories:
    """The states whose memory partitions read and write."""

    def __init__(self, program: Program) -> None:
        partitions = {
            (one.method, one.block): number
            for number, one in enumerate(program.delegates)
        }
        self._states: dict[tuple[int, int], int] = {}
        for number, method in enumerate(program.methods):
            for block, states in _partition_states(method):
                partition = partitions[number, block]
                self._states.update(((partition, v), s) for v, s in states.items())

    def state_of(self, partition: int, value: int) -> int | None:
        """Return the id of the state that an input is; None if it is no state."""
        return self._states.get((partition, value))

    def memory_of(self, partition: int, graph: Graph, value: int) -> object:
        """Return a key for the memory of a value; the same memory has the same key.

        The value is one of the partition's graph.
        """
        root = graph.root_of(value)
        return self._states.get((partition, root), (partition, root))


def _partition_states(method: Method) -> Iterator[tuple[int, _States]]:
    """Yield each partition's block, and the state of each value that lies in one."""
    own = {
        value: told.storage.state
        for value, told in enumerate(method.graph.values)
        if isinstance(told.storage, StateSlot)
    }
    waiting: list[tuple[Graph, _States]] = [(method.graph, own)]
    while waiting:
        graph, states = waiting.pop()
        for step in graph.instructions:
            if step.op not in CONTROL_OPS:
                continue
            for block in read_control(step.op, step.arguments).blocks:
                inner = method.blocks[block].graph
                inside = _inside(step, graph, states, inner)
                if step.op == DELEGATE:
                    yield block, inside
                else:
                    waiting.append((inner, inside))


def _inside(
    step: Instruction, graph: Graph, states: _States, inner: Graph
) -> dict[int, int]:
    """Return which values of a block lie in states: the state's id by the value's id.

    Args:
        step: the instruction that runs the block.
        graph: the graph with the instruction.
        states: the states of the values of `graph`, by value id.
        inner: the block's graph.
    """
    control: Control[object] = read_control(step.op, step.arguments)
    lent = [
        states.get(graph.root_of(one.value)) if isinstance(one, Ref) else None
        for one in control.operands
    ]
    pairs = list(zip(inner.inputs, lent, strict=True))
    if step.op == DELEGATE:  # a result is computed in the operand's memory
        outputs = zip(inner.outputs, control.over, strict=False)
        pairs += [(inner.root_of(v), lent[o]) for v, o in outputs if o is not None]
    return {value: state for value, state in pairs if state is not None}
