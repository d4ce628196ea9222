"""Backends whose libraries are large and closed run a model as kvc's own kernels do.

On the library where it is here, and on numpy in its place. What only one of them does
is in a file of its own: `test_coreai.py`, `test_mlx.py`, `test_qnn.py`,
`test_qnn_fixed.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import library_here
import numpy as np
import other_libraries
import pytest
import qnn_fixed
import tiny_runs
from hf_models import build
from tiny_runs import TOKENS, answers, contents, distance
from whole_process import modules_after

from kvc.compiler import CacheConfig, export_hf
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program, generate, load
from kvc.schema.errors import CacheOverflow

pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")


@dataclass(frozen=True)
class Way:
    """A recipe on a library or on numpy, and what it is held against.

    Attributes:
        far: how far it may be off, over the largest number.
        other: the recipe that is right; "" for the same bundle by the reference.
    """

    recipe: str
    where: str
    far: float
    other: str = ""

    @property
    def backend(self) -> str:
        """Return the name of the backend."""
        return load_recipe(self.recipe).backend


FLOATS = {"coreai_fp32": 1e-5, "coreai_fp16": 4e-3, "qnn_fp16": 2e-3}
INTEGERS = {"qnn_a16w8": 1e-4}  # about a step of 65536
WHERE = ("numpy", "library")
WAYS = [
    *(Way(n, where, far, "fp32") for n, far in FLOATS.items() for where in WHERE),
    *(Way(n, where, far) for n, far in INTEGERS.items() for where in WHERE),
    Way("mlx_q8", "library", 1e-5),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what compiles the same model by a recipe, each once."""
    folder = tmp_path_factory.mktemp("libraries")

    @cache
    def compiled(name: str) -> Path:
        recipe = load_recipe(name)
        if recipe.sizes == "largest":
            recipe = replace(recipe, buckets={"seq": (1, 4, 16)})
        samples = qnn_fixed.samples(folder) if name in INTEGERS else None
        return tiny_runs.compiled(folder / name, recipe, calibrate=samples)

    return compiled


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.recipe}-{way.where}")
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    other_libraries.use(request.param.backend, request.param.where, monkeypatch)
    return request.param


@pytest.fixture
def both(way: Way, bundle: Callable[[str], Path]) -> Iterator[tuple[Program, Program]]:
    mine, other = bundle(way.recipe), bundle(way.other or way.recipe)
    reference = None if way.other else True
    with load(mine) as program, load(other, reference=reference) as plain:
        yield program, plain


def test_prefill_and_decode_are_what_the_reference_says(
    both: tuple[Program, Program], way: Way
):
    mine, plain = both
    with mine.session() as here, plain.session() as there:
        assert distance(answers(here), answers(there)) <= way.far
        assert here.position.tolist() == there.position.tolist() == [13]
        assert distance(contents(here), contents(there)) <= way.far


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
        session.rewind(2)
        assert np.array_equal(session.decode(TOKENS[:, 8:9]), wanted)
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
        session.prefill(TOKENS[:, :16])
        session.prefill(TOKENS[:, 16:23])
        with session.fork() as other:
            with pytest.raises(CacheOverflow):
                session.prefill(TOKENS[:, :3])
            wanted = other.decode(TOKENS[:, 23:24])
            assert np.array_equal(session.decode(TOKENS[:, 23:24]), wanted)
        before = contents(session)
        with pytest.raises(CacheOverflow):
            session.decode(TOKENS[:, :1])
        assert all(map(np.array_equal, contents(session), before))


def test_what_a_slot_held_before_is_not_seen(both: tuple[Program, Program], way: Way):
    mine, plain = both
    with mine.session() as here, mine.session() as fresh, plain.session() as there:
        here.prefill(TOKENS[:, :16])
        here.rewind(12)
        found = []
        for session in (here, fresh, there):
            if session is not here:
                session.prefill(TOKENS[:, :4])
            found.append(session.decode(TOKENS[:, 4:5]))
        assert np.array_equal(found[0], found[1])
        assert distance(found[:1], found[2:]) <= way.far


@pytest.mark.parametrize("name", ["coreai_fp32", "qnn_fp16", "mlx_q8"])
def test_a_library_has_a_process_of_its_own_but_for_mlx(
    bundle: Callable[[str], Path], name: str
):
    library_here.need(load_recipe(name).backend)
    found = modules_after(bundle(name))
    known = {"torch", "coreai", "onnxruntime", "onnxruntime_qnn"}
    assert not {each.partition(".")[0] for each in found} & known
    own = "mlx.core" if name == "mlx_q8" else "kvc.runtime.delegates.subprocesses"
    assert {"mlx.core", "kvc.runtime.delegates.subprocesses"} & found == {own}


def test_other_bundles_import_none_of_them(bundle: Callable[[str], Path]):
    words = ("coreai", "mlx", "onnxruntime", "qnn")
    found = modules_after(bundle("cpu_q8"))
    assert not [each for each in found if any(word in each for word in words)]


# Grouped heads, joined projections, soft caps, slopes, windows and experts.
MODELS = ("llama", "gpt2", "falcon", "gemma2", "mpt", "phi")
ON_LIBRARIES = [
    *((recipe, model) for recipe in FLOATS for model in MODELS),
    *(
        (f"coreai_{dtype}", m)
        for dtype in ("fp32", "fp16")
        for m in ("bloom", "mixtral")
    ),
    *(("qnn_fp16", model) for model in ("opt", "qwen2")),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "model"), ON_LIBRARIES)
def test_architectures_are_near_the_reference_on_the_library(
    name: str, model: str, tmp_path: Path
):
    """Weights are scaled so that errors grow from layer to layer.

    PyTorch's float16 makes 6e-3 of the Llama. A wrong slot makes more than 1e-1.
    """
    recipe = load_recipe(name)
    library_here.need(recipe.backend)
    mine, plain = of_the_tiny_model(recipe, model, tmp_path)
    off = distance(said(mine), said(plain))
    print(f"\n{model} {name}: {off:.1e}")
    assert off <= (1e-5 if name == "coreai_fp32" else 1e-2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["llama", "gemma2", "mpt", "gpt2"])
def test_qnn_loses_what_rounding_to_float16_loses(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Numpy rounds what each node makes, and nothing else; see `qnn_precision.py`."""
    library_here.need("qnn")
    mine, plain = of_the_tiny_model(load_recipe("qnn_fp16"), model, tmp_path)
    right, found = np.concatenate(said(plain)), np.concatenate(said(mine))
    other_libraries.use("qnn", "numpy", monkeypatch)
    rounded = np.concatenate(said(mine))
    assert np.std(found - right) <= 1.4 * np.std(rounded - right)


def of_the_tiny_model(recipe: Recipe, model: str, folder: Path) -> tuple[Path, Path]:
    """Compile a tiny model by a recipe in two sizes, and in float32."""
    made = folder / "mine.kvc", folder / "fp32.kvc"
    sizes = {"seq": (1, 16), "capacity": (64,)}
    for path, one in zip(made, (replace(recipe, buckets=sizes), "fp32"), strict=True):
        cache_of = CacheConfig(max_length=64)
        export_hf(build(model), recipe=one, cache=cache_of, prefill_chunk=16).save(path)
    return made


def said(path: Path) -> list[np.ndarray]:
    with load(path) as program, program.session() as session:
        return answers(session)
