"""What the backend `qnn` takes of a model: products, and what they feed."""

from pathlib import Path

import pytest
import torch
from qnn_device import use_numpy_device
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime.delegates.qnn import Qnn
from kvc.runtime.execution.delegate import Options
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


class Fed(Cached):
    """A product feeds what the host has to read."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.mask, self.what = nn.Linear(WIDTH, SLOTS), what

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        q, old = self.q(x)[:, None], self.k
        more = {"mask": self.mask(x)[:, None], "slopes": torch.tanh(q)[0, 0, 0, :1]}
        if self.what == "cache":
            old = self.q(x)[:, None].expand(1, 1, SLOTS, WIDTH).clone()
        k = torch.ops.kvc.cache_update(old, q, start)
        given = {name: more[name] for name in more if name == self.what}
        return torch.ops.kvc.attention(q, k, k, start + 1, **given)


@pytest.mark.parametrize("what", ["mask", "slopes", "cache"])
def test_what_the_host_has_to_read_is_not_made_by_the_device(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_numpy_device(monkeypatch)
    program = compiled(Fed(what))
    assert "kvc::cache_update" not in taken(program)
    assert "aten::linear" in taken(program)
    Qnn(Options("m.kvc", program)).close()


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
