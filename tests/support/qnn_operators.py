"""Blocks of one operator, in the form in which `qnn` and `coreai` get them."""

import torch
from native_calls import native_graph, with_constants
from op_cases import Case

from kvc.schema.graph import Graph

# Operands that are weights of the model.
WEIGHTS = {"aten::linear": (1, 2), "aten::rms_norm": (2,), "aten::layer_norm": (2, 3)}


def graph_of(
    case: Case, first: int = 0
) -> tuple[Graph, dict[int, torch.Tensor]] | None:
    built = native_graph(case, case.eager())
    if built is None:
        return None
    graph, tensors = built
    return with_constants(graph, WEIGHTS.get(case.op, ()), first), tensors
