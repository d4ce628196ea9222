"""Which backends a recipe may name."""

import pytest
import torch
from torch import nn
from toy_backend import Toy

from kvc.compiler import Method, compile_program, register_backend
from kvc.compiler.backends import BACKENDS, find_backend
from kvc.recipes import RecipeError
from kvc.schema.errors import BackendTaken, BadSetting, UnknownBackend


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """Forget what a test registers."""
    before = dict(BACKENDS)
    yield
    BACKENDS.clear()
    BACKENDS.update(before)


def test_what_is_registered_is_found_by_its_name():
    register_backend(Toy)
    assert find_backend("toy") is Toy


def test_a_name_that_is_taken_is_refused():
    register_backend(Toy)
    with pytest.raises(BackendTaken, match=r"backend 'toy'.*toy_backend\.Toy"):
        register_backend(Toy)
    mine = type("Mine", (Toy,), {"name": "xnnpack"})
    with pytest.raises(BackendTaken, match="xnnpack"):
        register_backend(mine)
    assert find_backend("xnnpack") is not mine


@pytest.mark.parametrize(
    "wrong",
    [
        "toy",
        object(),
        type("Nameless", (), {"supports": print, "lower": print}),
        type("Empty", (Toy,), {"name": ""}),
        type("Numbered", (Toy,), {"name": 3}),
        type("Lazy", (), {"name": "lazy", "supports": print}),
    ],
)
def test_what_is_no_backend_is_refused(wrong):
    with pytest.raises(
        BadSetting, match=r"a subclass of kvc\.compiler\.backends\.Backend with a name"
    ):
        register_backend(wrong)
    assert "lazy" not in BACKENDS


def test_an_unknown_backend_is_refused_before_anything_is_traced(tmp_path):
    class Untraceable(nn.Module):
        def forward(self, x):
            raise AssertionError("traced")

    recipe = tmp_path / "mine.toml"
    recipe.write_text('[backend]\nname = "neverland"\n')
    methods = [Method("forward", (torch.ones(2),))]
    with pytest.raises(UnknownBackend) as caught:
        compile_program(Untraceable(), methods, recipe=recipe)
    assert isinstance(caught.value, RecipeError)
    assert caught.value.backend == "neverland"
    names = "coreai, coreml, cpu, ethosu, mlx, qnn, vulkan, xnnpack"
    assert f"there are: {names}" in str(caught.value)
    assert "register_backend" in str(caught.value)


def test_an_entry_point_that_is_another_backend_is_refused(monkeypatch):
    class Entry:
        value = "toy_backend:Toy"

        def load(self):
            return Toy

    monkeypatch.setattr("kvc.compiler.backends.entry_points", lambda **_: [Entry()])
    assert find_backend("toy") is Toy
    with pytest.raises(UnknownBackend, match="is the backend 'toy'"):
        find_backend("other")
