"""Make, store and compare the results of sample calls at a bundle's compilation.

The file is JSON: for each recipe the numbers of the short calls, the reading of each
result, and how far rounding alone moves the result (`readings.py`). A check requires
two things:

- Each result differs by at most a few times the largest difference that rounding makes
  in that result.
- At least half of the results of short calls differ by at most about ten times the
  difference that a change of the weights' last bits makes in the same call.

A processor that adds in another order rounds some activations to another step, in some
calls. A fault in a weight, a scale or a kernel shows in all calls.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kvc.runtime import load
from kvc.schema.container import BundleFile, DataFileReader, Progress, StoredBlobs
from kvc.schema.errors import CheckFailed, NoCheck
from kvc.schema.two_threads import share
from kvc.tools.checks.calls import Result, sample_results
from kvc.tools.checks.readings import (
    SHORT_CALLS,
    SUMS,
    Moves,
    Reading,
    Source,
    choose_calls,
    differences,
    measure_moves,
    read,
    rounded,
)

if TYPE_CHECKING:
    from kvc.compiler import Bundle

FILE: Final = "kvc_check.json"
_VERSION: Final = 3  # also raised if the sample calls change
_COARSE_TIMES: Final = 3
_COARSE_LEAST: Final = 0.01  # allowed if rounding moves nothing
_FINE_TIMES: Final = 10
_FINE_LEAST: Final = 1e-5
_ENOUGH: Final = 6  # fewer short calls are not required to agree by half
_DIGITS: Final = 3  # of the moves of a result
_USELESS: Final = f"{FILE} in the bundle cannot be used: {{}}; compile it again"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        results: number of compared results.
        numbers: number of stored numbers of the results.
        largest: difference of the result that comes nearest to its allowed difference,
            as a share of the result's size, both in root mean square.
        allowed: allowed difference of that result, as a share of its size.
        name: name of that result.
    """

    results: int
    numbers: int
    largest: float
    allowed: float
    name: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the sample calls of a recipe should give.

    Attributes:
        calls: numbers of the short calls.
        readings: reading of each result.
        moves: how far rounding moves each result.
    """

    calls: tuple[int, ...]
    readings: tuple[Reading, ...]
    moves: tuple[Moves, ...]


def expected_file(recipes: Mapping[str, Expected]) -> bytes:
    """Return the content of the file `FILE` for the recipes of a bundle."""
    told = {name: _told(one) for name, one in recipes.items()}
    document = {"version": _VERSION, "recipes": told}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _told(expected: Expected) -> dict[str, object]:
    pairs = zip(expected.readings, expected.moves, strict=True)
    results = [
        {
            "name": one.name,
            "kind": one.kind,
            "short": one.short,
            "rows": one.rows.tolist(),
            "coarse": rounded(moves.coarse, _DIGITS),
            "fine": [rounded(move, _DIGITS) for move in moves.fine],
        }
        for one, moves in pairs
    ]
    return {"calls": list(expected.calls), "results": results}


def expected_of(content: bytes, recipe: str) -> Expected:
    """Return the expected results of a recipe, read from the file's content.

    Args:
        content: content of the file.
        recipe: name of the recipe that runs.

    Raises:
        NoCheck: the file lacks the recipe, is damaged, or has another version.
    """
    try:
        return _read(content, recipe)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise NoCheck(reason=_USELESS.format("it is damaged")) from error


def _read(content: bytes, recipe: str) -> Expected:
    """Return the expected results of a recipe, read from the file's content.

    Raises:
        NoCheck: the file lacks the recipe, or has another version.
        ValueError, KeyError, TypeError, OverflowError, RecursionError: the file is
            damaged.
    """
    document = json.loads(content)
    if document["version"] != _VERSION:
        reason = f"its version is {document['version']!r}, this kvc reads {_VERSION}"
        raise NoCheck(reason=_USELESS.format(reason))
    if recipe not in document["recipes"]:
        reason = f"it has nothing about the recipe {recipe}"
        raise NoCheck(reason=_USELESS.format(reason))
    told = document["recipes"][recipe]
    readings, moves = list[Reading](), list[Moves]()
    for one in told["results"]:
        rows = np.array(one["rows"], np.float64).reshape(-1, SUMS)
        short, fine = one["short"] is True, tuple(map(float, one["fine"]))
        coarse = float(one["coarse"])
        if not np.isfinite([*rows.flat, coarse, *fine]).all():
            raise ValueError(one)
        if len(fine) != (len(rows) if short else 0):
            raise ValueError(one)
        readings.append(Reading(str(one["name"]), str(one["kind"]), short, rows))
        moves.append(Moves(coarse, fine))
    return Expected(tuple(map(int, told["calls"])), tuple(readings), tuple(moves))


def compare(expected: Expected, results: Iterable[Result]) -> Checked:
    """Compare results with the expected results.

    Args:
        expected: expected results, as `expected_of` returns them.
        results: results of the same calls.

    Raises:
        CheckFailed: a result differs by more than rounding explains.
    """
    found = read(results)
    names = [", ".join(x.name for x in some) for some in (expected.readings, found)]
    if names[0] != names[1]:
        result = "the list of results"
        raise CheckFailed(result=result, expected=names[0], found=names[1])
    nearest, largest, allowed, at = 0.0, 0.0, 0.0, ""
    pairs = zip(expected.readings, found, expected.moves, strict=True)
    for before, here, moves in pairs:
        difference, most = _compared(before, here, moves)
        if difference / most > nearest:
            nearest = difference / most
            largest, allowed, at = difference, most, here.name
    counts = [len(one.rows) for one in found]
    return Checked(sum(counts), sum(counts) * SUMS, largest, allowed, at)


def _compared(before: Reading, here: Reading, moves: Moves) -> tuple[float, float]:
    """Return the largest and the allowed difference of the results of one name.

    Raises:
        CheckFailed: a result differs by more, or has another dtype, shape or error.
    """
    if (before.kind, len(before.rows)) != (here.kind, len(here.rows)):
        raise CheckFailed(result=here.name, expected=before.kind, found=here.kind)
    apart = differences(before.rows, here.rows)
    largest = float(apart.max(initial=0))
    most = max(_COARSE_LEAST, _COARSE_TIMES * moves.coarse)
    if largest > most:
        raise CheckFailed(
            result=here.name,
            expected=f"a difference of at most {most:.2g} of its size",
            found=f"one of {largest:.2g}",
        )
    near = np.maximum(_FINE_LEAST, _FINE_TIMES * np.array(moves.fine))
    if here.short and len(apart) >= _ENOUGH and 2 * (apart <= near).sum() < len(apart):
        raise CheckFailed(
            result=here.name,
            expected=f"half of {len(apart)} calls within what rounding moves these",
            found=f"{(apart <= near).sum()} that are, and differences of "
            f"{np.median(apart):.2g} of its size",
        )
    return largest, most


def with_results(bundle: "Bundle", progress: Progress) -> "Bundle":
    """Return a bundle with the results of sample calls of each recipe added to it.

    The calls are made twice: by the backends' libraries on this machine, and by the
    reference implementation of their arithmetic. If the two do not agree, the bundle is
    wrong already.

    Args:
        bundle: compiled bundle; it is written to a temporary folder for the calls.
        progress: function that is called at each stage.

    Raises:
        NoCheck: no method can be called with made-up arguments.
        CheckFailed: a library and the reference do not agree.
        KvcError: the bundle cannot be written, or no session can be opened.
    """
    bodies = bundle.program.bodies
    with tempfile.TemporaryDirectory(prefix="kvc-check-") as folder:
        path = Path(folder) / "bundle.kvc"
        bundle.save(path, progress=progress)
        progress("sample calls", 0, 0)
        recipes = {
            body.provenance.recipe: _checked(
                Source(path, body.backends[0] if len(bodies) > 1 else None, None)
            )
            for body in bodies
        }
    return bundle.with_files({FILE: expected_file(recipes)})


def _checked(source: Source) -> Expected:
    """Return the reference's results of a recipe, after checking the library's.

    Raises:
        NoCheck, CheckFailed, KvcError: as `with_results`.
    """
    calls, moves = _measured(source)
    reference = load(source.path, reference=True, backend=source.backend)
    with reference as program:
        results = list(sample_results(program, calls))
    called = [one for one in results if not one.held]
    if all(isinstance(one.given, str) for one in called):
        told = ", ".join(f"{one.name}: {one.given}" for one in called)
        reason = f"no method takes made-up arguments ({told}); leave --check out"
        raise NoCheck(reason=reason)
    expected = Expected(calls, read(results), moves)
    with load(source.path, backend=source.backend) as program:
        compare(expected, sample_results(program, calls))
    return expected


def _measured(source: Source) -> tuple[tuple[int, ...], tuple[Moves, ...]]:
    """Return the chosen short calls, and how far rounding moves each result.

    The library computes the results, because it is faster than the reference. If the
    library reads weights from the file, and so ignores changes in memory, the reference
    computes them.
    """
    calls = choose_calls(source)
    moves = measure_moves(source, calls)
    if any(one.coarse for one in moves):
        return calls, moves
    calls = tuple(range(min(len(calls), SHORT_CALLS)))
    return calls, measure_moves(replace(source, reference=True), calls)


def check_stored(path: str, folders: Sequence[str]) -> None:
    """Check all weights of a bundle, including those that no sample call reads.

    Packed weights whose file is missing are left out, as in loading.

    Args:
        path: path of the bundle.
        folders: further folders in which data files are looked for.

    Raises:
        FormatError: the bundle or a data file is damaged; `DigestMismatch` names the
            weight.
        LoadError: a file is missing, or cannot be read.
    """
    with StoredBlobs.open(BundleFile.open(path), folders) as stored:
        numbered = enumerate(stored.files)
        there = {i for i, file in numbered if isinstance(file, DataFileReader)} | {0}
        blobs = enumerate(stored.program.blobs)

        def check(todo: Iterator[int]) -> None:
            for blob in todo:
                stored.check(blob)

        share(iter([i for i, blob in blobs if blob.file in there]), check)
