"""Results of calibration: the range of each value, the input sums of each weight.

`kvc.runtime.calibration` computes these results from samples. Fixed-point backends
derive quantization grids from the ranges. The rounding of int4 weights depends on the
input sums: products of the inputs that a linear layer multiplies by its weight.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.schema.frozen import frozen
from kvc.schema.provenance import Calibration


@frozen
class Range:
    """The least and the greatest number of a value, over all samples.

    A bound is infinite if the model computes an infinity.
    """

    low: float
    high: float

    def joined(self, other: "Range") -> "Range":
        """Return the least range that covers this range and `other`."""
        return Range(min(self.low, other.low), max(self.high, other.high))


LINEAR_LAYERS: Final = (
    "linear-layers"  # the backend whose partitions collect input sums
)

# For a linear layer with inputs x: the sum of the outer products x x', float32 [in,
# in].
Sums = npt.NDArray[np.float32]

Ranges = Mapping[int, Range]  # by a value's id in the graph of the file


@frozen
class Observed:
    """Observations of a program's values over samples.

    Attributes:
        ranges: for each partition, by its id, the ranges of its floating-point values.
            Values that share memory share a range, and so do all values of one state.
        calibration: the calibration data that was used.
        scores: for each partition, by its id, the ranges of the scaled query-key
            products of each attention, by the id of the attention's result.
    """

    ranges: Mapping[int, Ranges]
    calibration: Calibration
    scores: Mapping[int, Ranges] = field(default_factory=dict)


@frozen
class SeenInputs:
    """Observations of the inputs of linear layers over samples.

    Attributes:
        sums: the input sums by weight name; weights with the same inputs share one
            array.
        calibration: the calibration data that was used.
    """

    sums: Mapping[str, Sums]
    calibration: Calibration
