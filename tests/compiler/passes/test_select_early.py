"""What is selected afterwards is computed for these places only, with equal results."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eager_parity import run_both
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method
from kvc.compiler.backends.cpu import Cpu
from kvc.compiler.ingest import import_program
from kvc.compiler.ir import Node
from kvc.compiler.lower.pass_lists import passes_for
from kvc.compiler.passes.cache_writes import RecognizeCacheWrites
from kvc.compiler.passes.fusions import FuseRmsNorms
from kvc.compiler.passes.redundancies import ForwardCopies
from kvc.compiler.passes.select_early import SelectEarly
from kvc.compiler.trace import capture
from kvc.recipes import load_recipe

torch.manual_seed(0)
X, W = torch.randn(2, 6, 4), torch.randn(4, 4)
HEADS = torch.randn(2, 2, 6, 4)
MASK = torch.rand(6, 6) < 0.7
MASK[:, 0] = True
LENGTHS = torch.tensor([6, 5])


def attend(q: Tensor, **rest) -> Tensor:
    """Return what the last positions of a cache of six give."""
    return torch.ops.kvc.attention(q, HEADS, HEADS, torch.tensor([6, 6]), **rest)


def two_places(x: Tensor) -> Tensor:
    """Return a sum of two selections."""
    return x[:, 0] + x[:, 1]


Step = Callable[[Tensor], Tensor]
# Op that makes fewer places -> how it is called, and what selects of its result.
FEWER: dict[str, Step] = {
    "aten::add.Tensor": lambda x: (x.exp() + X[:1])[:, -1],
    "aten::where.self": lambda x: torch.where(X[0] > 0, x.exp(), x[:, :1])[:, 2:4],
    "aten::linear": lambda x: functional.linear(x.exp(), W)[:, 3],
    "aten::matmul": lambda x: (x.exp() @ W.expand(2, 4, 4))[:, -2:],
    "aten::softmax.int": lambda x: x.exp().softmax(-1)[:, 0],
    "aten::layer_norm": lambda x: functional.layer_norm(x.exp(), (4,))[:, 1:3],
    "aten::cat": lambda x: torch.cat([x.exp(), x.neg()], -1)[:, -1],
    "aten::permute": lambda x: x.exp().permute(2, 0, 1)[..., 5],
    "aten::unsqueeze": lambda x: x.exp().unsqueeze(1)[:, :, 2],
    "aten::view": lambda x: x.exp().view(2, 6, 2, 2)[:, 4],
    "aten::expand": lambda x: x.exp()[None].expand(2, 2, 6, 4)[:, :, 1],
    "aten::scaled_dot_product_attention": lambda x: (
        functional.scaled_dot_product_attention(
            x.exp().view(2, 1, 6, 4), HEADS, HEADS, MASK
        )[:, :, -1]
    ),
    "kvc::attention": lambda x: attend(
        x.exp().view(2, 1, 6, 4).expand(2, 2, 6, 4), mask=MASK.view(1, 1, 6, 6)
    )[:, :, -2:],
}
# Op that makes all places, since each depends on the others, or all are read.
ALL: dict[str, Step] = {
    "aten::cumsum": lambda x: x.exp().cumsum(1)[:, -1],
    "aten::softmax.int": lambda x: x.exp().softmax(1)[:, 0],
    "aten::scaled_dot_product_attention": lambda x: (
        functional.scaled_dot_product_attention(
            x.exp().view(2, 1, 6, 4), HEADS, HEADS, is_causal=True
        )[:, :, -1]
    ),
    "kvc::attention": lambda x: attend(
        x.exp().view(2, 1, 6, 4).expand(2, 2, 6, 4), row_lengths=LENGTHS
    )[:, :, -1],
    "aten::exp": lambda x: two_places(x.exp()),
    "aten::view": lambda x: x.exp().view(12, 4)[7],
}


class Stepping(nn.Module):
    """A module of one function."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def forward(self, x: Tensor) -> Tensor:
        return self._step(x)


def nodes_of(step: Step) -> list[Node]:
    """Return the nodes after the pass."""
    model = Stepping(step)
    program = import_program(model, (capture(model, Method("forward", args=(X,))),))
    for one in (ForwardCopies(), RecognizeCacheWrites(), FuseRmsNorms(), SelectEarly()):
        program = one.run(program)
    return list(program.methods[0].nodes)


def answers_as_eager(step: Step, folder: Path) -> None:
    """Assert that a step gives what eager does, by a recipe that has the pass."""
    model, method = Stepping(step), Method("forward", args=(X,))
    calls = [("forward", (X,)), ("forward", (X.flip(1),))]
    assert SelectEarly() in passes_for(load_recipe("cpu_fp32"), [Cpu({})])
    run_both(model, [method], calls, folder, "cpu_fp32", atol=1e-5)


def elements(nodes: list[Node], op: str) -> int:
    """Return how many elements the first node of an op makes."""
    dims = next(node for node in nodes if node.op == op).outputs[0].type.dims
    return torch.Size(dims).numel()


@pytest.mark.parametrize("op", FEWER)
def test_only_what_is_selected_is_computed(tmp_path, op):
    nodes = nodes_of(FEWER[op])
    assert elements(nodes, op) < 2 * X.numel()
    assert elements(nodes, "aten::exp") < X.numel()
    answers_as_eager(FEWER[op], tmp_path)


@pytest.mark.parametrize("op", ALL)
def test_what_depends_on_all_places_is_computed_for_all(tmp_path, op):
    nodes = nodes_of(ALL[op])
    assert elements(nodes, "aten::exp") == X.numel()
    answers_as_eager(ALL[op], tmp_path)
