"""What calibration finds out: of each value its range, of each weight its inputs.

In: nothing; these are values. `kvc.runtime.calibration` makes them of samples. Backends
of fixed point choose by ranges how they store what they compute; int4 weights are
rounded by what they are multiplied with.
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

    An infinity is one where the model computes with infinities.
    """

    low: float
    high: float

    def joined(self, other: "Range") -> "Range":
        """Return the least range that covers both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


LINEAR_LAYERS: Final = "linear-layers"  # the backend whose partitions are summed up

# Of the inputs x of a linear layer, float32 [in, in]: the sum of x x'.
Sums = npt.NDArray[np.float32]

Ranges = Mapping[int, Range]  # by a value's id in the graph of the file


@frozen
class Observed:
    """What samples have shown of a program.

    Attributes:
        ranges: of the floating-point values of each partition, by its id. Values that
            share memory share a range, and so do all values that are one state.
        calibration: what was used.
        scores: of each partition, by its id: of the products of queries and keys of
            each attention, scaled, by its result.
    """

    ranges: Mapping[int, Ranges]
    calibration: Calibration
    scores: Mapping[int, Ranges] = field(default_factory=dict)


@frozen
class SeenInputs:
    """What samples have shown of the inputs of linear layers.

    Attributes:
        sums: by the names of their weights; those with the same inputs share one.
        calibration: what was used.
    """

    sums: Mapping[str, Sums]
    calibration: Calibration
