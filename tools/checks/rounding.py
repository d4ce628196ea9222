"""How much rounding alone moves the results of a bundle: measured, not assumed.

In: a bundle, and its sample calls. Out: for each result how far it moves when weights
are changed in their last bits, as another order of additions changes sums.

Activations that are quantized make this necessary. One that lies at the edge of two
steps falls to either side by a last bit; what follows differs by a step, others fall,
and after some layers the results are as far apart as quantizing can bring them. A
coarse change measures that: it tips many over in every call. A fine one, still several
times what processors differ by, measures which short calls tip nothing over, and how
far: these show faults that are far smaller.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvc.runtime import FreeableBuffer, Program, load
from kvc.runtime.memory.arrays import address_of
from kvc.tools.checks.calls import sample_results, short_results
from kvc.tools.checks.readings import Numbers, Reading, differences, read

SHORT_CALLS: Final = 8
_CANDIDATES: Final = 24
_FINE: Final = 2.0**-20
_COARSE: Final = 2.0**-14
_TIMES: Final = 3  # that short calls are made with a fine change, after their choice
_MOST_NBYTES: Final = 16 << 20  # of weights that are changed, the smallest first
_LEAST: Final = 1e-9  # difference, of which there is a logarithm
_UNKNOWN: Final = 0.02  # how far a result moves that a change makes another kind of


@dataclass(frozen=True, slots=True)
class Moves:
    """How far rounding moves the results of one name, as shares of their size.

    Attributes:
        coarse: by coarse changes, the most of all.
        fine: by fine ones, the most of each of several short calls.
    """

    coarse: float
    fine: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """How to load what is measured.

    Attributes:
        path: of the bundle.
        backend: of the recipe, None for the only one.
        reference: as of `load`.
    """

    path: Path
    backend: str | None
    reference: bool | None

    @contextmanager
    def changed(self, size: float, seed: int) -> Iterator[Program]:
        """Yield the program with weights that are changed by up to a share."""
        loading = load(self.path, reference=self.reference, backend=self.backend)
        with ExitStack() as held:
            program = held.enter_context(loading)
            _change(program.data, size, seed, held)
            yield program


def choose_calls(source: Source) -> tuple[int, ...]:
    """Return the short calls that a fine change moves least, by their numbers."""
    candidates = range(_CANDIDATES)
    with source.changed(0, 0) as program:
        before = read(short_results(program, candidates))
    if not before:
        return ()
    moved = _moved_by(source, (_FINE, 0), before, candidates)
    costs = np.log(np.maximum(list(moved.values()), _LEAST)).sum(axis=0)
    return tuple(sorted(np.argsort(costs, kind="stable")[:SHORT_CALLS].tolist()))


def measure_moves(source: Source, calls: Sequence[int]) -> tuple[Moves, ...]:
    """Return how far each result of the sample calls moves, in their order."""
    with source.changed(0, 0) as program:
        before = read(sample_results(program, calls))
    seeds = range(1, 1 + _TIMES)
    runs = [_moved_by(source, (_COARSE, seed), before, calls) for seed in seeds]
    coarse = {one.name: max(run[one.name].max() for run in runs) for one in before}
    alike = _alike(before, coarse)
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


def _alike(
    readings: Sequence[Reading], coarse: Mapping[str, float]
) -> Mapping[str, float]:
    """Return how far results of the same kind move, where a name has only one.

    How far one moves is chance; that of the others, such as logits, tells more.
    """
    single = [one for one in readings if len(one.rows) == 1]
    kinds: dict[str, list[float]] = {}
    for one in single:
        kinds.setdefault(one.kind, []).append(coarse[one.name])
    usual = {kind: float(np.sqrt(np.mean(np.square(m)))) for kind, m in kinds.items()}
    return {one.name: usual[one.kind] for one in single}


def _moved_by(
    source: Source,
    change: tuple[float, int],
    before: Sequence[Reading],
    calls: Sequence[int],
) -> Mapping[str, Numbers]:
    """Return how far a change moves results, by their names.

    Args:
        source: what is measured.
        change: how large, and the seed.
        before: the results without it; of short calls alone, or of all.
        calls: the short ones.
    """
    if not before:
        return {}
    whole = any(not one.short for one in before)
    with source.changed(*change) as program:
        results = (sample_results if whole else short_results)(program, calls)
        after = {one.name: one for one in read(results)}
    return {one.name: _moved(one, after.get(one.name)) for one in before}


def _moved(before: Reading, after: Reading | None) -> Numbers:
    """Return how far results have moved, each as a share of its size."""
    if after is None or before.kind != after.kind:
        return np.full(len(before.rows), _UNKNOWN)
    return differences(before.rows, after.rows)


def _change(
    data: Mapping[str, FreeableBuffer], size: float, seed: int, held: ExitStack
) -> None:
    """Change small weights in memory, which the file never sees; keep them there."""
    if not size:
        return
    random, left, done = np.random.default_rng(seed), _MOST_NBYTES, set[int]()
    buffers = [held.enter_context(data[name]) for name in data]
    for buffer in sorted(buffers, key=lambda one: (one.nbytes, one.name)):
        if buffer.nbytes > left:
            return
        weights = buffer.private_array()  # of a map of this program's own
        address = address_of(weights)
        if weights.dtype != np.float32 or address in done:
            continue
        left -= buffer.nbytes
        done.add(address)  # equal weights of several names are one
        factors = 1 + size * random.uniform(-1, 1, weights.shape)
        small = np.abs(weights) < np.finfo(np.float32).max / 2  # not those of masks
        np.multiply(weights, factors, out=weights, where=small, casting="same_kind")
