import json

import pytest

from kvc.runtime.delegates.table import DELEGATES, Ready, delegate_of
from kvc.schema.errors import MissingLibrary
from kvc.tools.reports import recipes
from kvc.tools.reports.recipes import describe_recipes, recipe_lines

RECIPES = [
    "bf16",
    "coreai_fp16",
    "coreai_fp32",
    "coreml_fp16",
    "coreml_q8",
    "cpu_bf16",
    "cpu_fp32",
    "cpu_q4",
    "cpu_q8",
    "ethosu_a16w8",
    "ethosu_a8w8",
    "fp32",
    "mlx_q8",
    "qnn_a16w8",
    "qnn_fp16",
    "vulkan_fp32",
    "vulkan_q8",
    "xnnpack_fp32",
    "xnnpack_q4",
    "xnnpack_q8",
]


def test_every_recipe_is_listed_with_what_it_is_for(kvc):
    lines = kvc("recipes").stdout.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(name for name in named if not name.startswith("(")) == RECIPES
    assert "the processor, by kvc's own kernels: runs here" in lines
    told = json.loads(kvc("recipes", "--json").stdout)
    assert list(told["recipes"]) == RECIPES
    grouped = [name for group in told["devices"] for name in group["recipes"]]
    assert sorted(grouped) == RECIPES
    assert {each["backend"] for each in told["devices"]} == {"", *DELEGATES}


def test_what_cannot_run_here_comes_last_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse() -> None:
        raise MissingLibrary(library="L", reason="not installed", install="get it")

    monkeypatch.setattr(delegate_of("cpu"), "check_library", staticmethod(refuse))
    *_, last = (one for one in describe_recipes() if one.backend in ("", "cpu"))
    assert (last.backend, last.here) == ("cpu", False)
    lines = recipe_lines([last])
    assert lines[0].endswith("is not here; PyTorch would run its reference")
    assert "get it with `get it`" in lines[1]
    assert lines[2].startswith("  cpu_bf16  ")


def test_no_reference_is_promised_where_torch_is_not_installed_either(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse() -> None:
        raise MissingLibrary(library="L", reason="not installed", install="get it")

    monkeypatch.setattr(delegate_of("cpu"), "check_library", staticmethod(refuse))
    monkeypatch.setattr(recipes, "has_torch", lambda: False)
    (one,) = (each for each in describe_recipes() if each.backend == "cpu")
    assert one.state == "is not here, nor is PyTorch, which would run its reference"


def test_core_ml_does_not_run_here_without_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvc.runtime.delegates.coreml.backend.has_torch", lambda: False)
    (one,) = (each for each in describe_recipes() if each.backend == "coreml")
    assert (one.here, one.state) == (False, "is not here")
    assert "needs the package torch" in one.missing


def test_recipes_without_a_backend_need_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipes, "has_torch", lambda: False)
    ready, missing = recipes._torch()
    assert ready is Ready.NOT_INSTALLED
    assert "pip install 'kvc[compile]'" in missing
