"""The value that a recipe file becomes, and the settings that such a file may hold.

`SETTINGS` is the whole grammar: one line for each `[section] key`, with the field
of `Recipe` it fills and the values it takes, the default first. A new setting is a
line there and a field of `Recipe`; the loader needs no change.
"""

from dataclasses import dataclass
from typing import Literal


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
            row at run time.
        embedding: how embedding tables are stored. "int8" is one float32 scale per
            row, rows are widened as they are looked up.
        backend: which backend is offered the graph; "" leaves all to kvc's kernels.
    """

    name: str
    description: str
    text: str
    weights: Literal["float32", "bfloat16"]
    linear: Literal["float32", "qd8"]
    embedding: Literal["float32", "int8"]
    backend: Literal["", "xnnpack"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a recipe file.

    Attributes:
        section: the TOML table it stands in.
        key: its name there.
        field: the field of `Recipe` that it fills.
        values: what it may be; the first is the default.
    """

    section: str
    key: str
    field: str
    values: tuple[str, ...]


SETTINGS = (
    Setting("weights", "dtype", "weights", ("float32", "bfloat16")),
    Setting("linear", "scheme", "linear", ("float32", "qd8")),
    Setting("embedding", "scheme", "embedding", ("float32", "int8")),
    Setting("backend", "name", "backend", ("", "xnnpack")),
)
