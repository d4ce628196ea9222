"""The recipes `coreai_fp32` and `coreai_fp16`: assets, indices, options.

By numpy in its place, and by Core AI where it is here. What it computes of a model is
tested in `test_other_libraries.py`.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import library_here
import numpy as np
import other_libraries
import pytest
import torch
from coreai_device import ASKED, use_numpy_core_ai
from tiny_runs import TOKENS, compiled, near
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import load
from kvc.schema.errors import (
    BadBuckets,
    BadOption,
    BadSetting,
    IndexOutOfRange,
    KernelFailed,
    MissingLibrary,
)

NEAR = {"coreai_fp32": 1e-5, "coreai_fp16": 4e-3}  # of the largest number
RECIPES = tuple(NEAR)


def recipe(name: str, **buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe(name), buckets=buckets)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model by each recipe."""
    folder = tmp_path_factory.mktemp("coreai")
    found = {n: compiled(folder / n, recipe(n, seq=(1, 4, 16))) for n in RECIPES}
    return found | {"fp32": compiled(folder / "fp32", "fp32")}


@pytest.fixture(params=["numpy", "library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return other_libraries.use("coreai", request.param, monkeypatch)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_whole_methods_are_taken(paths: dict[str, Path], name: str):
    with load(paths[name], reference=True) as program:
        for method in program._engine.program.methods:
            ops = [step.op for step in method.graph.instructions]
            assert ops == ["kvc::delegate"], method.name


class Looked(nn.Module):
    """A table that is looked into at places that the model computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(5, 4))
        self.product = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return self.product(self.table[places + 1])


def test_an_index_outside_is_refused_and_nothing_has_changed(
    library: str, name: str, tmp_path: Path
):
    method = Method("forward", (torch.tensor([0, 2, 1]),))
    model = Looked().eval()
    wanted = model.product(model.table[[4, 2, 1]]).detach().numpy()
    compile_program(model, [method], name).save(tmp_path / "m")
    with load(tmp_path / "m") as program, program.session() as session:
        assert near(session.forward(np.array([3, 1, 0])), wanted, NEAR[name])
        for wrong, index in ((4, 5), (-8, -7)):
            with pytest.raises(IndexOutOfRange, match=f"{index}.*size 5|{index}.*5"):
                session.forward(np.array([0, wrong, 1]))
        assert session.state["count"].tolist() == [1]
        assert near(session.forward(np.array([3, -4, -5])), wanted, NEAR[name])
        assert session.state["count"].tolist() == [2]


def test_an_integer_of_more_than_32_bits_is_refused(
    library: str, name: str, tmp_path: Path
):
    method = Method("forward", (torch.tensor([0, 2, 1]),))
    compile_program(Looked().eval(), [method], name).save(tmp_path / "m")
    with load(tmp_path / "m") as program, program.session() as session:
        with pytest.raises(KernelFailed, match="of 32 bits, and this is 2147483648"):
            session.forward(np.array([0, 2**31, 1]))
        assert session.state["count"].tolist() == [0]


def exported(path: Path) -> bytes:
    with load(path) as program:
        (made,) = program.pack(target="coreai")
        assert made.folder
        return made.content()


def test_an_asset_has_the_same_bytes_each_time(
    paths: dict[str, Path], name: str, library: str
):
    assert exported(paths[name]) == exported(paths[name])
    with load(paths[name]) as program, pytest.raises(BadSetting, match="coreai:v27"):
        program.pack(target="coreai:v12")


def test_an_asset_of_the_library_runs_with_the_names_of_the_program(
    paths: dict[str, Path], tmp_path: Path
):
    """As an app would: in a process without kvc."""
    library_here.need("coreai")
    from kvc.tools.outputs import write_folder

    made = tmp_path / "m.aimodel"
    write_folder(made, exported(paths["coreai_fp32"]))
    code = f"""
import asyncio, sys
import numpy as np
from coreai.authoring import AIModelAsset
from coreai.runtime import NDArray

async def run():
    async with AIModelAsset.load({str(made)!r}).executable() as model:
        assert sorted(model.function_names) == [
            "decode", "prefill_seq1", "prefill_seq16", "prefill_seq4"
        ], model.function_names
        caches = ["layers.0.attn.k_cache", "layers.0.attn.v_cache"]
        states = {{n: NDArray(np.zeros((1, 1, 24, 16), np.float32)) for n in caches}}
        states["position"] = NDArray(np.zeros(1, np.int32))
        for name, key, ids, start in (
            ("prefill_seq4", "tokens", [3, 4, 5, 6], 0), ("decode", "token", [7], 4)
        ):
            given = {{
                key: np.array([ids], np.int32),
                "position_start": np.array([start], np.int32),
                "position_end": np.array([start + len(ids)], np.int32),
            }}
            given = {{n: NDArray(a) for n, a in given.items()}}
            made = await model.load_function(name)(given, states)
        assert not made["index_outside"].numpy().any()
        np.save({str(tmp_path / "found.npy")!r}, made["result"].numpy())
        assert states["position"].numpy().tolist() == [5]
        assert "kvc" not in sys.modules

asyncio.run(run())
"""
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True, text=True)
    with load(paths["fp32"]) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
        wanted = session.decode(TOKENS[:, 4:5])
    assert near(np.load(tmp_path / "found.npy"), wanted, NEAR["coreai_fp32"])


def test_an_asset_that_has_not_all_of_a_method_says_so(
    paths: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Parted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(torch.sinh(self.one(x)))

        def whole(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x)

        def others(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    use_numpy_core_ai(monkeypatch)
    names = ("forward", "whole", "others")
    methods = [Method(each, (torch.randn(2, 4),)) for each in names]
    compile_program(Parted().eval(), methods, name).save(tmp_path / "m")
    for path, remark in (
        (tmp_path / "m", "the asset has not all of: forward, others"),
        (paths[name], ""),
    ):
        with load(path) as program:
            (made,) = program.pack(target="coreai")
            assert made.remark.partition(";")[0] == remark


def test_weights_are_stored_once_over_all_functions(paths: dict[str, Path]):
    library_here.need("coreai")
    with load(paths["coreai_fp32"]) as program:
        weights = sum(data.nbytes for data in program.residency().blobs)
    nbytes = len(exported(paths["coreai_fp32"]))
    assert weights < nbytes < weights + 100_000  # four functions


def test_sizes_without_buckets_are_refused(name: str, tmp_path: Path):
    any_size = replace(load_recipe(name), sizes="any")
    with pytest.raises(BadBuckets, match="coreai takes fixed shapes"):
        compiled(tmp_path / "m", any_size)


def test_options_of_the_recipe_are_checked(name: str, tmp_path: Path):
    for wrong, text in (
        ({"precision": "bfloat16"}, "float32 or float16"),
        ({"speed": "high"}, "no options"),
    ):
        with pytest.raises(BadOption, match=text):
            compiled(tmp_path / "m", replace(load_recipe(name), backend_options=wrong))


def test_without_the_library_the_reference_runs_with_a_warning(
    paths: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
):
    from importlib.metadata import PackageNotFoundError

    from kvc.runtime import ReferenceUsed
    from kvc.runtime.delegates import library_package
    from kvc.runtime.execution import delegate

    monkeypatch.setattr(delegate, "_warned", set())

    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    for find, told in ((missing, "is not installed"), (lambda _: "9", "version 9")):
        monkeypatch.setattr(library_package, "version", find)
        delegate._warned.clear()
        warned = pytest.warns(ReferenceUsed, match=f"{told}.*kvc.coreai")
        with warned, load(paths[name]) as program, program.session() as session:
            session.prefill(TOKENS[:, :4])
        with pytest.raises(MissingLibrary, match=told):
            load(paths[name], reference=False)
        with load(paths[name]) as program, pytest.raises(BadSetting, match="here none"):
            program.pack(target="coreai")
    monkeypatch.setattr(library_package.platform, "machine", lambda: "riscv64")
    with pytest.raises(MissingLibrary, match="riscv64"):
        load(paths[name], reference=False)


def test_functions_are_built_together_unless_they_are_many(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    from kvc.runtime.delegates.coreai import context

    use_numpy_core_ai(monkeypatch)
    for most, builds in ((8, 1), (3, 2)):
        monkeypatch.setattr(context, "MOST_TOGETHER", most)
        ASKED.clear()
        with load(paths["coreai_fp32"]) as program, program.session() as session:
            session.prefill(TOKENS[:, :4])
            session.decode(TOKENS[:, 4:5])
            session.decode(TOKENS[:, 5:6])
        assert ASKED.count("build") == builds
        assert ASKED.count("run") == 3
