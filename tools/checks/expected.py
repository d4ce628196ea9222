"""What sample calls gave where a bundle was compiled: kept in it, and compared.

The file is JSON: of each result its dtype, shape, the greatest magnitude and up to 64
numbers at even distances. Other processors add in another order, and int8 activations
may then be rounded the other way, so that results are never quite the same: what is
wrong is far more than that.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from kvc.runtime.arrays import Array
from kvc.schema.errors import CheckFailed, NoCheck
from kvc.tools.checks.calls import Result

FILE: Final = "kvc_check.json"
MOST: Final = 0.02  # of the greatest magnitude of a result
_VERSION: Final = 2  # raised where other calls are made, too
_KEPT: Final = 64
_DIGITS: Final = 6
_USELESS: Final = f"{FILE} in the bundle cannot be used: {{}}; compile it again"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        results: how many were compared.
        numbers: of these.
        largest: difference, as a share of the greatest magnitude of its result.
        name: of the result that has it.
    """

    results: int
    numbers: int
    largest: float
    name: str


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of a result.

    Attributes:
        name: of it.
        kind: dtype and shape, or the error that there was instead.
        most: the greatest magnitude of all its numbers that are finite.
        values: some of its numbers.
    """

    name: str
    kind: str
    most: float
    values: tuple[float, ...]


def expected_file(results: Iterable[Result]) -> bytes:
    """Return the content of the file about some results."""
    kept = [asdict(_kept(name, given)) for name, given in results]
    return json.dumps({"version": _VERSION, "results": kept}, indent=1).encode()


def _kept(name: str, given: Array | str) -> _Kept:
    if isinstance(given, str):
        return _Kept(name, given, 0.0, ())
    numbers = given.astype(np.float64).reshape(-1)
    most = np.abs(numbers[np.isfinite(numbers)]).max(initial=0)
    count = numbers.size
    places = np.linspace(0, count - 1, min(count, _KEPT)).round().astype(np.int64)
    shape = ", ".join(map(str, given.shape))
    return _Kept(
        name=name,
        kind=f"{given.dtype}[{shape}]",
        most=_short(most),
        values=tuple(map(_short, numbers[places])),
    )


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def compare(content: bytes, results: Iterable[Result]) -> Checked:
    """Compare results with those that a file is about.

    Args:
        content: of the file.
        results: of the same calls.

    Raises:
        CheckFailed: one differs by more than rounding does.
        NoCheck: the file is damaged, or of another version.
    """
    expected = _read(content)
    found = [_kept(name, given) for name, given in results]
    names = [", ".join(one.name for one in some) for some in (expected, found)]
    if names[0] != names[1]:
        result = "the list of results"
        raise CheckFailed(result=result, expected=names[0], found=names[1])
    largest, at = 0.0, ""
    for before, here in zip(expected, found, strict=True):
        difference = _difference(before, here)
        if difference > largest:
            largest, at = difference, here.name
    numbers = sum(len(one.values) for one in found)
    return Checked(len(found), numbers, largest, at)


def _read(content: bytes) -> list[_Kept]:
    """Return what a file says.

    Raises:
        NoCheck: it says something else.
    """
    try:
        told = json.loads(content)
        if told["version"] != _VERSION:
            reason = f"its version is {told['version']!r}, this kvc reads {_VERSION}"
            raise NoCheck(reason=_USELESS.format(reason))
        return [
            _Kept(
                name=str(one["name"]),
                kind=str(one["kind"]),
                most=float(one["most"]),
                values=tuple(map(float, one["values"])),
            )
            for one in told["results"]
        ]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise NoCheck(reason=_USELESS.format("it is damaged")) from error


def _difference(before: _Kept, here: _Kept) -> float:
    """Return how much a result differs, as a share of the greatest magnitude.

    Raises:
        CheckFailed: by too much, or it is of another kind.
    """
    if (before.kind, len(before.values)) != (here.kind, len(here.values)):
        raise CheckFailed(result=here.name, expected=before.kind, found=here.kind)
    scale = before.most or 1.0
    then, now = np.array(before.values), np.array(here.values)
    same = (then == now) | (np.isnan(then) & np.isnan(now))
    with np.errstate(invalid="ignore"):
        shares = np.where(same, 0.0, np.abs(then - now) / scale)
    shares[np.isnan(shares)] = np.inf  # where one of both is no number
    largest = float(shares.max(initial=0))
    if largest > MOST:
        place = int(shares.argmax())
        raise CheckFailed(
            result=here.name,
            expected=f"{then[place]:g}, within {MOST * scale:.2g}",
            found=f"{now[place]:g}",
        )
    return largest
