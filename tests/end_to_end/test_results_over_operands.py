"""Memory plans in which pointwise results lie over operands give the same bits."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import every
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.compiler.backends import BACKENDS
from kvc.compiler.emit import graph as graphs
from kvc.compiler.place.aliasing import analyse
from kvc.runtime import load
from kvc.runtime.delegates.operands import check_apart
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Alias, Graph, Scratch
from kvc.schema.ops import OPS

SIDE = 6


class Random(nn.Module):
    """Random steps: pointwise ops, views, reductions, products, a state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("kept", torch.linspace(-1, 1, SIDE).repeat(SIDE, 1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        chance = random.Random(self.seed)
        values = [x.flip(0), y @ x, self.kept * 2]

        def pick() -> Tensor:
            return chance.choice(values[-3:] if chance.random() < 0.7 else values)

        for _ in range(24):
            a = pick()
            match chance.randrange(8):
                case 0:
                    made = a + pick()
                case 1:
                    made = nn.functional.gelu(a) * a
                case 2:
                    made = a - pick().sum(0, keepdim=True)
                case 3:
                    made = torch.where(pick() > 0, a, pick().T)
                case 4:
                    made = a[1:2].expand(SIDE, SIDE).clone() * a
                case 5:
                    made = torch.tanh(a @ pick())
                case 6:
                    made = a.reshape(SIDE * SIDE).reshape(SIDE, SIDE).sigmoid()
                case _:
                    self.kept.copy_(torch.tanh(self.kept + a))
                    made = -self.kept
            values.append(made)
        return values[-1], pick(), pick()


def written_over(graph: Graph) -> int:
    """Count the pointwise results over operands in scratch memory."""
    return sum(
        isinstance(graph.values[value].storage, Alias)
        and isinstance(graph.values[graph.root_of(value)].storage, Scratch)
        for step in graph.instructions
        if OPS[step.op].pointwise
        for value in step.results
    )


def compiled(seed: int, recipe: str, path: Path) -> int:
    """Save a random model's bundle; return how many results lie over operands."""
    method = Method("forward", args=(torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)))
    compile_program(Random(seed).eval(), (method,), recipe=recipe).save(path)
    with BundleFile.open(path) as bundle:
        code = [graph for m in bundle.program.methods for graph in m.graphs]
        return sum(map(written_over, code))


def answers(path: Path, reference: bool) -> list[np.ndarray]:
    given = np.random.default_rng(0).normal(size=(2, SIDE, SIDE)).astype(np.float32)
    with load(path, reference=reference) as program:
        session = program.session()
        return [each for _ in range(3) for each in session.forward(*given)]


@every(2, "recipe", "seed")
@pytest.mark.parametrize("recipe", ["cpu_fp32", "fp32"])
@pytest.mark.parametrize("seed", range(8))
def test_a_random_model_computes_the_same(seed, recipe, tmp_path, monkeypatch):
    over = compiled(seed, recipe, tmp_path / "over.kvc")
    assert over
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "analyse", lambda method, _: analyse(method, False))
        assert compiled(seed, recipe, tmp_path / "apart.kvc") == 0
    for reference in (False, True):
        found = answers(tmp_path / "over.kvc", reference)
        wanted = answers(tmp_path / "apart.kvc", reference)
        assert all(map(np.array_equal, found, wanted))
        assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize("recipe", ["xnnpack_fp32", "vulkan_fp32"])
def test_partitions_of_other_backends_have_no_such_results(recipe, tmp_path):
    compiled(0, recipe, tmp_path / "m.kvc")
    with BundleFile.open(tmp_path / "m.kvc") as bundle:
        program = bundle.program
        others = [d for d in program.delegates if d.backend != "cpu"]
        assert others
        for part in others:
            assert not BACKENDS[part.backend].over_operands
            graph = program.methods[part.method].blocks[part.block].graph
            assert not written_over(graph)


def test_backends_that_do_not_take_such_results_refuse_them(tmp_path):
    compiled(0, "cpu_fp32", tmp_path / "m.kvc")
    with BundleFile.open(tmp_path / "m.kvc") as bundle:
        blocks = [block.graph for block in bundle.program.methods[0].blocks]
        graph = next(filter(written_over, blocks))
    with pytest.raises(BadProgram, match=r"does not write .* over its operand"):
        check_apart(graph, "xnnpack", "m.kvc")
