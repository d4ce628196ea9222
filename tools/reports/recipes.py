"""The recipes that ship with kvc, by the device they run on.

Out: groups of recipes, and whether each group's backend can run on this machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvc.recipes import known_recipes, load_recipe
from kvc.runtime.delegates.table import Ready, runs_on, what_it_lacks
from kvc.schema.text import columns
from kvc.schema.torch_package import has_torch, missing_torch

_TORCH = "the processor, by PyTorch"
_STATES: Mapping[Ready, str] = {
    Ready.YES: "runs here",
    Ready.BY_SOFTWARE: "runs here, on a program that acts as the device, slowly",
    Ready.BY_REFERENCE: "is not here; PyTorch would run its reference",
    Ready.NOT_INSTALLED: "is not here",
}
_NEITHER = "is not here, nor is PyTorch, which would run its reference"


@dataclass(frozen=True)
class RecipeGroup:
    """Recipes that run on the same device.

    Attributes:
        device: description of the device.
        backend: first backend of the recipes, "" if they have none.
        here: whether the backend can run on this machine, on the device or on a program
            that emulates the device.
        state: `here` in words.
        missing: what is missing on this machine, and how to install it; "" if nothing
            is.
        recipes: name of each recipe -> its description.
    """

    device: str
    backend: str
    here: bool
    state: str
    missing: str
    recipes: Mapping[str, str]


def describe_recipes() -> tuple[RecipeGroup, ...]:
    """Return the groups, those that can run here first."""
    by_backend: dict[str, dict[str, str]] = {}
    for name in known_recipes():
        recipe = load_recipe(name)
        by_backend.setdefault(recipe.backend, {})[name] = recipe.description
    found = [_group(backend, some) for backend, some in sorted(by_backend.items())]
    return tuple(sorted(found, key=lambda one: not one.here))


def _group(backend: str, recipes: Mapping[str, str]) -> RecipeGroup:
    ready, missing = what_it_lacks(backend) if backend else _torch()
    return RecipeGroup(
        device=runs_on(backend) if backend else _TORCH,
        backend=backend,
        here=ready in (Ready.YES, Ready.BY_SOFTWARE),
        state=_NEITHER
        if ready is Ready.BY_REFERENCE and not has_torch()
        else _STATES[ready],
        missing=missing,
        recipes=recipes,
    )


def _torch() -> tuple[Ready, str]:
    if has_torch():
        return Ready.YES, ""
    return Ready.NOT_INSTALLED, str(missing_torch("a recipe without a backend"))


def recipe_lines(groups: Iterable[RecipeGroup]) -> Sequence[str]:
    """Return the groups as lines of text."""
    lines: list[str] = []
    for group in groups:
        lines += [*([""] if lines else []), f"{group.device}: {group.state}"]
        if group.missing:
            lines.append(f"  ({group.missing})")
        lines += columns(group.recipes.items(), indent=2)
    return lines
