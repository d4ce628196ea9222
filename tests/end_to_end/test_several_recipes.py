"""One bundle for several backends: weights once, sessions that move between them."""

from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
import vulkan_here
from hf_models import build
from torch import nn

from kvc.compiler import CacheConfig, Method, compile_program, export_hf
from kvc.runtime import Program, load
from kvc.schema.container import BundleFile, verify_bundle
from kvc.schema.errors import BadSetting, RecipesApart

TOKENS = np.arange(3, 20)[None]
NEAR = 1e-5


ROWS = """description = "the numbers of xnnpack_q8, by kvc's own kernels"
[linear]
scheme = "qd8"
basis = "rotated"
[embedding]
scheme = "int8"
[backend]
name = "cpu"
"""


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return recipes of the same numbers, by their backends."""
    path = tmp_path_factory.mktemp("recipes") / "cpu_rows.toml"
    path.write_text(ROWS)
    return {"cpu": str(path), "xnnpack": "xnnpack_q8", "vulkan": "vulkan_q8"}


def compiled(recipe: str | list[str], path: Path) -> Path:
    spec = tiny_decoder.factory()
    made = compile_program(
        spec.model, spec.methods, recipe=recipe, metadata=spec.metadata
    )
    made.save(path)
    return path


@pytest.fixture(scope="module")
def both(recipes: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    return compiled([*recipes.values()], folder / "both.kvc")


def answers(program: Program) -> np.ndarray:
    with program.session() as session:
        session.prefill(TOKENS[:, :9])
        return np.stack([session.decode(TOKENS[:, i : i + 1]) for i in range(9, 14)])


def test_weights_that_are_equal_are_stored_once(both: Path, recipes, tmp_path: Path):
    alone = compiled(recipes["cpu"], tmp_path / "alone.kvc")
    with BundleFile.open(both) as file, BundleFile.open(alone) as other:
        blobs = {(blob.digest, blob.nbytes) for blob in file.program.blobs}
        assert blobs == {(b.digest, b.nbytes) for b in other.program.blobs}
        named = [body.provenance.recipe for body in file.program.bodies]
        assert named == ["cpu_rows", "xnnpack_q8", "vulkan_q8"]
    verify_bundle(both)


def test_the_same_model_and_recipes_give_the_same_bytes(
    both: Path, recipes, tmp_path: Path
):
    again = compiled([*recipes.values()], tmp_path / "again.kvc")
    assert again.read_bytes() == both.read_bytes()


@pytest.mark.parametrize("backend", ["cpu", "xnnpack", "vulkan"])
def test_each_computes_what_a_bundle_of_its_own_does(
    both: Path, recipes, backend: str, tmp_path: Path
):
    alone = compiled(recipes[backend], tmp_path / "alone.kvc")
    if backend == "vulkan":
        vulkan_here.device()
    with load(both, backend=backend) as one, load(alone) as other:
        assert one.provenance == other.provenance
        assert np.array_equal(answers(one), answers(other))


def test_load_takes_the_first_that_is_here(both: Path):
    with load(both) as program:
        assert program.provenance.recipe == "cpu_rows"
        assert "cpu_rows" in program.summary()
    with pytest.raises(BadSetting, match="here cpu, xnnpack, vulkan"):
        load(both, backend="coreml")


def test_a_device_that_is_asked_for_takes_its_recipe(both: Path):
    number = vulkan_here.device().found.number
    with load(both, device=f"vulkan:{number}") as program:
        assert program.provenance.recipe == "vulkan_q8"
        assert np.isfinite(answers(program)).all()


def test_a_session_that_one_backend_saved_goes_on_with_another(
    both: Path, tmp_path: Path
):
    saved = tmp_path / "talk.session"
    with load(both, backend="cpu") as program, program.session() as session:
        session.prefill(TOKENS[:, :9])
        session.save(saved)
        wanted = session.decode(TOKENS[:, 9:10])
    backends = ["xnnpack", *(["vulkan"] if vulkan_here.is_here() else [])]
    for backend in backends:
        with load(both, backend=backend) as other, other.restore(saved) as session:
            assert session.position == 9
            found = session.decode(TOKENS[:, 9:10])
        assert np.abs(found - wanted).max() <= 0.05 * np.abs(wanted).max()


def test_a_transposed_weight_is_beside_the_one_it_is_made_of(tmp_path: Path):
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(12.0).view(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    model = Turned()
    x = torch.randn(2, 3)
    path = tmp_path / "turned.kvc"
    recipes = ["cpu_fp32", "xnnpack_fp32"]
    compile_program(model, [Method("forward", (x,))], recipes).save(path)
    wanted = model(x).detach().numpy()
    for backend in ("cpu", "xnnpack"):
        with load(path, backend=backend) as program:
            found = program.forward(x.numpy())
            assert np.abs(found - wanted).max() <= NEAR * np.abs(wanted).max()


class Eigenvalues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x)


def test_a_recipe_whose_backend_takes_nothing_is_refused():
    method = Method("forward", (torch.eye(3),))
    with pytest.raises(RecipesApart, match="takes nothing of this model") as caught:
        compile_program(Eigenvalues(), [method], "xnnpack_fp32,vulkan_fp32")
    assert "compile a bundle of each" in str(caught.value)


def test_a_model_of_transformers_is_compiled_for_several(tmp_path: Path):
    path = tmp_path / "llama.kvc"
    cache = CacheConfig(max_length=32, dtype="float16")
    export_hf(build("llama"), recipe="vulkan_fp32,cpu_fp32", cache=cache).save(path)
    with load(path, backend="cpu") as program, program.session() as session:
        wanted = session.prefill(TOKENS[:, :5])
    with load(path, backend="vulkan") as program, program.session() as session:
        found = session.prefill(TOKENS[:, :5])
    assert np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max()
