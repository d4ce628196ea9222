"""Bundles of the backend `qnn`: on a device that is numpy, and on Qualcomm's library.

What is checked of both is the same. With the library, its emulator runs: tests of it
are skipped where it is not installed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qnn_here
import tiny_decoder
import torch
from hf_models import build
from imported_modules import modules_after
from qnn_device import ASKED, use_numpy_device
from torch import nn

from kvc.compiler import CacheConfig, Method, compile_program, export_hf
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program, Session, SoftwareDevice, generate, load
from kvc.runtime.delegates.qnn import Qnn
from kvc.schema.errors import BadBuckets, BadSetting, CacheOverflow

TOKENS = np.arange(3, 27)[None]
NEAR = 2e-3  # of the largest number: what float16 has
QUIET = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")
pytestmark = QUIET


def recipe(**buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe("qnn_fp16"), buckets=buckets)


def compiled(path: Path, recipe: Recipe | str) -> Path:
    spec = tiny_decoder.factory()
    made = compile_program(spec.model, spec.methods, recipe, metadata=spec.metadata)
    made.save(path)
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model for the device, and for the reference."""
    folder = tmp_path_factory.mktemp("qnn")
    device = compiled(folder / "qnn.kvc", recipe(seq=(1, 4, 16)))
    return device, compiled(folder / "fp32.kvc", "fp32")


