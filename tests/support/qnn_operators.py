"""Blocks of one operator, as the backend `qnn` is given them."""

from dataclasses import replace

import torch
from native_calls import native_graph
from op_cases import Case

from kvc.schema.graph import Constant, Graph, Ref

# Operands that are weights of the model.
WEIGHTS = {"aten::linear": (1, 2), "aten::rms_norm": (2,), "aten::layer_norm": (2, 3)}


def graph_of(
    case: Case, first: int = 0
) -> tuple[Graph, dict[int, torch.Tensor]] | None:
    built = native_graph(case, case.eager())
    if built is None:
        return None
    graph, tensors = built
    (step,) = graph.instructions
    weights = [step.arguments[i] for i in WEIGHTS.get(case.op, ())]
    constant = {ref.value for ref in weights if isinstance(ref, Ref)}
    values = [
        replace(value, storage=Constant(first + i)) if i in constant else value
        for i, value in enumerate(graph.values)
    ]
    inputs = tuple(i for i in graph.inputs if i not in constant)
    return replace(graph, values=tuple(values), inputs=inputs), tensors
