"""Make a TOSA graph of a partition, at fixed sizes.

In: the partition's code, the grid of each value, its constants. Out: a graph of int8
and int16, whose inputs are those of the partition, and whose outputs are those of the
partition and the new contents of inputs that it writes. What becomes of an operator is
in `products.py`, `elementwise.py`, `moves.py`, `normalization.py` and `attention.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.ethosu import attention, elementwise, moves, products
from kvc.runtime.delegates.ethosu.functions import FUNCTIONS
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues
from kvc.runtime.delegates.ethosu.normalization import rms_norm
from kvc.runtime.delegates.ethosu.tosa import TosaGraph
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.ethosu import (
    ADDITIONS,
    ATTENTION,
    CACHE_UPDATE,
    CHECK_INDEX,
    ROTARY,
)
from kvc.schema.backends.grids import Grid
from kvc.schema.graph import Graph, Instruction
from kvc.schema.ops import OPS, Aliasing

_OPERATORS: Final[Mapping[str, Callable[[LoweredValues, Instruction], str]]] = {
    **dict.fromkeys(FUNCTIONS, elementwise.function),
    **dict.fromkeys(ADDITIONS, elementwise.addition),
    "aten::mul.Tensor": elementwise.product,
    ROTARY: elementwise.rotary_embedding,
    "aten::linear": products.linear,
    "aten::convolution": products.convolution,
    "aten::rms_norm": rms_norm,
    CACHE_UPDATE: attention.cache_update,
    ATTENTION: attention.attention,
    "aten::cat": moves.join,
    "aten::copy": moves.copy,
}


def lower(
    graph: Graph,
    grids: Mapping[int, Grid],
    sizes: Mapping[str, int],
    constant: Callable[[int], Array],
) -> TosaGraph:
    """Return the TOSA graph of a partition.

    Args:
        graph: the partition's code, of what the backend takes alone.
        grids: of all its values.
        sizes: of the symbols.
        constant: returns named data.

    Raises:
        ScaleOutOfRange: two grids are too far apart.
    """
    values = LoweredValues(graph, grids, sizes, constant)
    values.take_inputs()
    for step in graph.instructions:
        for value, name in zip(step.results, _made(values, step), strict=True):
            values.place(value, name)
    return values.builder.graph([values.name(v) for v in results_of(graph)])


def _made(values: LoweredValues, step: Instruction) -> Sequence[str]:
    """Return the tensors of the results of an instruction."""
    if step.op == CHECK_INDEX:
        return []
    if step.op == "aten::split_with_sizes":
        return moves.split(values, step)
    return [_OPERATORS.get(step.op, moves.view)(values, step)]


def results_of(graph: Graph) -> Sequence[int]:
    """Return the values that a TOSA graph gives, each once: outputs, new contents."""
    return list(dict.fromkeys((*graph.outputs, *written_inputs(graph).values())))


def written_inputs(graph: Graph) -> dict[int, int]:
    """Return which inputs are written: input -> the value that is its new content."""
    found = {}
    inputs = {*graph.inputs}
    views = _views(graph)
    for step in graph.instructions:
        for value in step.results:
            root = graph.root_of(value)
            if root in inputs and value not in views:
                found[root] = value
    return found


def _views(graph: Graph) -> set[int]:
    return {
        value
        for step in graph.instructions
        if OPS[step.op].aliasing is Aliasing.VIEW
        for value in step.results
    }