@pytest.fixture(params=["numpy", "library"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        use_numpy_device(monkeypatch)
    else:
        qnn_here.check()
    return request.param


@pytest.fixture
def both(paths: tuple[Path, Path], device: str) -> Iterator[tuple[Program, Program]]:
    with load(paths[0]) as mine, load(paths[1]) as plain:
        yield mine, plain


def near(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() <= NEAR * np.abs(wanted).max())


def answers(session: Session) -> list[np.ndarray]:
    """A prompt in pieces, tokens, and what was said again after going back."""
    found = [session.prefill(TOKENS[:, :9]), session.decode(TOKENS[:, 9:10])]
    session.rewind(3)
    found += [session.prefill(TOKENS[:, 7:12]), session.decode(TOKENS[:, 12:13])]
    return found


def test_prefill_and_decode_are_what_the_reference_says(
    both: tuple[Program, Program],
):
    mine, plain = both
    with mine.session() as here, plain.session() as there:
        pairs = list(zip(answers(here), answers(there), strict=True))
        assert all(near(*pair) for pair in pairs)
        assert here.position.tolist() == there.position.tolist() == [13]
        for name, state in there.state.items():
            assert near(np.asarray(here.state[name]), np.asarray(state)), name


def test_a_fork_and_a_saved_session_go_on_alike(
    both: tuple[Program, Program], tmp_path: Path
):
    mine, _ = both
    with mine.session() as session:
        session.prefill(TOKENS[:, :8])
        session.save(tmp_path / "s.session")
        with session.fork() as other:
            wanted = session.decode(TOKENS[:, 8:9])
            session.decode(TOKENS[:, 20:21])
            assert np.array_equal(other.decode(TOKENS[:, 8:9]), wanted)
        with mine.restore(tmp_path / "s.session") as again:
            assert again.position.tolist() == [8]
            assert np.array_equal(again.decode(TOKENS[:, 8:9]), wanted)
        session.reset()
        session.prefill(TOKENS[:, :8])
        assert np.array_equal(session.decode(TOKENS[:, 8:9]), wanted)


def test_generation_is_that_of_the_reference(both: tuple[Program, Program]):
    found = []
    for program in both:
        with program.session() as session:
            found.append(list(generate(session, TOKENS[0, :6], max_tokens=8)))
    assert found[0] == found[1]


def test_a_full_cache_is_refused_and_nothing_has_changed(
    both: tuple[Program, Program],
):
    mine, _ = both
    with mine.session() as session:
        session.prefill(TOKENS[:, :24])
        before = {name: np.array(session.state[name]) for name in session.state}
        with pytest.raises(CacheOverflow):
            session.decode(TOKENS[:, :1])
        for name, was in before.items():
            assert np.array_equal(session.state[name], was)


def test_a_slot_that_was_left_is_not_seen(both: tuple[Program, Program]):
    """What lies after the position, even what is no number, changes nothing."""
    mine, plain = both
    with mine.session() as here, plain.session() as there:
        here.prefill(TOKENS[:, :16])
        here.rewind(12)
        there.prefill(TOKENS[:, :4])
        pair = here.decode(TOKENS[:, 4:5]), there.decode(TOKENS[:, 4:5])
        assert near(*pair)


def test_a_context_of_a_target_gives_the_same_bits(
    paths: tuple[Path, Path], device: str, tmp_path: Path
):
    from kvc.tools.packing import pack_bundle

    packed = tmp_path / "packed.kvc"
    packed.write_bytes(paths[0].read_bytes())
    pack_bundle(packed, "qnn:v73")
    found = []
    for path in (paths[0], packed):
        ASKED.clear()
        with load(path, device="qnn:v73") as program, program.session() as session:
            found.append(answers(session))
        if device == "numpy":
            assert ("load" in ASKED, "build" in ASKED) == (
                path == packed,
                path != packed,
            )
    assert all(map(np.array_equal, *found))
    ASKED.clear()
    with load(packed) as program, program.session() as session:
        answers(session)
    if device == "numpy":
        assert "load" not in ASKED, "contexts are used where a device is asked for"


def test_the_file_of_a_target_has_the_same_bytes_each_time(
    paths: tuple[Path, Path], device: str
):
    files = []
    for _ in range(2):
        with load(paths[0]) as program:
            (made,) = program.pack(target="qnn:v75")
            files.append(made.content())
            (other,) = program.pack(target="qnn:v68")
            assert other.content() != made.content()
    assert files[0] == files[1]
    with load(paths[0]) as program, pytest.raises(BadSetting, match="qnn:v68, qnn:v69"):
        program.pack(target="qnn:v12")


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", Qnn.targets())
def test_each_target_has_the_same_bytes_and_bits_each_time(
    paths: tuple[Path, Path], target: str, tmp_path: Path
):
    from kvc.tools.packing import pack_bundle

    files, found = [], []
    for number in range(2):
        packed = tmp_path / f"{number}.kvc"
        packed.write_bytes(paths[0].read_bytes())
        with load(packed) as program:
            (made,) = program.pack(target=f"qnn:{target}")
            files.append(made.content())
        if number:
            pack_bundle(packed, f"qnn:{target}")
        where = f"qnn:{target}"
        with load(packed, device=where) as program, program.session() as session:
            found.append(answers(session))
    assert files[0] == files[1]
    assert all(map(np.array_equal, *found))


def test_views_of_weights_are_given_to_the_device(device: str, tmp_path: Path):
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.product = nn.Linear(4, 4)
            self.table = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.product(x) * self.table[1] + self.table.t()[:, 2]

    model, x = Viewed().eval(), torch.randn(2, 4)
    wanted = model(x).detach().numpy()
    compile_program(model, [Method("forward", (x,))], "qnn_fp16").save(tmp_path / "m")
    with load(tmp_path / "m") as program:
        assert near(program.forward(x.numpy()), wanted)


def test_a_query_whose_mask_hides_all_gets_numbers(device: str, tmp_path: Path):
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.product = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = self.product(x)
            return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask)

    model, x = Masked().eval(), torch.randn(1, 1, 3, 4)
    mask = torch.zeros(1, 1, 3, 3)
    mask[..., 0, 1:] = -torch.inf
    mask[..., 1, :] = torch.finfo(torch.float32).min
    wanted = model(x, mask).detach().numpy()
    made = compile_program(model, [Method("forward", (x, mask))], "qnn_fp16")
    made.save(tmp_path / "m")
    with load(tmp_path / "m") as program:
        assert near(program.forward(x.numpy(), mask.numpy()), wanted)


def test_nothing_of_the_library_is_imported_here(
    paths: tuple[Path, Path], tmp_path: Path
):
    other = modules_after(compiled(tmp_path / "cpu.kvc", "cpu_fp32"))
    assert not [name for name in other if "qnn" in name]
    qnn_here.check()
    mine = modules_after(paths[0])
    assert "kvc.runtime.delegates.apart" in mine
    assert not mine & {"torch", "onnxruntime", "onnxruntime_qnn"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "falcon", "gemma2", "mpt", "opt", "phi", "qwen2"]
)
def test_architectures_are_near_the_reference_on_the_library(name: str, tmp_path: Path):
    """Grouped heads, joined projections, soft caps, slopes and windows.

    Weights are scaled so that errors grow from layer to layer: PyTorch's float16 makes
    6e-3 of the Llama, the library twice as much. A wrong slot makes more than 1e-1.
    """
    qnn_here.check()
    cache, chunk = CacheConfig(max_length=64), 16
    sized = recipe(seq=(1, 16), capacity=(64,))
    found = []
    for one in (sized, "cpu_fp32"):
        bundle = export_hf(build(name), recipe=one, cache=cache, prefill_chunk=chunk)
        bundle.save(tmp_path / "m.kvc")
        with load(tmp_path / "m.kvc") as program, program.session() as session:
            found.append(answers(session))
    for mine, wanted in zip(*found, strict=True):
        assert np.abs(mine - wanted).max() <= 2e-2 * np.abs(wanted).max()


