"""The values of a recipe, and the settings of a recipe file.

`SETTINGS` is the grammar: one line for each `[section] key`, with the field of `Recipe`
that it fills and the allowed values, the default first. A new setting needs a line
there and a field of `Recipe`; the loader needs no change. A file can also have
`[backend.options]`, whose keys and values the backend checks; `[keep]`, whose keys are
parts of names in the model; and `[buckets]`, whose keys are names of sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """The storage and arithmetic of a model's numbers.

    Attributes:
        name: name of the recipe: the file's name without `.toml`.
        description: one line for people.
        text: content of the recipe's file, which is stored in the bundle's provenance.
        weights: storage of the float32 matrices of linear layers and embeddings that no
            other setting quantizes. With "bfloat16", these matrices take half the
            memory, and linear layers multiply in bfloat16 with sums in float32.
        linear: arithmetic of linear layers. "qd8" is int8 weight [out, in] with one
            float32 scale per output channel, and activations quantized to int8 per row
            at run time. "w8" is the same weight, multiplied in float32, or as the
            backend defines. "qb4" is int4 weight with one bfloat16 scale per 32 inputs
            of an output channel, and activations as for "qd8". "q8" and "q4" are "qd8"
            and "qb4" with activations in blocks of 32, and int8 weights (embedding
            tables too) in blocks of up to 256; see `cpu_q8.toml`.
        basis: the coordinates of values between layers. "rotated" spreads each value
            over all coordinates, which changes only the quantization error.
        convolution: storage of the weights of convolutions. "w8" is int8 with one
            float32 scale per output channel, multiplied in float32; few weights stay
            float32, see `cpu_q8.toml`.
        embedding: storage of embedding tables. "int8" has one float32 scale per row;
            rows are converted to float32 when they are looked up.
        backend: name of the backend that runs the operators that it supports; "" to run
            the whole graph with kvc's kernels.
        backend_options: the file's options for the backend, by key.
        rest: name of a second backend, without options, that runs those of the
            remaining operators that it supports; "" to run all of them with kvc's
            kernels.
        cache: storage of caches, the states that `kvc::cache_update` writes and
            `kvc::attention` reads. "float16" rounds written rows, and computes in
            float32; "int8" is int8 rows, symmetric, with a float32 scale for each token
            and head; "float32" stores rows as they are.
        keep: parts of the paths of modules or weights whose matrices stay float32.
        sizes: the allowed values of the sizes that are not in `buckets`: all values, or
            only the largest.
        buckets: the only allowed values of a size, ascending, by the size's name; for
            targets that need fixed shapes.
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
    convolution: Literal["float32", "w8"] = "float32"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a recipe file.

    Attributes:
        section: the TOML table of the key.
        key: the key's name.
        field: the field of `Recipe` that the key sets.
        values: the allowed values; the first is the default.
        open: whether any other text is allowed too.
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
    Setting("convolution", "scheme", "convolution", ("float32", "w8")),
    Setting("embedding", "scheme", "embedding", ("float32", "int8")),
    Setting("cache", "dtype", "cache", ("float32", "float16", "int8")),
    Setting("backend", "name", "backend", ("",), open=True),
    Setting("backend", "rest", "rest", ("",), open=True),
    Setting("backend", "sizes", "sizes", ("any", "largest")),
)
