"""Weights that cannot be quantized: not finite, or without elements in a row."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.compiler.weights.weight_reader import BLOCK_ELEMENTS
from kvc.runtime import load
from kvc.schema.errors import NotFinite

QUANTIZING = [("xnnpack_q8", "int8"), ("xnnpack_q4", "int4")]
ODD = [float("nan"), float("inf"), float("-inf")]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.down(self.up(x))


class Empty(nn.Module):
    """A linear layer without inputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 0))
        self.bias = nn.Parameter(torch.arange(8.0))

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


def compiled(model, recipe, x):
    return compile_program(model.eval(), [Method("forward", (x,))], recipe)


@pytest.mark.parametrize(("recipe", "dtype"), QUANTIZING)
@pytest.mark.parametrize("odd", ODD)
def test_a_weight_that_is_not_finite_is_refused_by_name(recipe, dtype, odd, tmp_path):
    model = Model()
    model.down.weight.data[2:4, 5] = odd
    bundle = compiled(model, recipe, torch.ones(2, 64))
    with pytest.raises(NotFinite, match=r"weight down\.weight cannot be") as caught:
        bundle.save(tmp_path / "a.kvc")
    facts = caught.value.facts
    assert facts == {
        "weight": "down.weight", "dtype": dtype, "count": 2, "total": 8 * 64,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["xnnpack_q8", "xnnpack_q4"])
def test_all_blocks_of_a_weight_are_counted(recipe, tmp_path):
    model = nn.Sequential(nn.Linear(64, 3 * BLOCK_ELEMENTS // 64, bias=False))
    rows = model[0].weight.data
    rows[0, 0], rows[-1, -1] = float("nan"), float("inf")
    with pytest.raises(NotFinite) as caught:
        compiled(model, recipe, torch.ones(1, 64)).save(tmp_path / "a.kvc")
    assert caught.value.facts["count"] == 2


@pytest.mark.parametrize("recipe", ["xnnpack_q8", "xnnpack_q4"])
def test_an_embedding_that_is_not_finite_is_refused(recipe, tmp_path):
    model = nn.Sequential(nn.Embedding(4, 32))
    model[0].weight.data[1, 1] = float("nan")
    ids = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(NotFinite, match=r"weight 0\.weight .* int8: 1 of its 128"):
        compiled(model, recipe, ids).save(tmp_path / "a.kvc")


def test_what_is_not_quantized_may_be_anything(tmp_path):
    model = Model()
    model.down.weight.data[0, 0] = float("nan")
    compiled(model, "fp32", torch.ones(2, 64)).save(tmp_path / "a.kvc")


@pytest.mark.parametrize("recipe", ["xnnpack_q8", "xnnpack_q4"])
def test_a_linear_without_inputs_gives_its_bias(recipe, tmp_path):
    model, x = Empty(), torch.ones(2, 0)
    bundle = compiled(model, recipe, x)
    (method,) = bundle.program.methods
    left = [
        b.graph for b, d in zip(method.blocks, bundle.program.delegates, strict=True)
    ]
    assert "aten::linear" in [s.op for graph in left for s in graph.instructions]
    bundle.save(tmp_path / "a.kvc")
    with load(tmp_path / "a.kvc", reference=True) as program:
        torch.testing.assert_close(program.forward(x), model(x))