def test_weights_lie_once_and_positions_stay_exact(paths: tuple[Path, Path]):
    mine, plain = (path.stat().st_size for path in paths)
    assert mine < plain + 8192
    with load(paths[0]) as program:
        inner = program._engine.program
        assert {each.backend for each in inner.delegates} == {"qnn", "cpu"}
        assert all(not each.payload for each in inner.delegates)
        for each in inner.delegates:
            graph = inner.methods[each.method].blocks[each.block].graph
            ops = {step.op for step in graph.instructions}
            if each.backend == "qnn":
                assert {"kvc::cache_update", "kvc::attention"} <= ops
                assert not ops & {"aten::embedding", "aten::index.Tensor"}
            else:
                assert {"aten::embedding", "aten::index.Tensor"} <= ops


def test_the_same_model_and_recipe_give_the_same_bytes(tmp_path: Path):
    files = [compiled(tmp_path / f"{n}.kvc", "qnn_fp16").read_bytes() for n in "ab"]
    assert files[0] == files[1]


def test_sizes_without_buckets_are_the_largest_alone(tmp_path: Path):
    with load(compiled(tmp_path / "m.kvc", "qnn_fp16")) as program:
        (seq,) = program._engine.program.symbols
        assert (seq.name, seq.sizes) == ("seq", (16,))
    with pytest.raises(BadBuckets, match=r"\[1, 17\] reach out of 1..16"):
        compiled(tmp_path / "m.kvc", recipe(seq=(1, 17)))
    with pytest.raises(BadBuckets, match="takes fixed shapes"):
        compiled(tmp_path / "m.kvc", replace(recipe(), sizes="any"))


def test_without_the_library_the_reference_runs_and_says_so(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    from importlib.metadata import PackageNotFoundError

    from kvc.runtime import ReferenceUsed
    from kvc.runtime.delegates import base
    from kvc.runtime.delegates.qnn import library
    from kvc.schema.errors import MissingLibrary

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(library, "version", version)
    monkeypatch.setattr(base, "_warned", set())
    with pytest.raises(MissingLibrary, match=r"pip install 'kvc\[qnn\]'"):
        load(paths[0], reference=False)
    with load(paths[0]) as mine, load(paths[1]) as plain:
        with pytest.warns(ReferenceUsed, match="onnxruntime-qnn is not installed"):
            here = mine.session()
        with here, plain.session() as there:
            for found, wanted in zip(answers(here), answers(there), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(library, "version", lambda package: "1.0")
    with pytest.raises(MissingLibrary, match=r"of version 1\.0, where 2\.7\.0"):
        load(paths[0], reference=False)
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    with pytest.raises(MissingLibrary, match="this is aarch64"):
        load(paths[0], reference=False)


def test_an_emulator_is_told_of_once(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    from kvc.runtime.delegates.qnn import backend

    use_numpy_device(monkeypatch)
    monkeypatch.setattr(backend, "_told", [])
    with load(paths[0]) as program:
        with pytest.warns(SoftwareDevice, match=r"device='qnn:v75'"):
            session = program.session()
        session.close()
