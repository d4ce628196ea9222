"""Each pass, where it has something to do, gives what eager gives."""

from pathlib import Path

import pytest
import torch
from eager_parity import run_both
from torch import nn
from torch.nn import functional

from kvc.compiler import Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.passes.fusions import FuseGlus, FuseRmsNorms, FuseRotaryEmbeddings
from kvc.compiler.passes.materialize_views import MaterializeViews
from kvc.compiler.passes.matrix_products import DivideMatrices, LinearProducts
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.redundancies import (
    DedupeConstants,
    DropDeadCode,
    ForwardCopies,
    ShareEqualNodes,
)
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.compiler.trace import capture

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Subjects(nn.Module):
    """A method for each pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.wide = nn.Linear(64, 4)
        self.register_buffer("k", torch.zeros(2, 3, 4))
        self.matrix = nn.Parameter(torch.randn(4, 5))
        self.bias = nn.Parameter(torch.randn(5))
        self.stacked = nn.Parameter(torch.randn(15, 4))

    def forward_copies(self, x):
        old = self.k.clone()
        self.k.copy_(x)
        return old, self.k.clone()

    def dedupe_constants(self, x):
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(
            [1.0, 2.0, 3.0, 4.0]
        )

    def share_equal_nodes(self, x):
        return x.exp() + 1, x.exp() + 1.0, x.exp() - 1

    def fuse_rms_norms(self, x):
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.linear.bias * (x * root), x * root

    def fuse_glus(self, x):
        gate, up = self.linear(x), x + 1
        return functional.silu(gate) * up, functional.gelu(up) * gate

    def fuse_rotary_embeddings(self, x):
        cos, sin = x.cos(), x.sin()
        a, b = x.chunk(2, dim=-1)
        c, s = cos[..., :2], sin[..., :2]
        halves = torch.cat([a * c - b * s, b * c + a * s], dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin, halves

    def made_factors(self, x):
        s, a, b = x.sum(), x, x + 1
        count = torch.arange(4, dtype=torch.float32)
        turned = torch.cat([s * a - s * b, s * b + s * a], -1)
        return turned, torch.ones(4) * x, count * x

    def materialize_views(self, x):
        return x.transpose(0, 1).reshape(3, 8), x.permute(2, 0, 1).contiguous().view(-1)

    def wide_linear(self, x):
        return self.wide(x.repeat(1, 1, 16))

    def products(self, x):
        rows = x.view(-1, 4)
        return torch.addmm(self.bias, rows, self.matrix), x @ self.matrix

    def experts(self, x):
        rows, chosen = x.view(-1, 4), torch.arange(6) % 3
        matrices = self.stacked.view(3, -1, 4)
        made = torch.ops.kvc.expert_linear(rows, matrices, chosen, None, False)
        return torch.ops.kvc.expert_linear(made, matrices, chosen, None, True)

    def linears(self, x):
        return self.linear(x), self.linear(x * 2)


@pytest.mark.parametrize(
    ("one", "name", "recipe", "atol"),
    [
        (ForwardCopies(), "forward_copies", "fp32", 0),
        (DropDeadCode(), "fuse_rms_norms", "fp32", 1e-6),
        (DedupeConstants(), "dedupe_constants", "fp32", 0),
        (FuseRmsNorms(), "fuse_rms_norms", "fp32", 0),
        (FuseGlus(), "fuse_glus", "cpu_fp32", 1e-6),
        (FuseRotaryEmbeddings(), "fuse_rotary_embeddings", "cpu_fp32", 0),
        (ShareEqualNodes(), "share_equal_nodes", "fp32", 0),
        (MaterializeViews(), "materialize_views", "fp32", 0),
        (LinearProducts(), "products", "cpu_fp32", 1e-6),
        (LinearProducts(), "products", "cpu_q8", 0.05),
        (LinearProducts(), "products", "bf16", 0.05),
        (DivideMatrices(), "experts", "cpu_q8", 0.15),
        (DivideMatrices(), "experts", "bf16", 0.1),
        (QuantizeWeights("qd8", True), "linears", "xnnpack_q8", 0.05),
        (QuantizeWeights("qb4", True), "wide_linear", "xnnpack_q4", 0.15),
        (QuantizeWeights("q8", True), "linears", "cpu_q8", 0.05),
        (QuantizeWeights("q4", True), "wide_linear", "cpu_q4", 0.15),
        (StoreBfloat16(), "linears", "bf16", 0.05),
    ],
)
def test_a_pass_changes_the_program_and_not_its_results(
    tmp_path: Path, one, name, recipe, atol
) -> None:
    method = Method(name, args=(X,))
    model = Subjects()
    before = import_program(model, (capture(model, method),))
    if name == "materialize_views":  # torch clones before a view; that goes first
        before = ForwardCopies().run(before)
    if isinstance(one, DropDeadCode):
        before = FuseRmsNorms().run(before)
    assert program_text(one.run(before)) != program_text(before)
    calls = [(name, (X,)), (name, (X.flip(0),))]
    run_both(Subjects(), [method], calls, tmp_path, recipe, atol)


@pytest.mark.parametrize("recipe", ["cpu_fp32", "xnnpack_fp32"])
def test_products_of_numbers_and_of_what_is_made_are_left_as_they_are(
    tmp_path: Path, recipe
) -> None:
    method = Method("made_factors", args=(X,))
    run_both(Subjects(), [method], [("made_factors", (X,))], tmp_path, recipe, 1e-4)
