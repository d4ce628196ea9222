"""Single operators as Core ML functions, and their results in eager PyTorch."""

from collections.abc import Sequence

import hand_built
import numpy as np
import torch
from native_calls import _graph, with_constants
from op_cases import Case

from kvc.runtime.delegates.coreml.functions import functions_of
from kvc.runtime.delegates.coreml.mil import Function
from kvc.schema.graph import Graph

# Operators that read weights of the model, by the places of these.
WEIGHTS = {"aten::linear": (1, 2), "aten::embedding": (0,)}


def graph_of(case: Case) -> tuple[Graph, dict[int, torch.Tensor]]:
    with torch.inference_mode():
        graph, tensors = _graph(case, case.eager())
    return with_constants(graph, WEIGHTS.get(case.op, ())), tensors


def function_of(case: Case, name: str = "call") -> Function:
    graph, _ = graph_of(case)
    names = [f"x{value}" for value in graph.inputs]
    methods = [hand_built.method(name, graph, names)]
    data = {f"w{n}": np.zeros(1, np.float32) for n in range(len(graph.values))}
    program, _ = hand_built.program(methods, data)
    (made,) = functions_of(program)
    return made


def given(case: Case) -> dict[str, np.ndarray]:
    graph, tensors = graph_of(case)
    arrays = {f"x{value}": tensors[value].numpy() for value in graph.inputs}
    return {name: np.atleast_1d(array) for name, array in arrays.items()}


def check(found: Sequence[np.ndarray], case: Case) -> None:
    with torch.inference_mode():
        expected = case.eager()
    for one, other in zip(found, expected, strict=True):
        wanted = np.atleast_1d(other.float().numpy())
        assert one.shape == wanted.shape
        # Products and norms are of float16; what becomes infinite is the device's.
        there = np.isfinite(wanted)
        largest = np.abs(wanted[there]).max(initial=1e-30)
        far = 4e-3 * largest
        np.testing.assert_allclose(one[there], wanted[there], rtol=4e-3, atol=far)
