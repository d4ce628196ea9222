"""Read recipe files.

In: the name of a shipped recipe, or the path of a user's own TOML file. Out: a `Recipe`
with every field checked. A wrong file raises `BadRecipe`, which names the file, the key
and its allowed values.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvc.recipes.recipe import SETTINGS, Option, Recipe, Setting
from kvc.schema.errors import (
    BadRecipe,
    RecipesApart,
    TargetMissing,
    UnknownRecipe,
    listing,
    meant,
)

# Targets without a backend in kvc: recipes to use instead, and whether one is planned.


@dataclass(frozen=True, slots=True)
class Target:
    """A target for which kvc has no backend.

    Attributes:
        name: the target's name in words.
        state: whether a backend is planned; if it is not, also the reason.
        instead: the recipes that a user of this target can use today, in words.
    """

    name: str
    state: str
    instead: str


_ANYWHERE: Final = "cpu_q8 or cpu_q4, which run on every processor"
_GPU: Final = f"vulkan_fp32 on a GPU with a Vulkan driver, {_ANYWHERE}"
TARGETS: Final = {
    "mps": Target(
        "Apple's Metal Performance Shaders",
        "not planned: ExecuTorch, where recipes of this name came from, has removed it",
        f"mlx_q8 on a Mac, an export for Core AI or Core ML, {_ANYWHERE}",
    ),
    "cuda": Target("NVIDIA's CUDA", "planned", _GPU),
    "openvino": Target(
        "Intel's OpenVINO",
        "not planned: on processors it was no faster than XNNPACK",
        f"xnnpack_q8, {_ANYWHERE}",
    ),
}


def target_of(recipe: str) -> Target | None:
    """Return the target that the first word of a recipe's name means, or None."""
    return TARGETS.get(recipe.lower().partition("_")[0])


# Recipe files.


Wanted = str | Path | Recipe | Sequence[str | Path | Recipe]

DEFAULT: Final = "cpu_fp32"  # for a model without a named recipe
FOLDER = Path(__file__).parent
MAX_NBYTES = 1 << 16  # a recipe is a page of text; a larger file is something else
_SECTIONS = (*dict.fromkeys(s.section for s in SETTINGS), "keep", "buckets")


def known_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that ship with kvc, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_recipe(recipe: str | Path | Recipe, cache: str | None = None) -> Recipe:
    """Return a recipe by its name or `.toml` file, or the given `Recipe` itself.

    Args:
        recipe: the name, the path, or the recipe itself.
        cache: the dtype of caches, in place of the file's `[cache] dtype`; None for the
            file's dtype.

    Raises:
        TargetMissing: the recipe is for a target without a backend in kvc.
        UnknownRecipe: no shipped recipe has this name; the message lists them.
        BadRecipe: the argument is not a name, a path or a `Recipe`; or the file cannot
            be read, or has a wrong key, type or value.
    """
    if isinstance(recipe, Recipe):
        return _with_cache(recipe, cache)
    if not isinstance(recipe, str | Path):
        raise BadRecipe(path=repr(recipe), what="not a recipe, its name or its path")
    text = str(recipe)
    if text.endswith(".toml") or isinstance(recipe, Path):
        return _with_cache(_read(Path(recipe), where=text), cache)
    known = known_recipes()
    target = target_of(text)
    if target is not None:
        raise TargetMissing(
            recipe=text, target=target.name, state=target.state, instead=target.instead
        )
    if text not in known:
        raise UnknownRecipe(recipe=text, known=known)
    return _with_cache(_read(FOLDER / f"{text}.toml", where=f"{text}.toml"), cache)


def load_recipes(given: Wanted, cache: str | None = None) -> tuple[Recipe, ...]:
    """Return the recipes for a bundle; they differ only in their backends.

    Args:
        given: one recipe, as for `load_recipe`; names or paths separated by commas; or
            a sequence of recipes.
        cache: the dtype of caches in all recipes; see `load_recipe`.

    Raises:
        RecipesApart: two recipes store or compute different numbers, or have the same
            backend.
        RecipeError: a recipe cannot be loaded; see `load_recipe`.
    """
    wanted = _named(given) if isinstance(given, str | Path | Recipe) else tuple(given)
    if not wanted:
        raise BadRecipe(path=repr(given), what="no recipe")
    found = tuple(load_recipe(one, cache) for one in wanted)
    for other in found[1:]:
        _check_together(found[0], other)
    backends = [recipe.backend for recipe in found]
    twice = sorted({name for name in backends if backends.count(name) > 1})
    if twice or (len(found) > 1 and "" in backends):
        what = "each needs a backend of its own, by which it is selected"
        raise _apart(found, f"their backends are {backends}: {what}")
    return found


