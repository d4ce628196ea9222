"""Call a native kernel as the backend `cpu` does, into guarded memory."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from kernel_calls import Guarded
from op_cases import Case, type_of
from torch import Tensor

from kvc.runtime.delegates.cpu.binding import bind_steps
from kvc.runtime.execution.executor import Unbegun
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import tensor_as_array
from kvc.runtime.native.library import find_library
from kvc.schema.backends.cpu import why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Caller,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    Value,
)
from kvc.schema.model import Block
from kvc.schema.ops import OPS, Aliasing


def native_graph(
    case: Case, results: Sequence[Tensor]
) -> tuple[Graph, dict[int, Tensor]] | None:
    """Return a graph of one call and its operands; None if `cpu` refuses the call.

    The operands are tensors by the number of their value in the graph.
    """
    graph, tensors = _graph(case, results)
    (instruction,) = graph.instructions
    types = [graph.values[value].type for value in instruction.results]
    refused = why_not(case.op, arguments_of(graph, instruction), types)
    return None if refused else (graph, tensors)


def run_native(
    graph: Graph, tensors: dict[int, Tensor], expected: Sequence[Tensor], threads: int
) -> list[Tensor]:
    outs = [Guarded(each.shape, each.dtype) for each in expected]
    run = bind_steps(
        "test",
        Block(graph, ()),
        {},
        [tensor_as_array(tensors[value]) for value in graph.inputs],
        [tensor_as_array(out.tensor) for out in outs],
        Arena(graph.scratch_nbytes),
        lambda name: np.ascontiguousarray(tensor_as_array(tensors[name])),
        find_library(),
        threads,
    )
    try:
        run()
    except Unbegun as unbegun:
        raise (unbegun.__cause__ or unbegun) from None
    return [
        out.check(tuple(each.shape)) for out, each in zip(outs, expected, strict=True)
    ]


def with_constants(graph: Graph, weights: Iterable[int], first: int = 0) -> Graph:
    (step,) = graph.instructions
    places = [step.arguments[i] for i in weights]
    constant = {one.value for one in places if isinstance(one, Ref)}
    values = tuple(
        replace(value, storage=Constant(first + i)) if i in constant else value
        for i, value in enumerate(graph.values)
    )
    inputs = tuple(i for i in graph.inputs if i not in constant)
    return replace(graph, values=values, inputs=inputs)


def _graph(case: Case, results: Sequence[Tensor]) -> tuple[Graph, dict[int, Tensor]]:
    values: list[Value] = []
    tensors: dict[int, Tensor] = {}

    def refer(argument: object) -> object:
        if isinstance(argument, Tensor):
            number = len(values)
            values.append(Value(type_of(argument), Caller()))
            tensors[number] = argument
            return Ref(number)
        if isinstance(argument, tuple | list):
            return tuple(refer(item) for item in argument)
        if isinstance(argument, torch.dtype):
            empty = tensor_as_array(torch.empty(0, dtype=argument))
            return DType.from_numpy(empty.dtype)
        return argument

    arguments = tuple(refer(argument) for argument in case.arguments)
    view = OPS[case.op].aliasing is Aliasing.VIEW
    nbytes, made = 0, []
    for result in results:
        size = -(-max(1, result.numel() * result.dtype.itemsize) // 64) * 64
        lies = Alias(0) if view else Scratch(nbytes, size)
        nbytes += size
        made.append(len(values))
        values.append(Value(type_of(result), lies))
    return Graph(
        values=tuple(values),
        inputs=tuple(i for i, v in enumerate(values) if isinstance(v.storage, Caller)),
        outputs=tuple(made),
        instructions=(Instruction(case.op, arguments, tuple(made)),),
        scratch_nbytes=nbytes,
        peak_nbytes=nbytes,
    ), tensors
