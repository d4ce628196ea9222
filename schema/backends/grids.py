"""Quantization grids: the numbers that integers of 8 or 16 bits can represent.

In: the least and the greatest number of a value. Out: the quantization grid of that
value, and numbers rounded to the grid. The module also encodes and decodes the list of
a partition's grids. It does not describe how a backend rounds within an operator.
"""

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.schema.calibration import Range
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, RangeUnbounded
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]

_LEAST_SCALE: Final = float(np.finfo(np.float32).tiny)  # a smaller one is not normal
_ENTRY: Final = np.dtype(
    [("value", "<u4"), ("kind", "u1"), ("scale", "<f4"), ("zero", "<i4")]
)


class Stored(IntEnum):
    """A type of quantized integers; a member's value is its number in a payload."""

    INT8 = 0
    UINT8 = 1
    INT16 = 2
    UINT16 = 3

    @property
    def least(self) -> int:
        """Return the least integer of this type."""
        return 0 if self in (Stored.UINT8, Stored.UINT16) else -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        """Return the greatest integer of this type."""
        return self.least + (1 << self.bits) - 1

    @property
    def bits(self) -> int:
        """Return the number of bits of this type: 8 or 16."""
        return 8 if self in (Stored.INT8, Stored.UINT8) else 16


@frozen
class Grid:
    """A quantization grid: (q - zero) * scale, for all integers q of an integer type.

    Attributes:
        stored: the type of q.
        scale: a positive float32 number.
        zero: the integer that represents the number 0.
    """

    stored: Stored
    scale: float
    zero: int = 0

    def integers(self, numbers: Floats) -> Integers:
        """Return, for each number, the integer that represents the nearest grid number.

        A number halfway between two grid numbers gets the even integer. A number beyond
        the ends of the grid gets the integer of the nearest end; a NaN gets `zero`.
        """
        with np.errstate(over="ignore"):  # an infinity is clipped too
            exact = numbers / np.float32(self.scale)
        steps = np.rint(np.nan_to_num(exact, nan=0.0))
        bounded = np.clip(steps + self.zero, self.stored.least, self.stored.most)
        whole: Integers = bounded.astype(np.int32)
        return whole

    def numbers(self, integers: Integers) -> Floats:
        """Return the float32 number that each integer represents."""
        steps = (integers.astype(np.int32) - np.int32(self.zero)).astype(np.float32)
        return steps * np.float32(self.scale)

    def rounded(self, numbers: Floats) -> Floats:
        """Return, for each number, the nearest number of the grid."""
        return self.numbers(self.integers(numbers))


def symmetric(found: Range, stored: Stored) -> Grid:
    """Return the finest grid that covers a range and has 0 as its `zero`.

    Raises:
        RangeUnbounded: the range is infinite.
    """
    _check(found)
    return Grid(stored, _scale(max(-found.low, found.high), stored.most))


def asymmetric(found: Range, stored: Stored) -> Grid:
    """Return the finest grid that covers a range and represents 0 exactly.

    Raises:
        RangeUnbounded: the range is infinite.
    """
    _check(found)
    low, high = min(found.low, 0.0), max(found.high, 0.0)
    scale = _scale(high - low, stored.most - stored.least)
    zero = stored.least + round(-low / scale)
    return Grid(stored, scale, min(max(zero, stored.least), stored.most))


def _check(found: Range) -> None:
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        raise RangeUnbounded(low=found.low, high=found.high)


def _scale(width: float, steps: int) -> float:
    """Return the scale for `width` divided into `steps`; 1 if `width` is 0."""
    if width == 0:
        return 1.0
    return max(float(np.float32(width / steps)), _LEAST_SCALE)


def channels_rounded(
    weight: Floats,
    axis: int,
    stored: Stored = Stored.INT8,
    least_scale: Floats | float = 0.0,
) -> tuple[Integers, Floats]:
    """Quantize a weight with one scale for each channel.

    The integers of a channel are from -`stored.most` to `stored.most`. A channel of
    zeros has the scale `least_scale`, or 1 if `least_scale` is 0.

    Args:
        weight: float32, any shape, finite.
        axis: the axis of the channels.
        stored: the type of the integers.
        least_scale: float32 [channels], the lower bound of each scale; 0 for no bound.

    Returns:
        The integers, int32 of the weight's shape; the scales, float32 [channels].
    """
    others = tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    reach = np.abs(weight).max(others, keepdims=True, initial=0.0)
    least = np.broadcast_to(np.float32(least_scale), reach.size).reshape(reach.shape)
    wide = np.maximum(reach / np.float32(stored.most), least)
    bounded = np.maximum(wide, np.float32(_LEAST_SCALE))
    scale = np.where(wide > 0, bounded, np.float32(1))
    whole = np.clip(np.rint(weight / scale), -stored.most, stored.most)
    return whole.astype(np.int32), scale.reshape(-1).astype(np.float32)


def write_grids(grids: Mapping[int, Grid]) -> bytes:
    """Encode the grids of a partition's values; `grids` is by value id."""
    rows = [(v, g.stored, g.scale, g.zero) for v, g in sorted(grids.items())]
    return np.array(rows, _ENTRY).tobytes()


def read_grids(raw: bytes, graph: Graph, path: str, where: str) -> dict[int, Grid]:
    """Decode the grids of a partition's values; return the grid of each value id.

    Args:
        raw: bytes from `write_grids`; they are not trusted.
        graph: the partition's code.
        path: path of the bundle, for messages.
        where: the part of the bundle that holds the bytes, for messages.

    Raises:
        BadProgram: the bytes are not grids of float32 values of the graph.
    """
    whole, rest = divmod(len(raw), _ENTRY.itemsize)
    if rest or whole > len(graph.values):
        what = f"{len(raw)} bytes of grids for {len(graph.values)} values"
        raise BadProgram(path=path, where=where, what=what)
    grids: dict[int, Grid] = {}
    before = -1
    for value, kind, scale, zero in np.frombuffer(raw, _ENTRY).tolist():
        wrong = _wrong(graph, value, kind, scale, zero)
        if not before < value:
            wrong = f"value {value} after value {before}"
        if wrong:
            raise BadProgram(path=path, where=where, what=f"a grid: {wrong}")
        grids[value] = Grid(Stored(kind), scale, zero)
        before = value
    return grids


def _wrong(graph: Graph, value: int, kind: int, scale: float, zero: int) -> str:
    """Return why a decoded entry, a grid of a value, is invalid, or ""."""
    if value >= len(graph.values):
        return f"value {value} of {len(graph.values)}"
    if graph.values[value].type.dtype is not DType.FLOAT32:
        return f"value {value} is {graph.values[value].type}"
    if kind not in [*Stored]:
        return f"integers of kind {kind}"
    if not _LEAST_SCALE <= scale < math.inf:
        return f"a scale of {scale}"
    if not Stored(kind).least <= zero <= Stored(kind).most:
        return f"a zero at {zero}"
    return ""
