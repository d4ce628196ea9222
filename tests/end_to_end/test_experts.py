"""Experts in every recipe: only chosen ones, in the recipe's numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load

ROWS = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
CHOSEN = torch.tensor([5, 0, 5, 2, 5, 0, 1])


class Experts(nn.Module):
    """Two layers of six experts; `turned` stores matrices [experts, in, out]."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = ((6, 32, 48), (6, 48, 32)) if turned else ((6, 48, 32), (6, 32, 48))
        up, down = (torch.randn(s, generator=generator) / 6 for s in shapes)
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)
        self.bias = nn.Parameter(torch.randn(6, 32, generator=generator))
        self.turned = turned

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        linear = torch.ops.kvc.expert_linear
        hidden = linear(x, self.up, chosen, None, self.turned).relu()
        return linear(hidden, self.down, chosen, self.bias, self.turned)


def compiled(model: nn.Module, recipe: str):
    rows = Dim("rows", 1, 16)
    dynamic = {"x": {0: rows}, "chosen": {0: rows}}
    method = Method("forward", args=(ROWS, CHOSEN), dynamic=dynamic)
    return compile_program(model.eval(), [method], recipe=recipe)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("recipe", "op", "stored", "error"),
    [
        ("fp32", "kvc::expert_linear", "float32", 1e-6),
        ("bf16", "kvc::expert_linear", "bfloat16", 2e-2),
        ("xnnpack_q8", "kvc::expert_linear_qd8", "int8", 3e-2),
        ("xnnpack_q4", "kvc::expert_linear_qd8", "int8", 3e-2),
    ],
)
def test_experts_follow_the_recipe(
    tmp_path: Path, recipe: str, op: str, stored: str, error: float, turned: bool
):
    model = Experts(turned)
    bundle = compiled(model, recipe)
    (method,) = bundle.program.methods
    found = [step.op for graph in method.graphs for step in graph.instructions]
    assert found.count(op) == 2
    weights = {
        n.type.dtype.name.lower() for n in bundle.program.names if "up" in n.name
    }
    assert stored in weights
    assert recipe == "fp32" or "float32" not in weights or stored == "int8"
    bundle.save(tmp_path / "experts.kvc")
    with load(tmp_path / "experts.kvc") as program:
        for count in (7, 1):
            x, chosen = ROWS[:count], CHOSEN[:count]
            with torch.no_grad():
                wanted = model(x, chosen)
            got = torch.as_tensor(program.call("forward", x, chosen))
            assert (got - wanted).norm() < error * wanted.norm()


def test_a_turned_weight_is_quantized_by_output_channel(tmp_path: Path):
    straight, turned = Experts(False), Experts(True)
    with torch.no_grad():
        turned.up.copy_(straight.up.mT)
        turned.down.copy_(straight.down.mT)
        turned.bias.copy_(straight.bias)
    results = []
    for model in (straight, turned):
        compiled(model, "xnnpack_q8").save(tmp_path / "experts.kvc")
        with load(tmp_path / "experts.kvc") as program:
            results.append(torch.as_tensor(program.call("forward", ROWS, CHOSEN)))
    assert torch.equal(*results)
