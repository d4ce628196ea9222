"""The values of a recipe, and the settings that a recipe file may have.

`SETTINGS` is the grammar: one line for each `[section] key`, with the field of `Recipe`
it fills and the values it takes, the default first. A new setting is a line there and a
field of `Recipe`; the loader needs no change. A file may also have `[backend.options]`,
whose keys and values the backend checks, and `[keep]`, whose keys are parts of names in
the model, and `[buckets]`, whose keys are names of sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the numbers of a model are stored and computed.

    Attributes:
        name: name of the recipe: the file's name without `.toml`.
        description: one line for people.
        text: the file as it was read; it goes into the bundle's provenance.
        weights: how the float32 matrices of linear layers and embeddings are stored
            that no other setting quantizes. "bfloat16" halves them; linear layers then
            multiply in bfloat16, with sums in float32.
        linear: arithmetic of linear layers. "qd8" is int8 weight [out, in] with one
            float32 scale per output channel, and activations quantized to int8 per
            row at run time. "w8" is the same weight, multiplied in float32, or as the
            backend says. "qb4" is int4 weight with one bfloat16 scale per 32
            inputs of an output channel, and the same activations. "q8" and "q4" are
            these with activations in blocks of 32, and int8 weights, tables too, in
            blocks of up to 256; see `cpu_q8.toml`.
        basis: in which coordinates values between layers are. "rotated" spreads each
            over all of them, which changes nothing but what quantizing loses.
        embedding: how embedding tables are stored. "int8" is one float32 scale per
            row, rows are widened as they are looked up.
        backend: which backend is offered the graph; "" leaves all to kvc's kernels.
        backend_options: what the file says to the backend, by key.
        rest: which backend is then offered what the first has left, without options;
            "" leaves it to kvc's kernels.
        cache: how states are stored that are caches: those that `kvc::cache_update`
            writes and `kvc::attention` reads. "float16" rounds what is written, and
            computes in float32; "int8" is int8 rows, symmetric, with a float32 scale
            for each token and head; "float32" leaves them as they are.
        keep: which modules' or weights' matrices stay float32: parts of their paths.
        sizes: which sizes calls and sessions have that `buckets` does not name: any,
            or the largest alone.
        buckets: by the name of a size, the only sizes that calls and sessions have,
            ascending; for targets of fixed shapes.
    """

    name: str
    description: str
    text: str
    weights: Literal["float32", "bfloat16"]
    linear: Literal["float32", "qd8", "qb4", "w8", "q8", "q4"]
    embedding: Literal["float32", "int8"]
    backend: str
    backend_options: Mapping[str, Option] = field(default_factory=dict)
    cache: Literal["float32", "float16", "int8"] = "float32"
    rest: str = ""
    sizes: Literal["any", "largest"] = "any"
    keep: tuple[str, ...] = ()
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    basis: Literal["model", "rotated"] = "model"


@dataclass(frozen=True, slots=True)
class DefaultRecipe:
    """Two recipes for a model of which no recipe is named; the numbers are the same.

    Attributes:
        first: taken where its backend leaves nothing to PyTorch.
        otherwise: taken else; it has no backend.
    """

    first: Recipe
    otherwise: Recipe


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a recipe file.

    Attributes:
        section: the TOML table it stands in.
        key: its name there.
        field: the field of `Recipe` that it fills.
        values: what it may be; the first is the default.
        open: whether it may be any other text as well.
    """

    section: str
    key: str
    field: str
    values: tuple[str, ...]
    open: bool = False


_LINEAR = ("float32", "qd8", "qb4", "w8", "q8", "q4")
SETTINGS = (
    Setting("weights", "dtype", "weights", ("float32", "bfloat16")),
    Setting("linear", "scheme", "linear", _LINEAR),
    Setting("linear", "basis", "basis", ("model", "rotated")),
    Setting("embedding", "scheme", "embedding", ("float32", "int8")),
    Setting("cache", "dtype", "cache", ("float32", "float16", "int8")),
    Setting("backend", "name", "backend", ("",), open=True),
    Setting("backend", "rest", "rest", ("",), open=True),
    Setting("backend", "sizes", "sizes", ("any", "largest")),
)
