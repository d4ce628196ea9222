"""Recipes: the storage and arithmetic of a model's numbers, one TOML file each.

In: a recipe's name or the path of a TOML file. Out: a frozen `Recipe`. The compiler's
passes apply it.
"""

from kvc.recipes.loader import (
    DEFAULT,
    Wanted,
    known_recipes,
    load_recipe,
    load_recipes,
)
from kvc.recipes.recipe import Option, Recipe
from kvc.schema.errors import BadRecipe, RecipeError, UnknownRecipe

__all__ = [
    "DEFAULT",
    "BadRecipe",
    "Option",
    "Recipe",
    "RecipeError",
    "UnknownRecipe",
    "Wanted",
    "known_recipes",
    "load_recipe",
    "load_recipes",
]
