"""Recipes that can compile any model of the tests.

Recipes for fixed sizes, and those that need sample inputs, have tests of their own.
"""

from functools import partial

import library_here
import vulkan_here

from kvc.compiler.backends import BACKENDS
from kvc.recipes import Recipe, known_recipes, load_recipe

_IS_HERE = {
    "mlx": partial(library_here.is_here, "mlx"),
    "vulkan": vulkan_here.is_here,
}


def _is_plain(name: str) -> bool:
    recipe = load_recipe(name)
    backend = BACKENDS.get(recipe.backend)
    return recipe.sizes == "any" and not (backend and backend.calibrated)


PLAIN_RECIPES = [name for name in known_recipes() if _is_plain(name)]


def runs_here(recipe: Recipe) -> bool:
    is_here = _IS_HERE.get(recipe.backend)
    return is_here is None or is_here()
