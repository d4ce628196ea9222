"""Sums over the results of sample calls, and how far rounding alone moves results.

In: results. Out: readings, one for each name: a few sums over all numbers. A sum adds
every number with sign + or -; the signs are random, and the same on every machine. So
each number of a large result counts, and the sums of two results differ as much as the
results do, in root mean square.

How far a result moves is measured, not assumed: the last bits of weights are changed,
as another order of additions changes the last bits of sums. Quantized activations make
the measurement necessary. If an activation lies between two steps, its last bit decides
to which step it is rounded. A changed step changes later activations, and after some
layers the results differ as much as quantizing can make them differ. A coarse change of
the weights measures that difference: it changes the steps of many activations in every
call. A fine change, still several times the difference between processors, measures in
which short calls no activation changes its step, and how far their results move: these
calls show much smaller faults.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime import FreeableBuffer, Program, load
from kvc.runtime.memory.arrays import Array, address_of
from kvc.tools.checks.calls import Result, sample_results, short_results

Numbers = npt.NDArray[np.float64]
_SEED: Final = 21  # of the random signs
SUMS: Final = 6  # of a result
_PIECE: Final = 1 << 16  # numbers whose signs are made at once
_DIGITS: Final = 8  # of a sum
SHORT_CALLS: Final = 8
_CANDIDATES: Final = 24  # short calls, of which some are chosen
_FINE: Final = 2.0**-20  # change as a share of a weight
_COARSE: Final = 2.0**-14
_TIMES: Final = 3  # runs with each size of change, after short calls are chosen
_MOST_NBYTES: Final = 16 << 20  # of the changed weights, the smallest first
_LEAST: Final = 1e-9  # least difference whose logarithm is taken
_UNKNOWN: Final = 0.02  # move of a result whose kind changes


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums and kinds of all results of one name.

    Attributes:
        name: common name of the results.
        kind: dtype and shape of each result, or the error in place of the result.
        short: whether the results come from short calls.
        rows: float64 [results, sums]: the sums of each result, divided by the root of
            its number of numbers.
    """

    name: str
    kind: str
    short: bool
    rows: Numbers


def read(results: Iterable[Result]) -> tuple[Reading, ...]:
    """Return a reading for each name of results, in the order of the results."""
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
    """Return the dtype, shape and non-finite numbers of a result, or its error."""
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
    return [rounded(one, _DIGITS) for one in total / max(1.0, numbers.size) ** 0.5]


@lru_cache(maxsize=64)
def _signs(piece: int) -> npt.NDArray[np.int8]:
    """Return the signs, 1 or -1, for a piece of a result: int8 [sums, numbers]."""
    random = np.random.default_rng([_SEED, piece])
    return random.integers(0, 2, (SUMS, _PIECE), np.int8) * 2 - 1


def rounded(number: float, digits: int) -> float:
    """Return a number rounded to `digits` significant decimal digits."""
    return float(f"{number:.{digits}g}")


def differences(before: Numbers, here: Numbers) -> Numbers:
    """Return how much each result of one name differs, as a share of its size.

    Sizes are root mean squares. If a result is smaller than the root mean square of all
    results of its name, this root mean square is taken as its size.

    Args:
        before: expected sums of each result, float64 [results, sums].
        here: sums of the same results on this machine, float64 [results, sums].

    Returns:
        Differences, float64 [results].
    """
    sizes = np.sqrt(np.mean(before**2, axis=1))
    typical = np.sqrt(np.mean(before**2)) if before.size else 0.0
    scale = np.maximum(sizes, typical)
    apart = np.sqrt(np.mean((before - here) ** 2, axis=1))
    shares: Numbers = apart / np.where(scale > 0, scale, 1.0)
    return shares


