"""Bundles of trained models, each compiled once by each recipe.

These tests run with `pytest -m real` or `tools/dev/real_models.sh`, which fetch some
250 MB the first time. A model that cannot be fetched is skipped with the reason.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from real_models import Unavailable, minilm, smollm2, whisper
from spoken_sentences import spoken

from kvc.tools.cli import main

Bundle = Callable[[str, str], Path]
MODELS = {"smollm2": smollm2, "whisper": whisper, "minilm": minilm}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all that is here; none of it is a part of the daily run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def folder() -> Callable[[str], Path]:
    """Return the folder of a model, or skip."""

    def of(model: str) -> Path:
        try:
            return MODELS[model]()
        except Unavailable as problem:
            pytest.skip(f"{model} cannot be had: {problem}")

    return of


@pytest.fixture(scope="session")
def bundle(
    folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """Return the bundle of a model by a recipe."""
    made = tmp_path_factory.mktemp("real")

    def of(model: str, recipe: str) -> Path:
        path = made / f"{model}-{recipe}.kvc"
        if not path.exists():
            given = ["compile", str(folder(model)), "--recipe", recipe]
            if model == "smollm2":
                given.append("--all-logits")
            done = CliRunner().invoke(main, [*given, "-q", "-o", str(path)])
            assert done.exit_code == 0, done.output
        return path

    return of


@pytest.fixture(scope="session")
def say() -> Callable[[str], np.ndarray]:
    """Return samples at 16 kHz, float32 [n], of a voice that says a text, or skip."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("there is no voice: `apt install espeak-ng`")
    return spoken
