"""Place in memory the values of a partition that kvc's own kernels run.

In: the block of the partition, arrays of its inputs and outputs, the context's scratch
memory. Out: the `GraphMemory` that the block is bound to. The code reads and writes the
memory of the inputs itself, so it updates states in place. Outputs are computed in the
caller's memory, without a copy, if the graph allows it. All remaining values lie in
scratch memory.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array
from kvc.schema.graph import Alias, Graph, Scratch
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing


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
        outputs: arrays of the graph's outputs, as passed to `Handle.prepare`.
        arena: memory for all values that are neither inputs nor outputs; it grows if it
            is too small.
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
    """Return the memory of values that can be computed in an output, by value id.

    If an output is only a reshape of a scratch value, or is written over one as a
    whole, the scratch value is computed in the output's memory. All other outputs (an
    input, a constant, a strided view, or a repeated output) must be copied after the
    run.
    """
    given: dict[int, Array] = {}
    makers = {v: i.op for i in graph.instructions for v in i.results}
    for value, array in zip(graph.outputs, outputs, strict=True):
        root = value
        storage = graph.values[root].storage
        while isinstance(storage, Alias) and _keeps_memory(makers.get(root, "")):
            root = storage.base
            storage = graph.values[root].storage
        if not isinstance(storage, Scratch) or root in given:
            continue
        if root == value:
            given[root] = array
        elif array.flags.c_contiguous:
            given[root] = array.reshape(graph.values[root].type.shape(sizes))
    return given


def _keeps_memory(op: str) -> bool:
    """Tell whether a result in an operand's memory is all of it, in its order."""
    return op in RESHAPING_VIEWS or (op in OPS and OPS[op].aliasing is Aliasing.FRESH)
