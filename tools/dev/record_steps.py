"""Record kernel calls, for `replay_steps.cc` to repeat on other builds and systems.

    python tools/dev/record_steps.py FILE [what pytest takes]

In: tests that call kernels, by default those of the native kernels. Out: a file with
each call, the memory of its operands before it, and what it changed there, for each
instruction set of this processor. Of calls of a kernel with operands of the same types,
shapes and strides and the same numbers one is recorded, and none with large operands.
"""

import ctypes
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import pytest

from kvc.runtime import native
from kvc.runtime.memory.arrays import Array
from kvc.runtime.native import Steps
from kvc.runtime.native.library import Library, find_library

MOST_NBYTES: Final = 1 << 17  # of the operands of a call
TESTS: Final = (
    "tests/runtime_py/native",
    # It counts calls of the library, each of which becomes one for each step here.
    "--deselect=tests/runtime_py/native/test_calls.py",
    # These have no calls of their own, or in other processes.
    "--ignore=tests/runtime_py/native/libkvc",
    "--ignore=tests/runtime_py/native/test_contracts.py",
    "--ignore=tests/runtime_py/native/test_mutated_steps.py",
    "-p",
    "no:cacheprovider",
)
ITEM_SIZES: Final = (4, 8, 2, 2, 1, 2, 4, 8, 1, 1)  # by number of the dtype
MAGIC: Final = b"kvc steps 1\n"
Region = tuple[int, int]


class Operand(NamedTuple):
    """A tensor as kernels get it, with `strides` in elements."""

    address: int
    dtype: int
    rank: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def memory(self) -> Region | None:
        """Return where the operand's memory begins and ends; None if it has none."""
        dims, strides = self.dims[: self.rank], self.strides[: self.rank]
        if self.address == 0 or 0 in dims:
            return None
        steps = [(dim - 1) * stride for dim, stride in zip(dims, strides, strict=True)]
        size = ITEM_SIZES[self.dtype]
        below = sum(step for step in steps if step < 0) * size
        above = sum(step for step in steps if step > 0) * size + size
        return self.address + below, self.address + above

    def place(self, regions: Sequence[Region]) -> tuple[int, int]:
        """Return the number of the operand's region, and the place in it.

        An operand without elements has the region -1 and the place 1, one that is left
        out the place 0.
        """
        if self.memory() is None:
            return -1, int(self.address != 0)
        for i, (begin, end) in enumerate(regions):
            if begin <= self.address < end:
                return i, self.address - begin
        raise AssertionError("regions hold all operands")


class Call(NamedTuple):
    """A call of a kernel."""

    kernel: str
    operands: tuple[Operand, ...]
    integers: tuple[int, ...]
    numbers: tuple[float, ...]

    def regions(self) -> list[Region]:
        """Return the memory of all operands; what overlaps is one region."""
        found: list[Region] = []
        for begin, end in sorted(
            filter(None, (each.memory() for each in self.operands))
        ):
            if found and begin < found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((begin, end))
        return found

    def shape(self) -> object:
        """Return what calls have in common of which one is recorded."""
        types = tuple(each[1:] for each in self.operands)
        return self.kernel, types, self.integers, repr(self.numbers)


