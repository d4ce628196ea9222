"""Run mutated steps that the checker accepts, in children, on guarded memory.

Memory of operands ends, or begins, at a page that cannot be touched; with
AddressSanitizer each operand is a block of its own. A child that dies tells which
mutation killed it.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from step_mutations import Mutated, describe, mutate, pick
from step_samples import Sample, samples

from kvc.runtime.memory.arrays import address_of
from kvc.runtime.native import _FAILURE, _STEP
from kvc.runtime.native.checks import _BREACH, _REGION
from kvc.runtime.native.library import find_library
from kvc.schema.dtypes import DType

_MOST_BYTES = 1 << 20  # of an operand
_SLOTS = 24
_SECONDS = 3.0  # of a step; those that take longer are not counted as crashes
_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype, _LIBC.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


@dataclass
class Outcome:
    """What became of mutations.

    Attributes:
        tried, accepted: numbers of mutations by kernel.
        slow: numbers of those that took too long.
        killed: numbers of those whose child died, with its status.
    """

    tried: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    slow: list[int] = field(default_factory=list)
    killed: list[tuple[int, int]] = field(default_factory=list)


class _Guarded:
    """Slots of memory between pages that cannot be touched."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._kept = mmap.mmap(-1, _SLOTS * (_MOST_BYTES + 2 * page))
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._kept))
        self._slots = []
        for slot in range(_SLOTS):
            begin = first + slot * (_MOST_BYTES + 2 * page)
            for guard in (begin, begin + page + _MOST_BYTES):
                assert _LIBC.mprotect(guard, page, 0) == 0
            self._slots.append(begin + page)

    def place(self, slot: int, nbytes: int, at_end: bool) -> int:
        begin = self._slots[slot % _SLOTS]
        return begin + _MOST_BYTES - nbytes if at_end else begin

    def free(self, places: Sequence[int]) -> None:
        pass


class _Blocks:
    """Blocks of memory whose ends AddressSanitizer knows."""

    def place(self, slot: int, nbytes: int, at_end: bool) -> int:
        return int(_LIBC.malloc(nbytes))

    def free(self, places: Sequence[int]) -> None:
        for place in places:
            _LIBC.free(place)


class _Runner:
    """Checks mutations and runs those that are accepted."""

    def __init__(self) -> None:
        self._library = find_library()
        self._memory = _Blocks() if SANITIZED else _Guarded()
        self._failure, self._breach = np.zeros(1, _FAILURE), np.zeros(1, _BREACH)

    def run(self, made: Mutated, rng: np.random.Generator) -> bool:
        """Return whether the checker accepts a mutation; then it has been run."""
        places: dict[int, tuple[int, int]] = {}
        if len(made.memory) > _SLOTS or not self._place(made, rng, places):
            return False
        integers = np.array([*made.integers, 1 << 62], np.int64)
        numbers = np.array([*made.numbers, 1e300], np.float64)
        step = np.zeros(1, _STEP)
        operands = np.ascontiguousarray(made.operands)
        step["kernel"] = self._library.kernel(made.kernel)
        step["tensor_count"] = len(operands)
        step["tensors"], step["integers"] = address_of(operands), address_of(integers)
        step["numbers"] = address_of(numbers)
        counts = np.array([[len(made.integers), len(made.numbers)]], np.int32)
        spans = sorted(set(places.values()))
        regions = np.zeros(len(spans), _REGION)
        for region, (begin, nbytes) in zip(regions, spans, strict=True):
            region["begin"], region["end"], region["writable"] = (
                begin,
                begin + nbytes,
                1,
            )
        accepted = self._library.check(
            address_of(step), address_of(counts), 1,
            address_of(regions), len(regions), address_of(self._breach),
        )  # fmt: skip
        if accepted:
            threads = int(pick(rng, (1, 1, 2)))
            where = address_of(self._failure)
            self._library.run(address_of(step), 1, 0, threads, where, 0)
        self._memory.free([begin for begin, _ in set(places.values())])
        return accepted

    def _place(
        self,
        made: Mutated,
        rng: np.random.Generator,
        places: dict[int, tuple[int, int]],
    ) -> bool:
        at_end = bool(rng.random() < 0.5)
        nbytes = [_nbytes(one) for one in made.operands]
        if any(each is None or each > _MOST_BYTES for each in nbytes):
            return False
        for i, memory in enumerate(made.memory):
            if memory is None:
                continue
            j = made.over.get(i, i)
            j = i if j >= len(made.memory) else j
            bools = DType.BOOL in (int(made.operands[k]["dtype"]) for k in (i, j))
            j = i if SANITIZED and bools else j
            if j != i and j in places and places[j][1] >= (nbytes[i] or 0):
                places[i] = places[j]
                made.operands[i]["data"] = made.operands[j]["data"]
                continue
            size = nbytes[i] or 0
            begin = self._memory.place(i, max(size, 1), at_end)
            if size:
                places[i] = begin, size
                ctypes.memmove(
                    begin, _values(made.operands[i], memory, size, rng), size
                )
            made.operands[i]["data"] = begin if size else 1 << 20
        return True


