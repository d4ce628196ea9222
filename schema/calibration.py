"""Results of calibration: the range of each value, the input sums of each weight.

`kvc.runtime.calibration` computes these results from samples. Fixed-point backends
derive quantization grids from the ranges. The rounding of int4 weights depends on the
input sums. The input sum of a weight is the sum of the outer products x x', over all
input rows x of the linear layer that has the weight.
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
    """The ranges of a program's values that were observed on samples.

    Attributes:
        ranges: for each partition, by its id, the ranges of its floating-point values.
            Values that share memory share a range, and so do all values of one state.
        calibration: the calibration data that was used.
        scores: for each partition, by its id, the range of each attention's scaled
            query-key products, by the id of the value that is the attention's result.
    """

    ranges: Mapping[int, Ranges]
    calibration: Calibration
    scores: Mapping[int, Ranges] = field(default_factory=dict)


@frozen
class SeenInputs:
    """The input sums of a program's linear layers that were observed on samples.

    Attributes:
        sums: the input sums by weight name; weights with the same inputs share one
            array.
        calibration: the calibration data that was used.
    """

    sums: Mapping[str, Sums]
    calibration: Calibration