@dataclass(frozen=True, slots=True)
class Moves:
    """How far rounding moves the results of one name, as shares of their size.

    Attributes:
        coarse: the largest move by a coarse change of the weights.
        fine: for each short call, the largest move by a fine change of the weights.
    """

    coarse: float
    fine: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The bundle and recipe that are measured, and how to load them.

    Attributes:
        path: path of the bundle.
        backend: backend of the recipe, None if the bundle has one recipe.
        reference: argument `reference` of `load`.
    """

    path: Path
    backend: str | None
    reference: bool | None

    @contextmanager
    def changed(self, size: float, seed: int) -> Iterator[Program]:
        """Yield the program, with its weights changed by up to the share `size`."""
        loading = load(self.path, reference=self.reference, backend=self.backend)
        with ExitStack() as held:
            program = held.enter_context(loading)
            _change(program.data, size, seed, held)
            yield program


def choose_calls(source: Source) -> tuple[int, ...]:
    """Return the numbers of the short calls that a fine change moves least."""
    candidates = range(_CANDIDATES)
    with source.changed(0, 0) as program:
        before = read(short_results(program, candidates))
    if not before:
        return ()
    moved = _moved_by(source, (_FINE, 0), before, candidates)
    costs = np.log(np.maximum(list(moved.values()), _LEAST)).sum(axis=0)
    return tuple(sorted(np.argsort(costs, kind="stable")[:SHORT_CALLS].tolist()))


def measure_moves(source: Source, calls: Sequence[int]) -> tuple[Moves, ...]:
    """Return how far each result of the sample calls moves, in the order of results."""
    with source.changed(0, 0) as program:
        before = read(sample_results(program, calls))
    seeds = range(1, 1 + _TIMES)
    runs = [_moved_by(source, (_COARSE, seed), before, calls) for seed in seeds]
    coarse = {one.name: max(run[one.name].max() for run in runs) for one in before}
    # The move of one result is chance; the mean over its kind, such as logits, is not.
    single = [one for one in before if len(one.rows) == 1]
    kinds: dict[str, list[float]] = {}
    for one in single:
        kinds.setdefault(one.kind, []).append(coarse[one.name])
    usual = {kind: float(np.sqrt(np.mean(np.square(m)))) for kind, m in kinds.items()}
    alike = {one.name: usual[one.kind] for one in single}
    short = [one for one in before if one.short]
    runs = [_moved_by(source, (_FINE, seed), short, calls) for seed in seeds]
    fine = {one.name: np.max([run[one.name] for run in runs], axis=0) for one in short}
    return tuple(
        Moves(
            coarse=float(max(coarse[one.name], alike.get(one.name, 0.0))),
            fine=tuple(fine[one.name].tolist()) if one.short else (),
        )
        for one in before
    )


def _moved_by(
    source: Source,
    change: tuple[float, int],
    before: Sequence[Reading],
    calls: Sequence[int],
) -> Mapping[str, Numbers]:
    """Return how far a change of weights moves the results, by name of result.

    Args:
        source: bundle and recipe that are measured.
        change: size of the change as a share of each weight, and its random seed.
        before: results without the change, of short calls alone or of all calls.
        calls: numbers of the short calls.
    """
    if not before:
        return {}
    whole = any(not one.short for one in before)
    with source.changed(*change) as program:
        results = (sample_results if whole else short_results)(program, calls)
        after = {one.name: one for one in read(results)}
    return {one.name: _moved(one, after.get(one.name)) for one in before}


def _moved(before: Reading, after: Reading | None) -> Numbers:
    """Return how far each result has moved, as a share of its size."""
    if after is None or before.kind != after.kind:
        return np.full(len(before.rows), _UNKNOWN)
    return differences(before.rows, after.rows)


def _change(
    data: Mapping[str, FreeableBuffer], size: float, seed: int, held: ExitStack
) -> None:
    """Change small weights in memory alone, and keep them there until `held` ends."""
    if not size:
        return
    random, left, done = np.random.default_rng(seed), _MOST_NBYTES, set[int]()
    buffers = [held.enter_context(data[name]) for name in data]
    for buffer in sorted(buffers, key=lambda one: (one.nbytes, one.name)):
        if buffer.nbytes > left:
            return
        weights = buffer.private_array()  # of a private mapping
        address = address_of(weights)
        if weights.dtype != np.float32 or address in done:
            continue
        left -= buffer.nbytes
        done.add(address)  # several names can share memory
        factors = 1 + size * random.uniform(-1, 1, weights.shape)
        small = np.abs(weights) < np.finfo(np.float32).max / 2  # no mask values
        np.multiply(weights, factors, out=weights, where=small, casting="same_kind")
