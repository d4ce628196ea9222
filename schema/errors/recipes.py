"""Errors of recipes: unknown recipes, wrong settings, settings without effect."""

from kvc.schema.errors.base import KvcError, listing, meant


class RecipeError(KvcError):
    """A recipe is unknown or wrong."""


class TargetMissing(RecipeError):
    """kvc has no backend for the target of a recipe."""

    recipe: str
    target: str
    state: str
    instead: str
    template = "there is no recipe {recipe!r}: kvc has no backend for {target} ({state}); use {instead}"


class UnknownRecipe(RecipeError):
    """No recipe has this name; `known` has the names of kvc's recipes."""

    recipe: str
    known: tuple[str, ...]

    def _text(self) -> str:
        return f"no recipe {self.recipe!r}{meant(self.recipe, self.known)}; there are: {listing(self.known)}, or give the path of a .toml file"


class BadRecipe(RecipeError):
    """A recipe file cannot be used as a recipe."""

    path: str
    what: str
    template = "{path}: {what}"


class RecipesApart(RecipeError):
    """Recipes cannot share a bundle, since they differ in more than their backends."""

    recipes: str
    what: str
    template = "recipes {recipes} cannot share a bundle: {what}; compile a bundle of each, or name recipes that differ in their backends alone"


class BadBuckets(RecipeError):
    """Bucket sizes in a recipe are wrong for the model, or missing for a backend."""

    recipe: str
    size: str
    what: str
    template = "recipe {recipe}, [buckets] {size}: {what}"


class UnmatchedPattern(RecipeError):
    """A pattern in a recipe matches no matrix; `known` lists the matrices' names."""

    pattern: str
    known: tuple[str, ...]

    def _text(self) -> str:
        most = f"; it has {len(self.known)}, the first: {listing(self.known[:5])}"
        return f"[keep] {self.pattern!r} matches no matrix of the model{meant(self.pattern, self.known)}{most if self.known else ''}; a pattern is a part of a name between points, such as mlp.experts"


class UnknownBackend(RecipeError):
    """A recipe names an unknown backend; `known` has the names of all backends."""

    backend: str
    reason: str
    known: tuple[str, ...]

    def _text(self) -> str:
        return f"no backend {self.backend!r}{meant(self.backend, self.known)}: {self.reason}; there are: {listing(self.known)}; install a package that provides it (entry point group kvc.backends), or call kvc.compiler.register_backend first"


class BadOption(RecipeError):
    """A recipe sets an unknown backend option, or an option to an invalid value."""

    backend: str
    option: str
    expected: str
    found: str
    template = (
        "backend {backend}, option {option!r}: expected {expected}, found {found}"
    )


class CalibrationNeeded(RecipeError):
    """A backend computes with integers, but there are no samples for calibration."""

    backend: str
    template = "the backend {backend} stores values as integers, and needs samples to know how large they become; give some with --calibrate FILE (compile_program, export_hf: calibrate=Samples(FILE))"


class CalibrationUnused(RecipeError):
    """Samples are given, but neither the recipes nor their backends use samples.

    Attributes: recipes (their names, as text), backends (the names of the recipes'
    backends, as text).
    """

    recipes: str
    backends: str
    template = "--calibrate: recipe {recipes} has no use for samples, since it has no int4 weights, and none of its backends ({backends}) stores values as integers of a range that must be known before; leave it out"


class FitUnused(RecipeError):
    """A file size is given to select weight bits, but the recipes fix the bits."""

    recipes: str
    template = "--fit selects the weights of one recipe that are int8 rather than int4, and there is nothing to select with {recipes}; use one int4 recipe (kvc recipes lists them), or limit the file with --max-file"


class FitTooSmall(RecipeError):
    """A bundle exceeds the requested file size even with the fewest weight bits."""

    recipe: str
    nbytes: int
    allowed: int
    template = "--fit {allowed:,}: with all weights of int4 that can be, the bundle by {recipe} takes {nbytes:,} bytes; give it more, or compile without --fit and see with kvc dump where they go"
