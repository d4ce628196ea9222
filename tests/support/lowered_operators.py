"""Operators on the device of `lowered_device.py`: cases that it takes, and results."""

from dataclasses import dataclass

import numpy as np
import torch
from native_calls import _graph, with_constants
from numpy_lowering import compute
from op_cases import CASES, Case
from op_cases.case import index, rand
from qnn_operators import WEIGHTS

from kvc.runtime.delegates.lowering.plan import Plan
from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.operands import arguments_of
from kvc.schema.graph import Graph
from kvc.schema.ops import OPS, Aliasing

MORE = (
    Case("aten::cat", ((rand(2, 3), rand(2, 2)), 1)),
    Case("aten::clone", (rand(2, 3),)),
    Case("aten::gather", (rand(3, 2), 1, index([1], [0], [1]))),
)


@dataclass(frozen=True)
class Block:
    """A block of one operator, with its operands by their values and its results."""

    graph: Graph
    operands: dict[int, torch.Tensor]
    results: tuple[torch.Tensor, ...]

    def is_taken(self, by: LoweredList) -> bool:
        (step,) = self.graph.instructions
        types = [self.graph.values[value].type for value in step.results]
        return not by.why_not(step.op, arguments_of(self.graph, step), types)

    def computed(self, plan: Plan) -> list[np.ndarray]:
        """Return what numpy computes as the results of a plan of the block."""
        function = plan.function
        given = {
            feed.name: self.operands[feed.value]
            .numpy()
            .astype(function.tensors[feed.name].dtype)
            for feed in plan.feeds
        }
        read = self.operands
        found = compute(function, given, lambda w: read[w.data].numpy().astype(w.dtype))
        return [found[function.outputs[take.name]] for take in plan.takes]


def block_of(case: Case) -> Block | None:
    """Return the block of a case; None for a view, a check, or a dtype of torch's."""
    if OPS[case.op].aliasing in (Aliasing.VIEW, Aliasing.CHECK):
        return None
    with torch.inference_mode():
        results = case.eager()
    try:
        graph, tensors = _graph(case, results)
    except KeyError:
        return None
    return Block(with_constants(graph, WEIGHTS.get(case.op, ())), tensors, results)


BLOCKS = [
    (case, block) for case in (*CASES, *MORE) if (block := block_of(case)) is not None
]
