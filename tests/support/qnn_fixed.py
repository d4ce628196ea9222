"""Models for the recipe `qnn_a16w8`, which needs sample inputs to compile."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tiny_runs
from tiny_runs import TOKENS

from kvc.recipes import Recipe, load_recipe
from kvc.runtime.calibration import Samples


def recipe(**buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe("qnn_a16w8"), buckets=buckets)


def samples(folder: Path) -> Samples:
    random = np.random.default_rng(0)
    tokens = np.stack([TOKENS[0], random.integers(0, 32, 24)])
    np.savez(folder / "samples.npz", tokens=tokens)
    return Samples(folder / "samples.npz")


def compiled(path: Path, recipe: Recipe | str) -> Path:
    loaded = load_recipe(recipe) if isinstance(recipe, str) else recipe
    given = samples(path.parent) if loaded.backend_options else None
    return tiny_runs.compiled(path, loaded, calibrate=given)
