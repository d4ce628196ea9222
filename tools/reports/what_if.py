"""What a bundle would take with other settings: `kvc compile BUNDLE --what-if`.

In: a decoded program, the bytes of its files, a recipe and a dtype of caches. Out: the
file and the memory now and then, told from what the settings would save, without
tracing the model again. Scratch is counted as it is now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvc.recipes import known_recipes
from kvc.schema.errors import BadSetting
from kvc.schema.model import Program
from kvc.schema.text import columns, plural, size
from kvc.tools.reports.footprint import Footprint
from kvc.tools.reports.savings import (
    CACHE_DTYPES,
    Saving,
    cache_saving,
    has_wide_caches,
    recipe_saving,
)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A bundle now, and with other settings.

    Attributes:
        file, file_then: bytes of the bundle and its data files.
        memory, memory_then: what it takes, at the same sizes.
    """

    file: int
    file_then: int
    memory: Footprint
    memory_then: Footprint


def describe_what_if(
    program: Program, file: int, at: Footprint, recipe: str, cache: str
) -> WhatIf:
    """Return what a bundle would take.

    Args:
        program: of the bundle.
        file: bytes of the bundle and its data files.
        at: what it takes now.
        recipe: name of one that ships with kvc, "" for the same.
        cache: one of `CACHE_DTYPES`, "" for the same.

    Raises:
        BadSetting: the recipe is none of kvc's, or no cache could be of that dtype.
    """
    _check("recipe", recipe, known_recipes())
    _check("cache", cache, CACHE_DTYPES if has_wide_caches(program) else ())

    def smaller(tokens: int) -> int:
        if not cache:
            return 0
        return cache_saving(program, cache, at.sizes, tokens).states

    saved = Saving("")
    if recipe:
        saved = recipe_saving(program, recipe, at.sizes, at.tokens)
    then = replace(
        at,
        weights=at.weights - saved.pages,
        packed=at.packed - saved.packed,
        states=at.states - smaller(at.tokens),
        token=at.token - (smaller(1) - smaller(0)),
        process=at.process - saved.process,
    )
    return WhatIf(file, file - saved.weights, at, then)


def _check(name: str, found: str, known: Sequence[str]) -> None:
    if found and found not in known:
        expected = (
            f"one of {', '.join(known)}"
            if known
            else "nothing: no cache of this bundle could be smaller"
        )
        raise BadSetting(name=f"--what-if {name}", expected=expected, found=found)


def what_if_lines(found: WhatIf) -> list[str]:
    """Lay both out, side by side."""
    now, then = found.memory, found.memory_then
    parts = [
        ("file", found.file, found.file_then),
        ("memory", now.total, then.total),
        ("  weights", now.weights + now.packed, then.weights + then.packed),
        (f"  states with {plural(now.tokens, 'token')}", now.states, then.states),
        ("  scratch, as it is now", now.scratch, then.scratch),
        ("  inside partitions, as now", now.backends, then.backends),
        ("  the process, about", now.process, then.process),
        ("each token", now.token, then.token),
    ]
    rows = [(what, size(before), size(after)) for what, before, after in parts]
    return columns([("", "now", "then"), *rows], "<>>")
