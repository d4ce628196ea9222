"""Errors of recipes: unknown ones, and settings that nothing comes of."""

from kvc.schema.errors.base import KvcError, listing, meant


class RecipeError(KvcError):
    """A recipe is unknown or wrong."""


class TargetMissing(RecipeError):
    """A recipe is for a target that kvc has no backend for."""

    recipe: str
    target: str
    state: str
    instead: str
    template = "there is no recipe {recipe!r}: kvc has no backend for {target} ({state}); use {instead}"


class UnknownRecipe(RecipeError):
    """No recipe has this name; `known` are the names of kvc's recipes."""

    recipe: str
    known: tuple[str, ...]

    def _text(self) -> str:
        return f"no recipe {self.recipe!r}{meant(self.recipe, self.known)}; there are: {listing(self.known)}, or give the path of a .toml file"


class BadRecipe(RecipeError):
    """A recipe file is wrong."""

    path: str
    what: str
    template = "{path}: {what}"


class RecipesApart(RecipeError):
    """Recipes were to share a bundle, and would not make one program of a model."""

    recipes: str
    what: str
    template = "recipes {recipes} cannot share a bundle: {what}; compile a bundle of each, or name recipes that differ in their backends alone"


class BadBuckets(RecipeError):
    """Sizes that a recipe allows are not those of the model, or a backend needs some."""

    recipe: str
    size: str
    what: str
    template = "recipe {recipe}, [buckets] {size}: {what}"


class UnmatchedPattern(RecipeError):
    """A recipe keeps something that the model lacks; `known` are its matrices' names."""

    pattern: str
    known: tuple[str, ...]

    def _text(self) -> str:
        most = f"; it has {len(self.known)}, the first: {listing(self.known[:5])}"
        return f"[keep] {self.pattern!r} matches no matrix of the model{meant(self.pattern, self.known)}{most if self.known else ''}; a pattern is a part of a name between points, such as mlp.experts"


class UnknownBackend(RecipeError):
    """A recipe names an unknown backend; `known` are the names that exist."""

    backend: str
    reason: str
    known: tuple[str, ...]

    def _text(self) -> str:
        return f"no backend {self.backend!r}{meant(self.backend, self.known)}: {self.reason}; there are: {listing(self.known)}; install a package that provides it (entry point group kvc.backends), or call kvc.compiler.register_backend first"


class BadOption(RecipeError):
    """A recipe sets an option that its backend lacks, or to an impossible value."""

    backend: str
    option: str
    expected: str
    found: str
    template = (
        "backend {backend}, option {option!r}: expected {expected}, found {found}"
    )


class CalibrationNeeded(RecipeError):
    """A backend computes with integers, and nothing says how large values become."""

    backend: str
    template = "the backend {backend} stores values as integers, and needs samples to know how large they become; give some with --calibrate FILE (compile_program, export_hf: calibrate=Samples(FILE))"


class CalibrationUnused(RecipeError):
    """Samples are given, and neither the recipe nor its backends use any.

    Attributes: recipes (as text), backends (those of these recipes, as text).
    """

    recipes: str
    backends: str
    template = "--calibrate: recipe {recipes} has no use for samples, since it has no int4 weights, and none of its backends ({backends}) stores values as integers of a range that must be known before; leave it out"


class FitUnused(RecipeError):
    """A number of bytes is given to choose bits by, and there is nothing to choose."""

    recipes: str
    template = "--fit: it chooses which weights of one recipe are int8 rather than int4, and there is no such choice with {recipes}; take one recipe of int4 (kvc recipes lists them), or limit the file with --max-file"


class FitTooSmall(RecipeError):
    """A bundle takes more bytes than it is to fit in, with the fewest bits there are."""

    recipe: str
    nbytes: int
    allowed: int
    template = "--fit {allowed:,}: with all weights of int4 that can be, the bundle by {recipe} takes {nbytes:,} bytes; give it more, or compile without --fit and see with kvc dump where they go"
