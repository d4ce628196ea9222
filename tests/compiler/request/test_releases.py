"""Which packages the compiler works with, and what it says of any other."""

import re
import sys
import tomllib
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
import torch

from kvc.compiler.request.releases import TORCH, TRANSFORMERS
from kvc.schema.errors import MissingTransformers, WrongTorch, WrongTransformers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.13.0+cu130"])
def test_releases_in_the_range(version):
    assert TORCH.has(version)


@pytest.mark.parametrize("version", ["2.12.9", "2.14.0", "3.13.0", "2.130.0", "main"])
def test_releases_outside_of_it(version):
    assert not TORCH.has(version)


def test_the_requirement_is_the_same_range():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    assert extras["compile"] == [str(TORCH)]
    assert str(TRANSFORMERS) in extras["hf"]


def import_anew(name):
    """Do what the first import of a package does, beside the one that is imported."""
    spec = find_spec(name)
    spec.loader.exec_module(module_from_spec(spec))


def test_another_torch_is_refused_with_its_remedy(monkeypatch):
    import_anew("kvc.compiler")
    monkeypatch.setattr(torch, "__version__", "2.14.0+cpu")
    with pytest.raises(WrongTorch, match=r"torch 2\.14\.0\+cpu is installed") as caught:
        import_anew("kvc.compiler")
    assert "pip install 'torch>=2.13,<2.14'" in str(caught.value)


def test_another_transformers_is_refused_with_its_remedy(monkeypatch):
    import_anew("kvc.compiler.hugging_face")
    # transformers puts another module in its place while its models are imported
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.24.0")
    told = r"transformers 5\.24\.0 is installed"
    with pytest.raises(WrongTransformers, match=told) as caught:
        import_anew("kvc.compiler.hugging_face")
    assert "pip install 'transformers>=5.23,<5.24'" in str(caught.value)


def test_what_transformers_need_is_said_as_it_is_required():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = extras["optional-dependencies"]
    packages = [p for p in listed["hf"] + listed["text"] if not p.startswith("kvc")]
    told = str(MissingTransformers(package="transformers"))
    assert set(re.findall(r"'(.+?)'", told)) == set(packages)


def test_the_readme_names_what_hf_brings():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = settings["optional-dependencies"]["hf"]
    (own,) = (one for one in wanted if one.startswith("kvc["))
    readme = (ROOT / "README.md").read_text()
    (row,) = (
        one for one in readme.splitlines() if one.startswith("| `pip install '.[hf")
    )
    named = re.findall(r"`([a-z]+)`", row)
    assert own == f"kvc[{','.join(named)}]"


def test_the_transformers_that_is_tested_is_the_only_minor_release_in_the_range():
    # 5.24 calls a model's cache by another name, by which Mamba's is not found.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = extras["optional-dependencies"]
    (wanted,) = (p for p in listed["hf"] if p.startswith("transformers"))
    (tested,) = (p for p in listed["dev"] if p.startswith("transformers"))
    major, minor, _ = tested.removeprefix("transformers==").split(".")
    assert wanted == f"transformers>={major}.{minor},<{major}.{int(minor) + 1}"
