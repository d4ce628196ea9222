"""Recipes that any model of the tests compiles by: of any size, and without samples.

Those of fixed sizes, and those that need samples, have tests of their own.
"""

from kvc.compiler.backends import BACKENDS
from kvc.recipes import known_recipes, load_recipe


def _is_plain(name: str) -> bool:
    recipe = load_recipe(name)
    backend = BACKENDS.get(recipe.backend)
    return recipe.sizes == "any" and not (backend and backend.calibrated)


PLAIN_RECIPES = [name for name in known_recipes() if _is_plain(name)]