def _nbytes(operand: np.void) -> int | None:
    rank, dtype = int(operand["rank"]), int(operand["dtype"])
    dims = operand["dims"][: max(0, min(rank, 8))].tolist()
    strides = operand["strides"][: max(0, min(rank, 8))].tolist()
    if 0 in dims:
        return 0
    size = DType(dtype).itemsize if 0 <= dtype <= 9 else 8
    return (
        1 + sum(max(0, (d - 1) * s) for d, s in zip(dims, strides, strict=True))
    ) * size


def _values(
    operand: np.void, memory: bytes, nbytes: int, rng: np.random.Generator
) -> bytes:
    """Return what an operand's memory holds: what the sample has, or anything."""
    dtype = int(operand["dtype"])
    if SANITIZED and dtype == DType.BOOL:  # it refuses other bytes than these
        return rng.integers(0, 2, nbytes).astype(np.uint8).tobytes()
    if len(memory) >= nbytes and rng.random() < 0.8:
        return memory[:nbytes]
    match rng.integers(4):
        case 0:
            return rng.bytes(nbytes)
        case 1 if dtype in (DType.INT32, DType.INT64):
            size = DType(dtype).numpy
            count = nbytes // size.itemsize
            return rng.integers(-2, 6, count).astype(size).tobytes()
        case 2 if dtype == DType.FLOAT32:
            return rng.standard_normal(nbytes // 4).astype(np.float32).tobytes()
        case _:
            return bytes(nbytes)


def run_mutations(
    samples: Sequence[Sample], seed: int, first: int, end: int
) -> Outcome:
    """Run mutations `first` to `end` in children; see `Outcome`."""
    outcome, told = Outcome(), mmap.mmap(-1, 8 * (end - first + 1))
    marks = np.frombuffer(told, np.int64)  # the one that runs; 1 accepted, 2 refused
    kernels = sorted({one.kernel for one in samples})
    at = first
    while at < end:
        child = os.fork()
        if child == 0:
            _run_all(samples, seed, at, end, first, marks)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        at = int(marks[0])
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            outcome.slow.append(at)
        else:
            outcome.killed.append((at, status))
        at += 1
    for number in range(first, end):
        kernel = kernels[number % len(kernels)]
        outcome.tried[kernel] += 1
        outcome.accepted[kernel] += int(marks[1 + number - first] == 1)
    return outcome


def _run_all(
    samples: Sequence[Sample],
    seed: int,
    at: int,
    end: int,
    first: int,
    marks: np.ndarray,
) -> None:
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    library, runner = find_library(), _Runner()
    for number in range(at, end):
        marks[0] = number
        library.use(library.processors[number // 7 % len(library.processors)])
        made, rng = (
            mutate(samples, seed, number),
            np.random.default_rng((seed, number, 1)),
        )
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        marks[1 + number - first] = 1 if runner.run(made, rng) else 2
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(arguments: Sequence[str]) -> int:
    """Run mutations: SEED FIRST END; tell which of them crash."""
    found = samples()
    seed, first, end = (int(each) for each in arguments)
    outcome = run_mutations(found, seed, first, end)
    tried, accepted = outcome.tried.total(), outcome.accepted.total()
    print(f"{tried} mutations of {len(outcome.tried)} kernels, {accepted} accepted")
    never = [name for name in outcome.tried if not outcome.accepted[name]]
    print(f"never accepted: {never}; slow: {outcome.slow}")
    for number, status in outcome.killed:
        print(f"killed with status {status}: {describe(found, seed, number)}")
    return 1 if outcome.killed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
