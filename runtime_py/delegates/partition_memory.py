"""Place the values of a partition in memory, if kvc's own kernels run it.

In: the block of the partition, its operands and results, the context's workspace. Out:
the `GraphMemory` that the block is bound to. Inputs are lent to the code as to any
block, so that it works in the memory of states. Other outputs are bound to the given
memory without a copy if the graph allows it, and other values lie in the workspace.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array
from kvc.schema.graph import Alias, Graph, Scratch
from kvc.schema.ops import RESHAPING_VIEWS


def partition_memory(
    graph: Graph,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
) -> GraphMemory:
    """Return the memory of a partition's block.

    `place_outputs` determines which outputs need a copy afterwards.

    Args:
        graph: the graph of the block.
        sizes: the sizes of the program's symbols.
        inputs: arrays of the graph's inputs, as passed to `Handle.prepare`.
        outputs: arrays of the graph's outputs, likewise.
        arena: memory for other values; replaced by a larger one if it is too small.
        constant: returns named data by id.
    """
    nbytes = graph.scratch_nbytes
    return GraphMemory(
        scratch=arena if arena.nbytes >= nbytes else Arena(nbytes),
        constant=constant,
        given=place_outputs(graph, sizes, outputs),
        callers=dict(zip(graph.inputs, inputs, strict=True)),
    )


def place_outputs(
    graph: Graph, sizes: Mapping[str, int], outputs: Sequence[Array]
) -> dict[int, Array]:
    """Return the memory of values that can lie in outputs, by value id.

    If an output is a mere reshape of a scratch value, that value is placed there. Other
    outputs (an input, a constant, a strided view, or a repeated output) must be copied
    after the run.
    """
    given: dict[int, Array] = {}
    makers = {v: i.op for i in graph.instructions for v in i.results}
    for value, array in zip(graph.outputs, outputs, strict=True):
        root = value
        storage = graph.values[root].storage
        while isinstance(storage, Alias) and makers.get(root) in RESHAPING_VIEWS:
            root = storage.base
            storage = graph.values[root].storage
        if not isinstance(storage, Scratch) or root in given:
            continue
        if root == value:
            given[root] = array
        elif array.flags.c_contiguous:
            given[root] = array.reshape(graph.values[root].type.shape(sizes))
    return given
