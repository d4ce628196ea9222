"""What the backend `qnn` takes of a model: products, and what they feed."""

from pathlib import Path

import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.schema.model import Program

WIDTH, SLOTS = 4, 8


class Cached(nn.Module):
    """Keys and values of two places, one of which is also read by itself."""

    def __init__(self, *, summed: bool = False, apart: bool = False) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.register_buffer("k", torch.zeros(1, 1, SLOTS, WIDTH))
        self.register_buffer("v", torch.zeros(1, 1, SLOTS, WIDTH))
        self.summed, self.apart = summed, apart

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        k, v = self.kv(x)[:, None].chunk(2, -1)
        later = torch.zeros_like(start) if self.apart else start
        self.k.copy_(torch.ops.kvc.cache_update(self.k, k, start))
        self.v.copy_(torch.ops.kvc.cache_update(self.v, v, later))
        y = torch.ops.kvc.attention(self.q(x)[:, None], self.k, self.v, start + 1)
        return y + self.k.sum(2, keepdim=True) if self.summed else y


def compiled(model: nn.Module) -> Program:
    arguments = torch.randn(1, 1, WIDTH), torch.zeros(1, dtype=torch.int64)
    method = Method("forward", arguments, position="start")
    return compile_program(model, [method], "qnn_fp16").program


def taken(program: Program, backend: str = "qnn") -> list[str]:
    """Return what a backend runs, views left out."""
    found = []
    for each in program.delegates:
        if each.backend == backend:
            graph = program.methods[each.method].blocks[each.block].graph
            found += [step.op for step in graph.instructions]
    return found


def test_a_cache_that_attention_alone_reads_is_taken() -> None:
    ops = taken(compiled(Cached()))
    assert ops.count("kvc::cache_update") == 2
    assert ops.count("kvc::attention") == 1
    assert ops.count("aten::linear") == 2


def test_a_cache_that_others_read_is_left_with_its_attention() -> None:
    program = compiled(Cached(summed=True))
    assert "kvc::cache_update" not in taken(program)
    assert taken(program, "cpu").count("kvc::cache_update") == 2
    assert taken(program).count("aten::linear") == 2


def test_keys_and_values_at_two_places_are_left() -> None:
    program = compiled(Cached(apart=True))
    assert "kvc::cache_update" not in taken(program)


def test_nothing_is_taken_that_no_product_feeds() -> None:
    class Angles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x * 2) + x

    method = Method("forward", (torch.randn(2, WIDTH),))
    program = compile_program(Angles(), [method], "qnn_fp16").program
    assert taken(program) == []
    assert {each.backend for each in program.delegates} == {"cpu"}


def test_a_bundle_has_no_payload_and_each_weight_once(tmp_path: Path) -> None:
    program = compiled(Cached())
    assert all(each.payload == b"" for each in program.delegates)
    names = [program.names[n].name for each in program.delegates for n in each.names]
    assert sorted(names) == ["kv.bias", "kv.weight", "q.bias", "q.weight"]
