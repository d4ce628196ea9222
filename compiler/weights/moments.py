"""`Moments`: what samples tell of the inputs that a weight multiplies.

In: sums of products of inputs, in a file that the operating system may put aside. Out:
the factor of them that int4 needs, made when the weight is written.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kvc.compiler.weights.int4 import Factor

_KEPT: Final = 2  # factors: of the inputs that queries and their neighbours read


class Moments:
    """Second moments of the inputs of layers: equal by identity.

    Attributes:
        sums: float32 [in, in], the sum of x x' over all inputs x of the samples.
    """

    __slots__ = ("sums",)

    def __init__(self, sums: npt.NDArray[np.float32]) -> None:
        self.sums = sums


class Factors:
    """The factors of the moments that were asked for last."""

    def __init__(self) -> None:
        self._made: dict[Moments, Factor] = {}

    def of(self, moments: Moments) -> Factor:
        """Return the factor of moments, made unless it is one of the last few."""
        known = self._made.pop(moments, None)
        factor = Factor.of(torch.from_numpy(moments.sums)) if known is None else known
        self._made[moments] = factor
        if len(self._made) > _KEPT:
            del self._made[next(iter(self._made))]
        return factor
