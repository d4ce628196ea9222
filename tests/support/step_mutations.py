"""Run mutated steps that the checker accepts, in children, on guarded memory.

In: samples of steps. Each mutation is made of a seed and its number alone. Memory of
operands ends, or begins, at a page that cannot be touched; with AddressSanitizer each
operand is a block of its own. A child that dies tells which mutation killed it.
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
from checked_steps import TENSOR
from step_samples import Sample

from kvc.runtime.memory.arrays import address_of
from kvc.runtime.native import _FAILURE, _STEP, ABSENT
from kvc.runtime.native.checks import _BREACH, _REGION
from kvc.runtime.native.library import find_library
from kvc.schema.dtypes import DType

_DIMS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 64, 1 << 20, 1 << 33, 1 << 62)
_INTEGERS = (
    0, 1, -1, 2, -2, 3, 4, 5, 7, 8, 9, 16, 33, 1 << 20, 1 << 31, 1 << 40, 1 << 62,
    (1 << 63) - 1, ABSENT, ABSENT + 1,
)  # fmt: skip
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-7, 1e7, 1e-300, 1e300,
    float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
_MOST_BYTES = 1 << 20  # of an operand
_SLOTS = 24
_SECONDS = 3.0  # of a step; those that take longer are not counted as crashes
_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype, _LIBC.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


@dataclass
class Mutated:
    """A step whose parts may be changed; see `Sample`."""

    kernel: str
    operands: np.ndarray
    memory: list[bytes | None]
    integers: list[int]
    numbers: list[float]
    over: dict[int, int] = field(default_factory=dict)  # operands that lie over others


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


def mutate(samples: Sequence[Sample], seed: int, number: int) -> Mutated:
    """Return a mutation: one to three changes of a sample."""
    rng = np.random.default_rng((seed, number))
    kernels = sorted({one.kernel for one in samples})
    kernel = kernels[number % len(kernels)]
    own = [one for one in samples if one.kernel == kernel]
    one = own[int(rng.integers(len(own)))]
    made = Mutated(
        kernel,
        one.operands.copy(),
        list(one.memory),
        list(one.integers),
        list(one.numbers),
    )
    for _ in range(int(rng.choice((0, 1, 1, 1, 1, 2, 2, 3)))):
        change = _CHANGES[int(rng.integers(len(_CHANGES)))]
        change(made, rng)
    return made


def _pick(rng: np.random.Generator, values: Sequence[object]) -> object:
    return values[int(rng.integers(len(values)))]


def _present(made: Mutated) -> list[int]:
    return [i for i, each in enumerate(made.memory) if each is not None]


def _some_axis(made: Mutated, rng: np.random.Generator) -> tuple[int, int] | None:
    axes = [
        (i, axis)
        for i in _present(made)
        for axis in range(max(0, min(8, int(made.operands[i]["rank"]))))
    ]
    return axes[int(rng.integers(len(axes)))] if axes else None


def _other_size(size: int, rng: np.random.Generator) -> int:
    near = max(0, size - 1), size + 1, 2 * size, size // 2
    return int(_pick(rng, (*_DIMS[:14], *near) if rng.random() < 0.9 else _DIMS))


def _change_dim(made: Mutated, rng: np.random.Generator) -> None:
    if (at := _some_axis(made, rng)) is not None:
        dims = made.operands[at[0]]["dims"]
        dims[at[1]] = _other_size(int(dims[at[1]]), rng)


def _change_size(made: Mutated, rng: np.random.Generator) -> None:
    """Change all dims of a size, in all operands; those without gaps stay without."""
    if (at := _some_axis(made, rng)) is None:
        return
    size = int(made.operands[at[0]]["dims"][at[1]])
    other = _other_size(size, rng)
    for i in _present(made):
        operand, rank = made.operands[i], int(made.operands[i]["rank"])
        dims, strides = operand["dims"], operand["strides"]
        same = dims[:rank] == size
        packed = strides[:rank].tolist() == _packed(dims[:rank])
        dims[:rank][same] = other
        if packed:
            strides[:rank] = _packed(dims[:rank])
    if rng.random() < 0.7:
        made.integers = [other if each == size else each for each in made.integers]


def _packed(dims: np.ndarray) -> list[int]:
    strides, step = [], 1
    for dim in reversed(dims.tolist()):
        strides.append(step)
        step = min(step * dim, 1 << 60)
    return strides[::-1]


def _change_stride(made: Mutated, rng: np.random.Generator) -> None:
    if (at := _some_axis(made, rng)) is not None:
        strides = made.operands[at[0]]["strides"]
        one = int(strides[at[1]])
        near = one + 1, max(0, one - 1), 2 * one, -one
        strides[at[1]] = _pick(rng, (*_DIMS, *near))


def _change_dtype(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        made.operands[int(_pick(rng, present))]["dtype"] = int(rng.integers(-1, 11))


def _change_dtypes(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        dtype = int(made.operands[int(_pick(rng, present))]["dtype"])
        other = int(rng.integers(0, 10))
        for i in present:
            if int(made.operands[i]["dtype"]) == dtype:
                made.operands[i]["dtype"] = other


def _change_rank(made: Mutated, rng: np.random.Generator) -> None:
    if not (present := _present(made)):
        return
    operand = made.operands[int(_pick(rng, present))]
    rank, dims, strides = int(operand["rank"]), operand["dims"], operand["strides"]
    match int(rng.integers(5)):
        case 0 if rank < 8:  # a first axis
            dims[1:], strides[1:] = dims[:-1].copy(), strides[:-1].copy()
            dims[0], strides[0] = _pick(rng, (1, 1, 2)), _pick(rng, (0, 1, 7))
            operand["rank"] = rank + 1
        case 1 if rank < 8:  # a last one
            dims[rank], strides[rank] = 1, 1
            operand["rank"] = rank + 1
        case 2 if 0 < rank <= 8:
            dims[:-1], strides[:-1] = dims[1:].copy(), strides[1:].copy()
            dims[-1] = strides[-1] = 0
            operand["rank"] = rank - 1
        case 3 if 0 < rank <= 8:
            dims[rank - 1] = strides[rank - 1] = 0
            operand["rank"] = rank - 1
        case _:
            operand["rank"] = int(rng.integers(-1, 10))


def _change_presence(made: Mutated, rng: np.random.Generator) -> None:
    i = int(rng.integers(max(1, len(made.memory))))
    if i >= len(made.memory):
        return
    if made.memory[i] is not None:
        made.memory[i] = None
        made.operands[i] = np.zeros((), TENSOR)
    elif present := _present(made):
        made.operands[i] = made.operands[int(_pick(rng, present))]
        made.memory[i] = b""


def _change_integer(made: Mutated, rng: np.random.Generator) -> None:
    if made.integers:
        i = int(rng.integers(len(made.integers)))
        one = made.integers[i]
        near = (min(one + 1, (1 << 63) - 1), max(one - 1, ABSENT), 2 * one)
        other = int(_pick(rng, (*_INTEGERS, *_INTEGERS[:12], *near)))
        made.integers[i] = min(max(other, ABSENT), -(ABSENT + 1))


def _change_number(made: Mutated, rng: np.random.Generator) -> None:
    if made.numbers:
        made.numbers[int(rng.integers(len(made.numbers)))] = float(_pick(rng, _NUMBERS))  # type: ignore[arg-type]


def _change_lengths(made: Mutated, rng: np.random.Generator) -> None:
    match int(rng.integers(5)):
        case 0:
            made.integers = made.integers[: int(rng.integers(len(made.integers) + 1))]
        case 1:
            made.numbers = made.numbers[: int(rng.integers(len(made.numbers) + 1))]
        case 2:
            made.integers.insert(
                int(rng.integers(len(made.integers) + 1)), int(_pick(rng, _INTEGERS))
            )
        case 3 if made.memory:
            made.memory.pop()
            made.operands = made.operands[:-1]
        case _ if made.memory:
            i = int(rng.integers(len(made.memory)))
            made.operands = np.concatenate([made.operands, made.operands[i : i + 1]])
            made.memory.append(made.memory[i])


def _exchange(made: Mutated, rng: np.random.Generator) -> None:
    if len(made.memory) > 1:
        i, j = (int(each) for each in rng.integers(len(made.memory), size=2))
        made.operands[[i, j]] = made.operands[[j, i]]
        made.memory[i], made.memory[j] = made.memory[j], made.memory[i]


def _lay_over(made: Mutated, rng: np.random.Generator) -> None:
    if len(present := _present(made)) > 1:
        made.over[int(_pick(rng, present))] = int(_pick(rng, present))


def _forget_values(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        made.memory[int(_pick(rng, present))] = b""


_CHANGES = (
    _change_dim, _change_size, _change_size, _change_size, _change_stride,
    _change_dtype, _change_dtypes, _change_rank, _change_presence, _change_integer,
    _change_integer, _change_number, _change_lengths, _exchange, _lay_over,
    _forget_values,
)  # fmt: skip


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
        self.breach = ""

    def run(self, made: Mutated, rng: np.random.Generator, runs: bool = True) -> bool:
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
        if accepted and runs:
            threads = int(_pick(rng, (1, 1, 2)))
            where = address_of(self._failure)
            self._library.run(address_of(step), 1, 0, threads, where, 0)
        elif not accepted:
            self.breach = ctypes.string_at(int(self._breach["rule"][0])).decode()
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


def describe(samples: Sequence[Sample], seed: int, number: int) -> str:
    """Return what a mutation is."""
    made = mutate(samples, seed, number)
    lines = [f"{number} {made.kernel} {made.integers} {made.numbers} over {made.over}"]
    for one, memory in zip(made.operands, made.memory, strict=True):
        rank = max(0, min(8, int(one["rank"])))
        dims, strides = one["dims"][:rank].tolist(), one["strides"][:rank].tolist()
        given = "none" if memory is None else f"{dims} {strides}"
        lines.append(f"  dtype {int(one['dtype'])} rank {int(one['rank'])} {given}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run mutations: SEED FIRST END; tell which of them crash. With NUMBER alone, one."""
    from step_samples import samples as find_samples

    samples = find_samples()
    seed, first, end = (int(each) for each in arguments)
    outcome = run_mutations(samples, seed, first, end)
    tried, accepted = outcome.tried.total(), outcome.accepted.total()
    print(f"{tried} mutations of {len(outcome.tried)} kernels, {accepted} accepted")
    never = [name for name in outcome.tried if not outcome.accepted[name]]
    print(f"never accepted: {never}; slow: {outcome.slow}")
    for number, status in outcome.killed:
        print(f"killed with status {status}: {describe(samples, seed, number)}")
    return 1 if outcome.killed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
