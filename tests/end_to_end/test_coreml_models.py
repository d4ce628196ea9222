"""Models of the backend `coreml`: states of each kind, what is refused, architectures.

Functions are computed by numpy, and held against what the host computes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from coreml_programs import functions, interpreter, near, recipe
from hf_models import build
from ring_models import VOCAB, RingDecoder, Shape, ring_methods, text
from torch import nn

from kvc.compiler import CacheConfig, Dim, Method, compile_program, export_hf
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.errors import BadBuckets, ExportFailed
from kvc.tools.cli import main


class Left(nn.Module):
    """Has what Core ML is not given between what it is."""

    def forward(self, x):
        return (x.tanh().cumsum(1) * 2).relu()


def test_what_is_left_runs_on_the_host_and_is_not_exported(tmp_path: Path):
    path = tmp_path / "left.kvc"
    method = Method("forward", (torch.zeros(2, 3),))
    compile_program(Left(), [method], recipe="coreml_fp16").save(path)
    shown = CliRunner().invoke(main, ["dump", str(path), "--delegates"]).output
    assert "it does not run aten::cumsum" in shown
    x = np.array([[1.5, -2.0, 3.0], [0.25, 1.0, -1.0]], np.float32)
    with load(path) as program:
        wanted = Left()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(program.forward(x), wanted, rtol=1e-5)
        with pytest.raises(ExportFailed) as told:
            program.pack("coreml")
    assert "method 'forward'" in str(told.value)
    assert (
        "Core ML does not run all of the method: it does not run aten::cumsum"
        in str(told.value)
    )
    assert "kvc dump --delegates" in str(told.value)


class Halved(nn.Module):
    """Writes a part of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(4, 3))

    def forward(self, x):
        self.past[1:3].copy_(x)
        return self.past * 2


class Kept(nn.Module):
    """Writes buffers whole: one is float16 in a package, others stay exact."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)
        self.register_buffer("made", torch.zeros(2, 3))
        self.register_buffer("seen", torch.zeros(2, 3))
        self.register_buffer("begun", torch.ones(2, 3))

    def forward(self, x):
        self.made.copy_(self.out(x + self.made))
        self.seen.copy_(x)
        self.begun.copy_(self.begun + x)
        return self.made + 1


def test_states_of_float16_are_kept_and_others_are_handed_on(tmp_path: Path):
    torch.manual_seed(0)
    model, path = Kept(), tmp_path / "kept.kvc"
    method = Method("forward", (torch.zeros(2, 3),))
    compile_program(model, [method], recipe="coreml_fp16").save(path)
    random = np.random.default_rng(0)
    with load(path) as program, program.session() as session:
        (function,) = functions(program)
        assert [var.name for var in function.states] == ["made"]
        run, held = interpreter(program), np.ones((2, 3), np.float32)
        seen = np.zeros((2, 3), np.float32)
        assert [var.name for var in function.inputs] == ["x", "seen", "begun"]
        for _ in range(3):
            x = random.standard_normal((2, 3)).astype(np.float32)
            found = run("forward", x=x, begun=held, seen=seen)
            assert near(found["output"], session.forward(x))
            held, seen = found["begun_after"], found["seen_after"]
            assert np.array_equal(held, np.asarray(session.state["begun"]))
            assert np.array_equal(seen, x)


def test_a_part_of_a_state_is_not_written(tmp_path: Path):
    path = tmp_path / "halved.kvc"
    method = Method("forward", (torch.zeros(2, 3),))
    compile_program(Halved(), [method], recipe="coreml_fp16").save(path)
    x = np.ones((2, 3), np.float32)
    with load(path) as program, program.session() as session:
        assert session.forward(x)[:, 0].tolist() == [0, 2, 2, 0]
        with pytest.raises(ExportFailed, match="it does not run aten::index_copy"):
            program.pack("coreml")


def test_a_cache_has_one_shape(tmp_path: Path):
    path, sized = tmp_path / "m.kvc", recipe("coreml_fp16", capacity=(16, 32))
    cache = CacheConfig(max_length=32)
    model = build("gpt2", shallow=True)
    export_hf(model, recipe=sized, cache=cache, prefill_chunk=4).save(path)
    with load(path) as program, pytest.raises(ExportFailed) as told:
        program.pack("coreml")
    assert "'capacity' has the buckets 16, 32" in str(told.value)


def test_sizes_need_buckets():
    method = Method(
        "forward", (torch.zeros(2, 3),), dynamic={"x": {0: Dim("rows", 1, 8)}}
    )
    own = replace(load_recipe("coreml_fp16"), sizes="any")
    with pytest.raises(BadBuckets):
        compile_program(Left(), [method], recipe=own)


def test_a_ring_that_keeps_its_first_positions_is_exported(tmp_path: Path):
    shape, path = Shape(keep=2), tmp_path / "ring.kvc"
    model, sized = RingDecoder(shape), recipe("coreml_fp16", seq=(4,))
    compile_program(model, ring_methods(shape.longest), recipe=sized).save(path)
    tokens, start = text(40), np.zeros(1, np.int32)
    wanted = model.reference(tokens)[0]
    with load(path) as program:
        run = interpreter(program)
        for end in (4, 8, *range(9, 13), 16, *range(17, 27), 30, 34, 38, 39, 40):
            part = tokens[:, int(start[0]) : end]
            called, name = (
                ("decode", "token") if part.shape[1] == 1 else ("score", "tokens")
            )
            found = run(called, position=start, **{name: part})
            assert near(found["output"].reshape(-1, VOCAB)[-1], wanted[end - 1], 1e-2)
            start = found["position_after"]


def hf_calls(rows: int, chunk: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Calls of a program that Hugging Face's models become; rows of several lengths."""
    random = np.random.default_rng(0)
    for _ in range(3):
        own: dict[str, np.ndarray] = {"tokens": random.integers(3, 90, (rows, chunk))}
        if rows > 1:
            own["lengths"] = random.integers(1, chunk + 1, rows)
        yield "prefill", own
        own = {"token": random.integers(3, 90, (rows, 1))}
        if rows > 1:
            own["active"] = np.arange(rows) != random.integers(rows)
        yield "decode", own


# Windows and rings, soft caps, slopes, layer norms and joined projections.
ARCHITECTURES = ("llama", "gpt2", "mistral", "gemma2", "bloom", "phi", "mpt", "qwen3")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("mistral", 1),
        ("bloom", 2),
        *(
            pytest.param(name, rows, marks=pytest.mark.exhaustive)
            for name in ARCHITECTURES
            for rows in (1, 2)
        ),
    ],
)
def test_architectures_are_functions_that_compute_what_the_host_does(
    name: str, rows: int, tmp_path: Path
):
    chunk = 4
    sized = recipe("coreml_fp16", seq=(chunk,))
    cache = CacheConfig(max_length=32, batch=rows)
    model = build(name, shallow=True)
    bundle = export_hf(model, recipe=sized, cache=cache, prefill_chunk=chunk)
    bundle.save(tmp_path / "m.kvc")
    sizes = {"batch": rows} if rows > 1 else {}
    with load(tmp_path / "m.kvc") as program, program.session(**sizes) as session:
        run, position = interpreter(program), np.zeros(rows, np.int32)
        for called, own in hf_calls(rows, chunk):
            wanted = getattr(session, called)(**own)
            found = run(called, kvc_position=position, **own)
            assert near(found["output"], wanted, 1e-2), called
            position = np.broadcast_to(session.position, rows)
