"""The recipes `coreai_fp32` and `coreai_fp16`: a model by Core AI, against fp32.

By numpy in its place, and by Core AI where it is here.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import coreai_here
import numpy as np
import pytest
import tiny_decoder
import torch
from coreai_device import ASKED, use_numpy_core_ai
from hf_models import build
from torch import nn

from kvc.compiler import CacheConfig, Method, compile_program, export_hf
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program, Session, generate, load
from kvc.schema.errors import (
    BadBuckets,
    BadOption,
    BadSetting,
    CacheOverflow,
    IndexOutOfRange,
    KernelFailed,
    MissingLibrary,
)

TOKENS = np.arange(3, 27)[None]
NEAR = {"coreai_fp32": 1e-5, "coreai_fp16": 4e-3}  # of the largest number
RECIPES = tuple(NEAR)


def recipe(name: str, **buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe(name), buckets=buckets)


def compiled(path: Path, recipe: Recipe | str) -> Path:
    spec = tiny_decoder.factory()
    made = compile_program(spec.model, spec.methods, recipe, metadata=spec.metadata)
    made.save(path)
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model by each recipe."""
    folder = tmp_path_factory.mktemp("coreai")
    found = {n: compiled(folder / n, recipe(n, seq=(1, 4, 16))) for n in RECIPES}
    return found | {"fp32": compiled(folder / "fp32", "fp32")}


@pytest.fixture(params=["numpy", "library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        use_numpy_core_ai(monkeypatch)
    else:
        coreai_here.check()
    return request.param


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def both(
    paths: dict[str, Path], name: str, library: str
) -> Iterator[tuple[Program, Program]]:
    with load(paths[name]) as mine, load(paths["fp32"]) as plain:
        yield mine, plain


def near(found: np.ndarray, wanted: np.ndarray, name: str) -> bool:
    return bool(np.abs(found - wanted).max() <= NEAR[name] * np.abs(wanted).max())


def answers(session: Session) -> list[np.ndarray]:
    """A prompt in pieces, tokens, and what was said again after going back."""
    found = [session.prefill(TOKENS[:, :9]), session.decode(TOKENS[:, 9:10])]
    session.rewind(3)
    found += [session.prefill(TOKENS[:, 7:12]), session.decode(TOKENS[:, 12:13])]
    return found


def test_prefill_and_decode_are_what_the_reference_says(
    both: tuple[Program, Program], name: str
):
    mine, plain = both
    with mine.session() as here, plain.session() as there:
        pairs = list(zip(answers(here), answers(there), strict=True))
        assert all(near(*pair, name) for pair in pairs)
        assert here.position.tolist() == there.position.tolist() == [13]
        for state, content in there.state.items():
            assert near(np.asarray(here.state[state]), np.asarray(content), name), state


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
        for state, was in before.items():
            assert np.array_equal(session.state[state], was)


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
        assert near(session.forward(np.array([3, 1, 0])), wanted, name)
        for wrong, index in ((4, 5), (-8, -7)):
            with pytest.raises(IndexOutOfRange, match=f"{index}.*size 5|{index}.*5"):
                session.forward(np.array([0, wrong, 1]))
        assert session.state["count"].tolist() == [1]
        assert near(session.forward(np.array([3, -4, -5])), wanted, name)
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
    coreai_here.check()
    from kvc.tools.folders import write_folder

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
    assert near(np.load(tmp_path / "found.npy"), wanted, "coreai_fp32")


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
    coreai_here.check()
    with load(paths["coreai_fp32"]) as program:
        weights = sum(data.nbytes for data in program.residency().blobs)
    nbytes = len(exported(paths["coreai_fp32"]))
    assert weights < nbytes < weights + 100_000  # four functions


def modules_after(path: Path) -> set[str]:
    """Return what a process has imported that has called both methods of a bundle."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import numpy as np\n"
        "from kvc.runtime import load\n"
        "with load(sys.argv[1]) as program, program.session() as session:\n"
        "    session.prefill(np.ones((1, 4), np.int64))\n"
        "    session.decode(np.ones((1, 1), np.int64))\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_of_the_library_is_imported_here(paths: dict[str, Path]):
    coreai_here.check()
    mine = modules_after(paths["coreai_fp32"])
    assert "kvc.runtime.delegates.apart" in mine
    assert not [name for name in mine if name.split(".")[0] in ("coreai", "torch")]


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
    from kvc.runtime.delegates import base
    from kvc.runtime.delegates.coreai import library

    monkeypatch.setattr(base, "_warned", set())

    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    for find, told in ((missing, "is not installed"), (lambda _: "9", "version 9")):
        monkeypatch.setattr(library, "version", find)
        base._warned.clear()
        warned = pytest.warns(ReferenceUsed, match=f"{told}.*kvc.coreai")
        with warned, load(paths[name]) as program, program.session() as session:
            session.prefill(TOKENS[:, :4])
        with pytest.raises(MissingLibrary, match=told):
            load(paths[name], reference=False)
        with load(paths[name]) as program, pytest.raises(BadSetting, match="here none"):
            program.pack(target="coreai")
    monkeypatch.setattr(library.platform, "machine", lambda: "riscv64")
    with pytest.raises(MissingLibrary, match="riscv64"):
        library.check_installed()


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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "model", ["llama", "gpt2", "falcon", "gemma2", "mpt", "bloom", "phi", "mixtral"]
)
def test_architectures_are_near_the_reference_on_the_library(
    model: str, name: str, tmp_path: Path
):
    """Grouped heads, joined projections, soft caps, slopes and windows.

    Weights are scaled so that errors grow from layer to layer; a wrong slot makes more
    than 1e-1.
    """
    coreai_here.check()
    sized, found = recipe(name, seq=(1, 16), capacity=(64,)), []
    for one in (sized, "fp32"):
        bundle = export_hf(
            build(model), recipe=one, cache=CacheConfig(max_length=64), prefill_chunk=16
        )
        bundle.save(tmp_path / "m.kvc")
        with load(tmp_path / "m.kvc") as program, program.session() as session:
            found.append(answers(session))
    limit = {"coreai_fp32": 1e-5, "coreai_fp16": 2e-2}[name]
    off = [
        float(np.abs(mine - wanted).max() / np.abs(wanted).max())
        for mine, wanted in zip(*found, strict=True)
    ]
    print(f"\n{model} {name}: {min(off):.1e} to {max(off):.1e}")
    assert max(off) <= limit
