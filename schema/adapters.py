"""Names by which compiler, runtime and adapter files agree on slots for adapters.

A layer that adapters can change has slots: named data without bytes (`uses.SLOT`) with
the layer's path as the beginning of their names. Slot 0 of each is never filled: it is
that of rows without an adapter.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.model import NamedData, Program
from kvc.schema.text import plural
from kvc.schema.uses import SLOT

A: Final = "adapter_a"  # [slots, rank, in], the first matrix; none for a whole one
B: Final = "adapter_b"  # [slots, rank, out], the second one, transposed
FACTORS: Final = "adapter_factors"  # float32 [slots, rank], of int8 matrices
RANKS: Final = "adapter_ranks"  # int64 [slots], how many ranks an adapter uses
GAIN: Final = "adapter_gain"  # float32 [slots, out], what multiplies the layer's result
OFFSET: Final = "adapter_offset"  # float32 [slots, out], what is added to it
PARTS: Final = (A, B, FACTORS, RANKS, GAIN, OFFSET)
# The states that say which slot each row uses, int64 and float32 [batch].
ROWS: Final = "kvc_adapters"
SCALES: Final = "kvc_adapter_scales"
PREFIX: Final = "adapted_"  # of the names of methods for rows with adapters


def slots_of(program: Program) -> dict[str, dict[str, tuple[int, NamedData]]]:
    """Return path of a layer -> part -> (id, named data), for the layers with slots."""
    found: dict[str, dict[str, tuple[int, NamedData]]] = {}
    for number, named in enumerate(program.names):
        path, _, part = named.name.rpartition(".")
        if named.format == SLOT and part in PARTS:
            found.setdefault(path, {})[part] = number, named
    return found


def slots_text(program: Program) -> str:
    """Return in words how many adapters a program can hold, "" for none."""
    layers = slots_of(program)
    if not layers:
        return ""
    ranks = {parts[B][1].type.dims[1] for parts in layers.values() if A in parts}
    rank = f" of up to rank {max(map(str, ranks), key=int)}" if ranks else ""
    room = plural(count_slots(layers), "adapter")
    return f"{room}{rank}, of {plural(len(layers), 'layer')}"


def count_slots(layers: Mapping[str, Mapping[str, tuple[int, NamedData]]]) -> int:
    """Return how many adapters the layers' slots can hold, without slot 0."""
    kinds = (parts[RANKS][1].type for parts in layers.values() if RANKS in parts)
    counts = {kind.dims[0] for kind in kinds}
    (count,) = counts if len(counts) == 1 else (1,)
    assert isinstance(count, int), "named data has no symbols"
    return count - 1