def _named(given: str | Path | Recipe) -> tuple[str | Path | Recipe, ...]:
    """Split a text at commas, unless it is the path of a file."""
    if isinstance(given, str) and "," in given and not Path(given).is_file():
        return tuple(part.strip() for part in given.split(","))
    return (given,)


def _check_together(one: Recipe, other: Recipe) -> None:
    """Check that two recipes store and compute the same numbers.

    Raises:
        RecipesApart: the recipes store or compute different numbers.
    """
    numbers = ("weights", "linear", "basis", "convolution", "embedding", "cache")
    for field in (*numbers, "keep"):
        first, second = (_said(getattr(each, field)) for each in (one, other))
        if first != second:
            what = f"{field} is {first} in one and {second} in the other"
            raise _apart((one, other), what)


def _said(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "nothing"


def _apart(recipes: Sequence[Recipe], what: str) -> RecipesApart:
    return RecipesApart(recipes=listing([one.name for one in recipes]), what=what)


def _with_cache(recipe: Recipe, cache: str | None) -> Recipe:
    """Return a recipe whose caches have the dtype `cache`; its text is changed too.

    The recipe is returned unchanged if `cache` is None or its dtype already.
    """
    if cache is None or cache == recipe.cache:
        return recipe
    (setting,) = (s for s in SETTINGS if s.field == "cache")
    _value(recipe.name, setting, cache)
    said = f'[cache]\ndtype = "{cache}"\n'
    if "cache" in tomllib.loads(recipe.text):
        said = f'# overrides [cache] above: dtype = "{cache}"\n'
    text = f"{recipe.text.rstrip()}\n\n{said}"
    return replace(recipe, cache=cache, text=text)  # type: ignore[arg-type]  # _value has checked it


def _read(path: Path, where: str) -> Recipe:
    text = _text_of(path, where)
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        last = f"at line {text.count(chr(10)) + 1}, the last"
        reason = str(error).replace("at end of document", last)
        raise BadRecipe(path=where, what=f"not valid TOML: {reason}") from error
    description = tables.pop("description", "")
    if not isinstance(description, str):
        raise _wrong(where, "description", description, "a text")
    options = _backend_options(where, tables.get("backend"))
    keep = tuple(_kept(where, "", tables.pop("keep", {})))
    buckets = _buckets(where, tables.pop("buckets", {}))
    values = {setting.field: setting.values[0] for setting in SETTINGS}
    for section, table in tables.items():
        values.update(_section(where, section, table))
    for key, given in (("options", options), ("rest", values["rest"])):
        if given and not values["backend"]:
            raise BadRecipe(path=where, what=f"backend.{key} without a backend.name")
    matrices = ("weights", "linear", "convolution", "embedding")
    stored = {values[name] for name in matrices}
    if keep and stored == {"float32"}:
        what = "[keep] in a recipe that stores all weights as float32"
        raise BadRecipe(path=where, what=what)
    settings = values | {"backend_options": options, "keep": keep, "buckets": buckets}
    return Recipe(path.stem, description, text, **settings)  # type: ignore[arg-type]  # _value has checked each against its field's values


def _kept(where: str, path: str, table: object) -> Iterator[str]:
    """Yield the patterns of the table `[keep]`.

    TOML reads an unquoted key a.b as the key b in a table a, which is the pattern a.b
    too.
    """
    if not isinstance(table, Mapping):
        raise _wrong(where, "keep", table, "a section [keep]")
    for key, value in table.items():
        pattern = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _kept(where, pattern, value)
        elif not all(pattern.split(".")):
            what = f"keep: {pattern!r} is no path, such as mlp.experts"
            raise BadRecipe(path=where, what=what)
        elif value != "float32":
            raise _wrong(where, f"keep.{pattern}", value, '"float32"')
        else:
            yield pattern


def _buckets(where: str, table: object) -> dict[str, tuple[int, ...]]:
    """Return name of a size -> allowed values, from the table `[buckets]`."""
    if not isinstance(table, Mapping):
        raise _wrong(where, "buckets", table, "a section [buckets]")
    for name, sizes in table.items():
        whole = isinstance(sizes, list) and all(type(n) is int for n in sizes)
        if not whole or not sizes or sizes != sorted(set(sizes)):
            expected = "a list of ascending sizes, such as [1, 16, 64]"
            raise _wrong(where, f"buckets.{name}", sizes, expected)
    return {name: tuple(sizes) for name, sizes in sorted(table.items())}


def _backend_options(where: str, table: object) -> dict[str, Option]:
    """Remove the key `options` from the table `[backend]`, and return its table."""
    options = table.pop("options", {}) if isinstance(table, dict) else {}
    if not isinstance(options, Mapping):
        raise _wrong(where, "backend.options", options, "a section")
    for key, value in options.items():
        if not isinstance(value, Option):
            expected = "a text, a number, true or false"
            raise _wrong(where, f"backend.options.{key}", value, expected)
    return dict(options)


def _text_of(path: Path, where: str) -> str:
    """Read at most MAX_NBYTES of UTF-8 text from a regular file."""
    try:
        if path.exists() and not path.is_file():
            raise BadRecipe(path=where, what="not a file")
        with path.open("rb") as file:
            content = file.read(MAX_NBYTES + 1)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise BadRecipe(path=where, what=reason) from error
    except ValueError as error:  # a null character in the path
        raise BadRecipe(path=where, what=f"cannot be read: {error}") from error
    if len(content) > MAX_NBYTES:
        raise BadRecipe(path=where, what=f"more than {MAX_NBYTES} bytes, not a recipe")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reason = f"not UTF-8 text: byte 0x{content[error.start]:02x} in line {line}"
        raise BadRecipe(path=where, what=reason) from error


def _section(where: str, section: str, table: object) -> Iterator[tuple[str, str]]:
    """Yield (field of `Recipe`, value) for each key of one TOML table."""
    allowed = {s.key: s for s in SETTINGS if s.section == section}
    if not allowed:
        known = listing(("description", *(f"[{name}]" for name in _SECTIONS)))
        kind = (
            f"section [{section}]" if isinstance(table, Mapping) else f"key {section!r}"
        )
        near = meant(section, ("description", *_SECTIONS))
        raise BadRecipe(path=where, what=f"unknown {kind}{near}; allowed: {known}")
    if not isinstance(table, Mapping):
        raise _wrong(where, section, table, f"a section [{section}]")
    for key, value in table.items():
        if key not in allowed:
            nested = ("options",) if section == "backend" else ()
            keys = (*allowed, *nested)
            what = (
                f"unknown key {key!r}{meant(key, keys)} in [{section}]; "
                f"allowed there: {listing(keys)}"
            )
            raise BadRecipe(path=where, what=what)
        yield allowed[key].field, _value(where, allowed[key], value)


def _value(where: str, setting: Setting, value: object) -> str:
    if not isinstance(value, str) or not (setting.open or value in setting.values):
        texts = " or ".join(f'"{allowed}"' for allowed in setting.values)
        expected = "a text" if setting.open else texts
        raise _wrong(where, f"{setting.section}.{setting.key}", value, expected)
    return value


def _wrong(where: str, key: str, found: object, expected: str) -> BadRecipe:
    shown = f'"{found}"' if isinstance(found, str) else _kind_of(found)
    return BadRecipe(path=where, what=f"{key} must be {expected}, not {shown}")


def _kind_of(found: object) -> str:
    """Describe a TOML value that is no string: by the value if short, else by kind."""
    match found:
        case bool():
            return str(found).lower()
        case int() | float():
            return repr(found)
        case Mapping():
            return "a section"
        case list():
            return "a list"
        case _:
            return f"a {type(found).__name__}"
