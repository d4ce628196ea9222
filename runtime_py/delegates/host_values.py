"""What of a partition lies on the host, where a library of another process runs it.

In: a block's graph, sizes and arrays. Out: its values as arrays, views of what the
caller and the bundle have among them, and what has to be checked before each call.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.delegates.host_checks import checks_of
from kvc.runtime.delegates.partition_memory import partition_memory
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array
from kvc.schema.graph import Constant, Graph, Ref
from kvc.schema.ops import OPS, Aliasing

Check = tuple[int, Callable[[], None]]


def host_values(
    graph: Graph,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
) -> tuple[Values, Sequence[Check]]:
    """Return the values of a partition, and its checks.

    Args:
        graph: of the partition.
        sizes: of the program's symbols.
        inputs: arrays of the graph's inputs.
        outputs: likewise.
        arena: scratch memory of the context, which the values are laid out over.
        constant: returns named data.
    """
    memory = partition_memory(graph, sizes, inputs, outputs, arena, constant)
    values = Values(graph, sizes, memory)
    _place_views(graph, values)
    return values, checks_of(graph, values, sizes)


def _place_views(graph: Graph, values: Values) -> None:
    """Place the views of what the host has."""
    constants = (isinstance(each.storage, Constant) for each in graph.values)
    known = {*graph.inputs, *(i for i, constant in enumerate(constants) if constant)}
    for instruction in graph.instructions:
        first = instruction.arguments[0] if instruction.arguments else None
        view = OPS[instruction.op].aliasing is Aliasing.VIEW
        if view and isinstance(first, Ref) and first.value in known:
            bind_view(instruction, values)
            known |= {*instruction.results}