class Recorder:
    """Runs the steps of a library one by one, and writes them to a file.

    Attributes:
        written: how many calls of each kernel have been written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.written = Counter[str]()
        self._file, self._seen = file, set[object]()
        file.write(MAGIC)

    def run(self, call: Call, library: Library, run_one: Callable[[], bool]) -> bool:
        """Run a step by `run_one`, and return whether it succeeded."""
        regions, shape = call.regions(), call.shape()
        nbytes = sum(end - begin for begin, end in regions)
        if nbytes > MOST_NBYTES or shape in self._seen:
            return run_one()
        self._seen.add(shape)
        used, before = library.processor, read(regions)
        results = {}
        # What is used comes last, so that its results stay.
        for processor in sorted(library.processors, key=lambda name: name == used):
            write(regions, before)
            library.use(processor)
            if not run_one():
                library.use(used)
                return False
            results[processor] = read(regions)
        self.written[call.kernel] += 1
        self._put_call(call, regions, before)
        self._put_integers(len(results))
        for processor, after in results.items():
            self._put_bytes(processor.encode())
            for old, new in zip(before, after, strict=True):
                self._put_bytes(new if old != new else b"")
        return True

    def _put_call(self, call: Call, regions: list[Region], before: list[bytes]) -> None:
        self._put_bytes(call.kernel.encode())
        self._put_integers(len(regions))
        for (begin, _), content in zip(regions, before, strict=True):
            self._put_integers(begin % 64)
            self._put_bytes(content)
        self._put_integers(len(call.operands))
        for each in call.operands:
            self._put_integers(*each.place(regions), each.dtype, each.rank)
            self._put_integers(*each.dims, *each.strides)
        self._put_integers(len(call.integers), *call.integers, len(call.numbers))
        self._file.write(struct.pack(f"<{len(call.numbers)}d", *call.numbers))

    def _put_bytes(self, content: bytes) -> None:
        self._put_integers(len(content))
        self._file.write(content)

    def _put_integers(self, *values: int) -> None:
        self._file.write(struct.pack(f"<{len(values)}q", *values))


def read(regions: Sequence[Region]) -> list[bytes]:
    return [ctypes.string_at(begin, end - begin) for begin, end in regions]


def write(regions: Sequence[Region], contents: Sequence[bytes]) -> None:
    for (begin, _), content in zip(regions, contents, strict=True):
        ctypes.memmove(begin, content, len(content))


def record_with(recorder: Recorder) -> None:
    """Have a recorder run all steps of this process."""
    numbers: dict[
        tuple[int, int, int], tuple[str, list[int], list[float]]
    ] = {}  # by place of tensors
    add, settle, run = Steps.add, Steps.settle, Library.run
    added: dict[int, list[tuple[str, list[int], list[float]]]] = {}

    def add_step(
        self: Steps,
        kernel: str,
        tensors: list[Array | None],
        *rest: list[int] | list[float],
    ) -> None:
        add(self, kernel, tensors, *rest)  # type: ignore[arg-type]
        added.setdefault(id(self), []).append((kernel, *rest))  # type: ignore[arg-type]

    def settle_steps(self: Steps) -> Array:
        steps = settle(self)
        for step, call in zip(steps, added.pop(id(self), ()), strict=False):
            numbers[place_of(step)] = call
        return steps

    def run_steps(
        self: Library, steps: int, count: int, first: int, threads: int, *rest: int
    ) -> int:
        layout = native._STEP
        for i in range(first, count):
            content = ctypes.string_at(steps + i * layout.itemsize, layout.itemsize)
            step = np.frombuffer(content, layout)[0]

            def run_one(i: int = i) -> bool:
                return run(self, steps, i + 1, i, threads, *rest) == i + 1

            kernel, integers, floats = numbers[place_of(step)]
            call = Call(kernel, operands_of(step), (*integers,), (*floats,))
            other = kernel in ("call", "ask")
            if not (run_one() if other else recorder.run(call, self, run_one)):
                return i
        return count

    Steps.add, Steps.settle = add_step, settle_steps  # type: ignore[assignment,method-assign]
    Library.run = run_steps  # type: ignore[assignment,method-assign]


def place_of(step: np.void) -> tuple[int, int, int]:
    return int(step["tensors"]), int(step["integers"]), int(step["numbers"])


def operands_of(step: np.void) -> tuple[Operand, ...]:
    layout, count = native._TENSOR, int(step["tensor_count"])
    content = ctypes.string_at(int(step["tensors"]), count * layout.size)
    return tuple(
        Operand(address, dtype, rank, tuple(rest[:8]), tuple(rest[8:]))
        for address, dtype, rank, *rest in layout.iter_unpack(content)
    )


def main() -> int:
    """Record what tests call; return what pytest returns."""
    find_library()
    with Path(sys.argv[1]).open("wb") as file:
        recorder = Recorder(file)
        record_with(recorder)
        status = pytest.main([*(sys.argv[2:] or TESTS)])
    kernels, calls = len(recorder.written), recorder.written.total()
    print(f"{calls} calls of {kernels} kernels")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
