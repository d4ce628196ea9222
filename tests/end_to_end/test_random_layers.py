"""Random layers with every recipe, against eager and against the reference.

The seed is in the test's id. `KVC_RANDOM_LAYERS` is how many the exhaustive test tries,
400 unless told.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_recipes import PLAIN_RECIPES, runs_here
from random_layers import MOST, RandomLayers, inputs, layers_method
from torch import Tensor

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load

QUICK = 3
MANY = int(os.environ.get("KVC_RANDOM_LAYERS", "400"))
# How far from eager, of the greatest number of a result and 1 more: what rounding
# weights does to layers after layers. A wrong matrix is farther.
FAR = {
    "float32": 2e-5,
    "bfloat16": 0.1,
    "w8": 0.2,
    "qd8": 0.2,
    "qb4": 1.0,
    "q8": 0.1,
    "q4": 1.0,
}
# From the reference: a number that is rounded may be on the other side of a half.
NEAR = {
    "float32": 2e-5,
    "bfloat16": 0.02,
    "w8": 1e-4,
    "qd8": 0.02,
    "qb4": 0.02,
    "q8": 0.02,
    "q4": 0.02,
}
RECIPES = list(map(load_recipe, PLAIN_RECIPES))


@pytest.mark.parametrize("seed", range(QUICK))
def test_random_layers_are_what_they_are_with_every_recipe(
    seed: int, tmp_path: Path
) -> None:
    check(seed, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(QUICK, QUICK + MANY))
def test_so_are_many(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def check(seed: int, folder: Path) -> None:
    """Assert that each recipe computes what it should, with 1, 2 and the most rows."""
    model, method = RandomLayers(seed).eval(), layers_method()
    calls = [inputs(count, seed) for count in (1, 2, MOST)]
    with torch.no_grad():
        expected = [[y.numpy() for y in model(x)] for x in calls]
    for recipe in RECIPES:
        path = folder / f"{recipe.name}.kvc"
        compile_program(model, [method], recipe).save(path)
        scheme = recipe.weights if recipe.linear == "float32" else recipe.linear
        by_reference = results(path, calls, reference=True)
        here = f"{recipe.name}, {model.said}"
        close(by_reference, expected, FAR[scheme], here)
        if recipe.backend and runs_here(recipe):
            found = results(path, calls, reference=False)
            close(found, by_reference, NEAR[scheme], here)


def results(
    path: Path, calls: Sequence[Tensor], reference: bool
) -> list[list[np.ndarray]]:
    with load(path, reference=reference) as program:
        return [list(map(np.array, program.forward(x.numpy()))) for x in calls]


def close(
    found: Sequence[Sequence[np.ndarray]],
    expected: Sequence[Sequence[np.ndarray]],
    tolerance: float,
    where: str,
) -> None:
    """Assert that all results of all calls have about the same numbers."""
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), where
            most = tolerance * (1 + np.abs(other).max(initial=0))
            np.testing.assert_allclose(one, other, rtol=0, atol=most, err_msg=where)
