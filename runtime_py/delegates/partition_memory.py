"""Where the values of a partition lie, if kvc's own kernels run it.

In: the block of the partition, its operands and results, the context's workspace. Out:
the `GraphMemory` that it is bound to. Inputs are lent to the code as to any block, so
that it works in the memory of states. Other outputs are bound to the given memory
without a copy where the graph allows it, and the rest lies in the workspace.
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

    `place_outputs` says what to copy then.

    Args:
        graph: the block.
        sizes: of the program's symbols.
        inputs: where the graph's lie, as `Handle.prepare` gets them.
        outputs: likewise.
        arena: for what lies between; another one where it is too small.
        constant: returns the data of a name.
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
    """Return the values that can lie in the memory of outputs, by id.

    An output that is a mere reshape of a scratch value puts that value there. What is
    left out (an output that is an input, a constant, a strided view, or there twice)
    must be copied after the run.
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
