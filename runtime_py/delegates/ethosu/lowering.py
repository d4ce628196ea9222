"""Translate a partition, at fixed sizes, to a TOSA graph.

In: the partition's code, the grid of each value, its constants. Out: a graph of int8
and int16. It has the inputs of the partition; its outputs are the outputs of the
partition, and the new contents of the inputs that the partition writes. This module,
`products.py`, `elementwise.py`, `normalization.py` and `attention.py` translate
operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.ethosu import attention, elementwise, products
from kvc.runtime.delegates.ethosu.functions import FUNCTIONS
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref, whole
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


def lower(
    graph: Graph,
    grids: Mapping[int, Grid],
    sizes: Mapping[str, int],
    constant: Callable[[int], Array],
) -> TosaGraph:
    """Return the TOSA graph of a partition.

    Args:
        graph: the partition's graph, of supported operators only.
        grids: the grids of all values of `graph`, by value id.
        sizes: the sizes of the symbols.
        constant: returns named data by id.

    Raises:
        ScaleOutOfRange: the scales of two grids differ too much.
    """
    values = LoweredValues(graph, grids, sizes, constant)
    values.take_inputs()
    for step in graph.instructions:
        for value, name in zip(step.results, _made(values, step), strict=True):
            values.place(value, name)
    return values.builder.graph([values.name(v) for v in results_of(graph)])


def _made(values: LoweredValues, step: Instruction) -> Sequence[str]:
    if step.op == CHECK_INDEX:
        return []
    if step.op == "aten::split_with_sizes":
        return split(values, step)
    return [_OPERATORS.get(step.op, view)(values, step)]


def results_of(graph: Graph) -> Sequence[int]:
    """Return a graph's outputs and the new contents of its inputs, each value once."""
    return list(dict.fromkeys((*graph.outputs, *written_inputs(graph).values())))


def written_inputs(graph: Graph) -> dict[int, int]:
    """Return the id of the new content of each written input, by the input's id."""
    found = {}
    inputs = {*graph.inputs}
    views = {
        value
        for step in graph.instructions
        if OPS[step.op].aliasing is Aliasing.VIEW
        for value in step.results
    }
    for step in graph.instructions:
        for value in step.results:
            root = graph.root_of(value)
            if root in inputs and value not in views:
                found[root] = value
    return found


# Copies, views, concatenations and splits, which only move elements.


def join(values: LoweredValues, step: Instruction) -> str:
    """Concatenate tensors along an axis."""
    joined, result = step.arguments[0], step.results[0]
    assert isinstance(joined, tuple)
    axis = whole(values.argument(step.arguments[1])) % len(values.shape(result))
    parts = [values.on_grid_of(ref(one), result) for one in joined]
    return values.builder.concat(parts, axis)


def copy(values: LoweredValues, step: Instruction) -> str:
    """Return a copy on the grid of the result."""
    return values.on_grid_of(ref(step.arguments[1]), step.results[0])


def split(values: LoweredValues, step: Instruction) -> Sequence[str]:
    """Return the parts of a value along an axis, each on the grid of its own result."""
    x, axis = ref(step.arguments[0]), whole(values.argument(step.arguments[2]))
    made, begin = [], 0
    for value in step.results:
        shape = values.shape(value)
        start = [0] * len(shape)
        start[axis % len(shape)] = begin
        begin += shape[axis % len(shape)]
        name = values.on_grid_of(x, value)
        made.append(values.builder.slice(name, tuple(start), shape))
    return made


def view(values: LoweredValues, step: Instruction) -> str:
    """Translate a view; the result has the grid of the operand."""
    builder, result, x = values.builder, step.results[0], ref(step.arguments[0])
    arguments = [values.argument(one) for one in step.arguments]
    name = values.on_grid_of(x, result)
    old, shape = values.shape(x), values.shape(result)
    match step.op:
        case "aten::transpose.int":
            order = list(range(len(old)))
            if old:
                one, other = whole(arguments[1]), whole(arguments[2])
                order[one], order[other] = order[other], order[one]
            return builder.transpose(name, tuple(order))
        case "aten::permute":
            wanted = arguments[1]
            assert isinstance(wanted, tuple)
            turned = tuple(whole(axis) % len(old) for axis in wanted)
            return builder.transpose(name, turned)
        case "aten::expand":
            ones = (1,) * (len(shape) - len(old))
            return builder.tile(builder.reshape(name, (*ones, *old)), shape)
        case "aten::slice.Tensor" | "aten::select.int":
            axis = whole(arguments[1]) % len(old)
            if step.op == "aten::select.int":
                begin = whole(arguments[2]) % old[axis]
                end = begin + 1
            else:
                bounds = (None if a is None else whole(a) for a in arguments[2:4])
                begin, end, _ = slice(*bounds).indices(old[axis])
            start, size = [0] * len(old), list(old)
            start[axis], size[axis] = begin, end - begin
            part = values.builder.slice(name, tuple(start), tuple(size))
            return builder.reshape(part, shape)
    return builder.reshape(name, shape)


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
    "aten::cat": join,
    "aten::copy": copy,
}
