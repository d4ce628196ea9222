"""Recipes: the storage and arithmetic of a model's numbers, one TOML file each.

In: a recipe's name or the path of a TOML file. Out: a frozen `Recipe`. The compiler's
passes apply it.
"""

from kvc.recipes.loader import (
    DEFAULTS,
    Wanted,
    default_recipe,
    known_recipes,
    load_recipe,
    load_recipes,
)
from kvc.recipes.recipe import DefaultRecipe, Option, Recipe
from kvc.schema.errors import BadRecipe, RecipeError, UnknownRecipe

__all__ = [
    "DEFAULTS",
    "BadRecipe",
    "DefaultRecipe",
    "Option",
    "Recipe",
    "RecipeError",
    "UnknownRecipe",
    "Wanted",
    "default_recipe",
    "known_recipes",
    "load_recipe",
    "load_recipes",
]
