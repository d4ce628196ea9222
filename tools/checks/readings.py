"""What is kept of results: a few sums over all numbers of each.

In: results. Out: readings, one for each name. A sum takes every number with one of two
signs, which are the same everywhere. So each number counts, however large a result is,
and the sums of two results differ as much as the results do, in root mean square.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arrays import Array
from kvc.tools.checks.calls import Result

Numbers = npt.NDArray[np.float64]

_SEED: Final = 21
SUMS: Final = 6  # of a result
_PIECE: Final = 1 << 16  # numbers whose signs are made at a time
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """What is kept of all results of one name.

    Attributes:
        name: of them.
        kind: dtype and shape, or the error that there was instead; of several all.
        short: whether they are of short calls.
        rows: float64 [results, sums], the sums of each divided by the root of how many
            numbers it has.
    """

    name: str
    kind: str
    short: bool
    rows: Numbers


def read(results: Iterable[Result]) -> tuple[Reading, ...]:
    """Return what is kept of results, in their order."""
    named: dict[str, list[tuple[str, bool, list[float]]]] = {}
    for one in results:
        told = (_kind(one.given), one.short, _sums(one.given))
        named.setdefault(one.name, []).append(told)
    return tuple(
        Reading(
            name=name,
            kind="; ".join(dict.fromkeys(kind for kind, _, _ in told)),
            short=all(short for _, short, _ in told),
            rows=np.array([sums for _, _, sums in told], np.float64),
        )
        for name, told in named.items()
    )


def _kind(given: Array | str) -> str:
    """Return dtype and shape, and which numbers are not finite; or the error."""
    if isinstance(given, str):
        return given
    told = f"{given.dtype}[{', '.join(map(str, given.shape))}]"
    numbers = given.astype(np.float64).reshape(-1)
    if np.isfinite(numbers).all():
        return told
    which = np.isnan(numbers) + 2 * np.isposinf(numbers) + 3 * np.isneginf(numbers)
    count, sort = np.count_nonzero(which), zlib.crc32(which.astype(np.uint8).tobytes())
    return f"{told} with {count} not finite ({sort:08x})"


def _sums(given: Array | str) -> list[float]:
    if isinstance(given, str):
        return [0.0] * SUMS
    numbers = given.astype(np.float64).reshape(-1)
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    total = np.zeros(SUMS)
    for piece, start in enumerate(range(0, numbers.size, _PIECE)):
        part = numbers[start : start + _PIECE]
        total += _signs(piece)[:, : part.size] @ part
    return [_short(one) for one in total / max(1.0, numbers.size) ** 0.5]


@lru_cache(maxsize=64)
def _signs(piece: int) -> npt.NDArray[np.int8]:
    """Return 1 and -1 for a piece of a result, int8 [sums, numbers]."""
    random = np.random.default_rng([_SEED, piece])
    return random.integers(0, 2, (SUMS, _PIECE), np.int8) * 2 - 1


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def differences(before: Numbers, here: Numbers) -> Numbers:
    """Return how much each of some results differs, as a share of its size.

    Sizes are root mean squares. One that is small beside the others of its name is
    measured by these.

    Args:
        before: the sums of each, float64 [results, sums].
        here: those of the same results elsewhere.

    Returns:
        float64 [results].
    """
    sizes = np.sqrt(np.mean(before**2, axis=1))
    typical = np.sqrt(np.mean(before**2)) if before.size else 0.0
    scale = np.maximum(sizes, typical)
    apart = np.sqrt(np.mean((before - here) ** 2, axis=1))
    shares: Numbers = apart / np.where(scale > 0, scale, 1.0)
    return shares
