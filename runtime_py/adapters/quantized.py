"""Store the parts of an adapter as the slots of a program have them.

In: the parts of each layer, float32. Out: the same parts where slots are float32. Where
they are int8: matrices of whole numbers from -127 to 127, and a factor for each rank,
the product of the two rows' steps, so that the greatest number of a row is 127 steps.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.adapters.adapter_file import Layers
from kvc.runtime.memory.arrays import Array
from kvc.schema.adapters import FACTORS, A, B, slots_of
from kvc.schema.model import Program

_LEAST: Final = np.finfo(np.float32).tiny  # of a step; rows with less become zeros
Floats = npt.NDArray[np.float32]


def stored_layers(
    layers: Mapping[str, Mapping[str, Floats]], program: Program
) -> Layers:
    """Return the parts of an adapter with the dtypes of a program's slots.

    Layers that the program has no slots for stay as they are.
    """
    slots = slots_of(program)
    return {
        path: _quantized(parts) if FACTORS in slots.get(path, ()) else dict(parts)
        for path, parts in layers.items()
    }


def _quantized(parts: Mapping[str, Floats]) -> dict[str, Array]:
    made: dict[str, Array] = dict(parts)
    factors = np.ones(len(parts[B]), np.float32)
    for name in {A, B} & parts.keys():
        most = np.abs(parts[name]).max(axis=1)
        step = most / np.float32(127)
        step = np.where(step < _LEAST, np.float32(1), step)
        made[name] = np.rint(parts[name] / step[:, None]).astype(np.int8)
        with np.errstate(over="ignore"):  # who loads or writes them checks them
            factors *= step
    return made | {FACTORS: factors}
