"""Bundles of the backend `qnn`: contexts of targets, masks, views, what is taken.

On a device that is numpy, and on Qualcomm's library, whose emulator runs: tests of it
are skipped where it is not installed. What it computes of a model is tested in
`test_other_libraries.py`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import other_libraries
import pytest
import torch
from qnn_device import ASKED, use_numpy_device
from tiny_runs import answers, compiled, near
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import SoftwareDevice, load
from kvc.runtime.delegates.qnn import Qnn
from kvc.runtime.execution import delegate
from kvc.schema.errors import BadBuckets, BadSetting

NEAR = 2e-3  # of the largest number: what float16 has
QUIET = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")
pytestmark = QUIET


def recipe(**buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe("qnn_fp16"), buckets=buckets)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model for the device, and for the reference."""
    folder = tmp_path_factory.mktemp("qnn")
    device = compiled(folder / "qnn.kvc", recipe(seq=(1, 4, 16)))
    return device, compiled(folder / "fp32.kvc", "fp32")


@pytest.fixture(params=["numpy", "library"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return other_libraries.use("qnn", request.param, monkeypatch)


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
        assert near(program.forward(x.numpy()), wanted, NEAR)


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
        assert near(program.forward(x.numpy(), mask.numpy()), wanted, NEAR)


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
    with pytest.raises(BadBuckets, match=r"\[1, 17\] are not all within 1..16"):
        compiled(tmp_path / "m.kvc", recipe(seq=(1, 17)))
    with pytest.raises(BadBuckets, match="takes fixed shapes"):
        compiled(tmp_path / "m.kvc", replace(recipe(), sizes="any"))


def test_without_the_library_the_reference_runs_and_says_so(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    from importlib.metadata import PackageNotFoundError

    from kvc.runtime import ReferenceUsed
    from kvc.runtime.delegates import library_package
    from kvc.schema.errors import MissingLibrary

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(library_package, "version", version)
    monkeypatch.setattr(delegate, "_warned", set())
    with pytest.raises(MissingLibrary, match=r"pip install 'kvc\[qnn\]'"):
        load(paths[0], reference=False)
    with load(paths[0]) as mine, load(paths[1]) as plain:
        with pytest.warns(ReferenceUsed, match="onnxruntime-qnn is not installed"):
            here = mine.session()
        with here, plain.session() as there:
            for found, wanted in zip(answers(here), answers(there), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(library_package, "version", lambda package: "1.0")
    with pytest.raises(MissingLibrary, match=r"of version 1\.0, where 2\.7\.0"):
        load(paths[0], reference=False)
    monkeypatch.setattr(library_package.platform, "machine", lambda: "aarch64")
    with pytest.raises(MissingLibrary, match="this is aarch64"):
        load(paths[0], reference=False)


def test_an_emulator_is_told_of_once(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    from kvc.runtime.delegates.qnn import backend

    use_numpy_device(monkeypatch)
    monkeypatch.setattr(backend, "_told", [])
    with load(paths[0]) as program:
        with pytest.warns(SoftwareDevice, match="or --device qnn:v75, and this"):
            session = program.session()
        session.close()
