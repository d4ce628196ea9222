"""`Moments`: statistics of the inputs that a weight multiplies, from samples.

In: sums of products of inputs, in a mapped file. Out: their factor for int4
quantization, computed when the weight is written.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kvc.compiler.weights.int4 import Factor

_KEPT: Final = 2  # factors: the inputs of queries and of the weights written next


class Moments:
    """Second moments of the inputs of layers: equal by identity.

    Attributes:
        sums: float32 [in, in], the sum of x x' over all inputs x of the samples.
    """

    __slots__ = ("sums",)

    def __init__(self, sums: npt.NDArray[np.float32]) -> None:
        self.sums = sums


class Factors:
    """The factors of the moments that were used last."""

    def __init__(self) -> None:
        self._made: dict[Moments, Factor] = {}

    def of(self, moments: Moments) -> Factor:
        """Return the factor of moments, computed unless it is one of the last few."""
        known = self._made.pop(moments, None)
        factor = Factor.of(torch.from_numpy(moments.sums)) if known is None else known
        self._made[moments] = factor
        if len(self._made) > _KEPT:
            del self._made[next(iter(self._made))]
        return factor
