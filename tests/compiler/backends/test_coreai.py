"""What the backend `coreai` takes of a model: whole methods."""

import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.schema.model import Program

WIDTH, SLOTS = 4, 8


class Cached(nn.Module):
    """Keys and values in a cache, at a place that may be computed."""

    def __init__(self, *, computed: bool = False) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.register_buffer("k", torch.zeros(1, 1, SLOTS, WIDTH))
        self.register_buffer("v", torch.zeros(1, 1, SLOTS, WIDTH))
        self.computed = computed

    def forward(self, x: Tensor, start: Tensor, other: Tensor) -> Tensor:
        k, v = self.kv(x)[:, None].chunk(2, -1)
        place = other * 2 if self.computed else other
        self.k.copy_(torch.ops.kvc.cache_update(self.k, k, place))
        self.v.copy_(torch.ops.kvc.cache_update(self.v, v, start))
        y = torch.ops.kvc.attention(self.q(x)[:, None], self.k, self.v, start + 1)
        return y + self.k.sum(2, keepdim=True)


def compiled(model: nn.Module, recipe: str = "coreai_fp32") -> Program:
    place = torch.zeros(1, dtype=torch.int64)
    arguments = torch.randn(1, 1, WIDTH), place, place
    method = Method("forward", arguments, position="start")
    return compile_program(model, [method], recipe).program


def taken(program: Program, backend: str) -> list[str]:
    """Return what a backend runs."""
    found = []
    for each in program.delegates:
        if each.backend == backend:
            graph = program.methods[each.method].blocks[each.block].graph
            found += [step.op for step in graph.instructions]
    return found


def test_caches_that_others_read_are_taken() -> None:
    program = compiled(Cached())
    ops = taken(program, "coreai")
    assert ops.count("kvc::cache_update") == 2
    assert {"kvc::attention", "aten::sum.dim_IntList", "aten::linear"} <= {*ops}
    assert "aten::linear" not in taken(program, "cpu")


def test_a_cache_at_a_place_that_is_computed_is_left() -> None:
    program = compiled(Cached(computed=True))
    assert taken(program, "coreai").count("kvc::cache_update") == 1
    others = [
        step.op for method in program.methods for step in method.graph.instructions
    ]
    assert "kvc::cache_update" in [*others, *taken(program, "cpu")]


def test_the_precision_is_what_the_recipe_says() -> None:
    for name, precision in (("coreai_fp32", b"float32"), ("coreai_fp16", b"float16")):
        payloads = {
            each.payload
            for each in compiled(Cached(), name).delegates
            if each.backend == "coreai"
        }
        assert payloads == {precision}


def test_a_method_without_a_product_is_left() -> None:
    method = Method("forward", (torch.randn(2, 3),))
    program = compile_program(nn.Sigmoid(), [method], "coreai_fp32").program
    assert taken(program, "coreai") == []
