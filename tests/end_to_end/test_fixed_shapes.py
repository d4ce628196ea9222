"""Targets of fixed shapes: sizes in buckets, and the target's own file."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from cached_models import Append, append_methods
from fixed_backend import MADE, TARGET, Fixed, recipe, register_fixed
from hf_models import build
from torch import nn

from kvc.compiler import CacheConfig, Dim, Method, compile_program, export_hf
from kvc.runtime import generate, load
from kvc.schema.errors import BadBuckets, BadSetting, BadSnapshot, InputMismatch

PROMPT = np.arange(3, 40)[None]  # 37 tokens
WANTED = {"seq": (1, 16, 64), "capacity": (64, 128)}


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch):
    """Register the backend for one test."""
    register_fixed(monkeypatch)


def compiled(folder: Path, backend: str = "fixed", **buckets: tuple[int, ...]) -> Path:
    path = folder / f"{backend}.kvc"
    cache = CacheConfig(max_length=128)
    model, made = build("llama"), recipe(folder, backend, **buckets)
    export_hf(model, recipe=made, cache=cache, prefill_chunk=64).save(path)
    return path


def test_a_prompt_runs_in_chunks_of_the_buckets(tmp_path: Path):
    path = compiled(tmp_path, **WANTED)
    plain = compiled(tmp_path, "cpu")
    assert {len(sizes or ()) for sizes in Fixed.seen} == {2, 6}
    with load(path) as program, program.session() as session, load(plain) as other:
        logits = session.prefill(PROMPT)
        assert session.position.tolist() == [37]
        assert {sizes["seq"] for sizes in MADE if "seq" in sizes} == {1, 16, 64}
        with other.session(capacity=128) as usual:
            wanted = usual.prefill(PROMPT)
        assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_generation_is_that_of_any_other_backend(tmp_path: Path):
    path, plain = compiled(tmp_path, **WANTED), compiled(tmp_path, "cpu")
    found = []
    for one in (path, plain):
        with load(one) as program, program.session() as session:
            run = generate(session, PROMPT[0], max_tokens=8)
            found.append(list(run))
    assert found[0] == found[1]


def test_a_session_takes_the_least_capacity_that_holds_what_is_asked_for(
    tmp_path: Path,
):
    with load(compiled(tmp_path, **WANTED)) as program:
        for asked, taken in ((16, 64), (64, 64), (65, 128), (None, 128)):
            with program.session(capacity=asked) as session:
                assert session.capacity == taken
        with pytest.raises(BadSetting, match=r"16..128, for the buckets 64, 128"):
            program.session(capacity=129)


def test_a_shape_outside_of_the_buckets_is_refused(tmp_path: Path):
    path = compiled(tmp_path, seq=(16, 64), capacity=(64,))
    with load(path) as program, program.session() as session:
        session.prefill(PROMPT[:, :17])  # 16, and one by decode
        assert session.position.tolist() == [17]
    spec = tiny_decoder.factory()
    alone = [one for one in spec.methods if one.role == "prefill"]
    made = recipe(tmp_path, "cpu", seq=(4, 8))
    compile_program(spec.model, alone, made).save(tmp_path / "alone.kvc")
    with load(tmp_path / "alone.kvc") as program, program.session() as session:
        session.prefill(PROMPT[:, :12])
        with pytest.raises(InputMismatch, match=r"with seq in 4, 8, got int64\[1, 5\]"):
            session.prefill(PROMPT[:, :5])
        assert session.position.tolist() == [12]


def test_a_size_without_buckets_is_refused_ahead_of_time(tmp_path: Path):
    with pytest.raises(
        BadBuckets, match=r"takes fixed shapes; list the sizes of 1\.\.64"
    ):
        compiled(tmp_path, capacity=(64,))
    with pytest.raises(
        BadBuckets, match=r"no such size \(did you mean 'seq'\?\); it has"
    ):
        compiled(tmp_path, **WANTED, sec=(1,))
    with pytest.raises(BadBuckets, match=r"\[1, 65\] are not all within 1..64"):
        compiled(tmp_path, capacity=(64,), seq=(1, 65))
    grown = recipe(tmp_path, "fixed")
    with pytest.raises(BadBuckets, match="takes fixed shapes"):
        compile_program(Append(), append_methods(), grown)


class Neighbours(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:] - x[:-1]


def test_a_size_that_leaves_a_tensor_without_elements_is_refused_ahead_of_time(
    tmp_path: Path,
):
    rows = {"x": {0: Dim("rows", 1, 8)}}
    method = Method("forward", (torch.zeros(4, 2),), dynamic=rows)
    with pytest.raises(BadBuckets, match=r"rows: .* at rows = 1 .* shape \[0, 2\]"):
        compile_program(Neighbours(), [method], recipe(tmp_path, rows=(1, 4)))
    compile_program(Neighbours(), [method], recipe(tmp_path, rows=(2, 4)))


def test_one_bundle_has_buckets_for_one_backend_and_any_size_for_another(
    tmp_path: Path,
):
    both = [recipe(tmp_path, "cpu"), recipe(tmp_path, **WANTED)]
    path = tmp_path / "both.kvc"
    cache = CacheConfig(max_length=128)
    export_hf(build("llama"), recipe=both, cache=cache, prefill_chunk=64).save(path)
    with load(path) as program, program.session(capacity=37) as session:
        assert session.capacity == 37
        wanted = session.prefill(PROMPT)
        session.save(tmp_path / "odd.session")
    with load(path, backend="fixed") as program:
        with program.session(capacity=37) as session:
            assert session.capacity == 64
            found = session.prefill(PROMPT)
        assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
        with pytest.raises(BadSnapshot, match="capacity 37, which is none of 64, 128"):
            program.restore(tmp_path / "odd.session")


def test_the_file_of_a_target_holds_every_partition_at_every_bucket(tmp_path: Path):
    path = compiled(tmp_path, **WANTED)
    with load(path) as program:
        (made,) = program.pack(target=f"fixed:{TARGET}")
        whole = json.loads(made.content())
        assert len(made.content()) == made.nbytes
        counts = {key: len(images) for key, images in whole["partitions"].items()}
        assert sorted(counts.values()) == [2, 6]
        with pytest.raises(BadSetting, match=f"here fixed:{TARGET}, got 'fixed:npu-2'"):
            program.pack(target="fixed:npu-2")
    with load(path) as program:
        (again,) = program.pack(target=f"fixed:{TARGET}")
        assert again.content() == made.content()
    other = load(compiled(tmp_path, "cpu"))
    with other, pytest.raises(BadSetting, match="makes files for, here none"):
        other.pack(target="cpu:any")
