"""Run lists of kernel calls by kvc's library of native kernels.

`library.py` finds the library, which is not linked to torch. In: kernel
calls with fixed operands, which `Steps` encodes. Out: results in the memory of the
operands.
"""

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native.library import Library
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import Instruction

Ints = NDArray[np.int64]
ABSENT: Final = -(1 << 63)  # stands for an int argument that is left out
_MAX_RANK: Final = 8

# The layouts of `Tensor`, `Step` and `Failure` in the C++ sources. A tensor has an
# address, dtype, rank, dims and strides.
_TENSOR: Final = struct.Struct(f"<Qii{_MAX_RANK}q{_MAX_RANK}q")
TENSOR: Final = np.dtype(
    [
        ("data", np.uint64),
        ("dtype", np.int32),
        ("rank", np.int32),
        ("dims", np.int64, _MAX_RANK),
        ("strides", np.int64, _MAX_RANK),
    ]
)
_NO_TENSOR: Final = bytes(_TENSOR.size)
_STEP = np.dtype(
    [
        ("kernel", np.int32),
        ("tensor_count", np.int32),
        ("tensors", np.uint64),
        ("integers", np.uint64),
        ("numbers", np.uint64),
    ]
)
_FAILURE = np.dtype([("fault", np.int32), ("step", np.int32), ("facts", np.int64, 4)])

INDEX_OUT_OF_RANGE, CACHE_OVERFLOW, ROW_LENGTH_OUT_OF_RANGE = 1, 2, 3
BAD_LENGTH, NO_MEMORY, NOTHING_TO_REDUCE, LIBRARY_FAILED = 4, 5, 6, 7
DIVISION_BY_ZERO, NOT_TRUE, BAD_OFFSETS, SINGULAR = 8, 9, 10, 11


@frozen
class Failure:
    """The error of a step. The step has written nothing, unless memory ran out.

    Attributes:
        fault: one of INDEX_OUT_OF_RANGE (index, size), CACHE_OVERFLOW (row, start,
            count, capacity), ROW_LENGTH_OUT_OF_RANGE (row, length, most), BAD_LENGTH
            (row, length, slots), NO_MEMORY (bytes), NOTHING_TO_REDUCE, LIBRARY_FAILED
            (status), DIVISION_BY_ZERO, NOT_TRUE, BAD_OFFSETS (greatest) or SINGULAR
            (matrix, or -1 of a single one; place on its diagonal, from 1).
        step: the index of the step.
        facts: the values that are in parentheses behind the fault, in that order.
    """

    fault: int
    step: int
    facts: tuple[int, ...]


@frozen
class Call:
    """A step as it was added: its kernel's name and arguments; see kernels.h.

    Attributes:
        kernel: the name of the kernel.
        operands: the arrays, results first; None for one that is left out.
        integers, numbers: the arguments that are no arrays.
    """

    kernel: str
    operands: tuple[Array | None, ...]
    integers: tuple[int, ...]
    numbers: tuple[float, ...]


class Question(ctypes.Structure):
    """A query to another native library about its last run; see libraries.cc.

    Attributes:
        ask: the address of the library's function.
        handle: the address of the handle that the function takes.
        what: the library's number of the requested value.
        nbytes, answer: the size in bytes and the address of the memory for the answer;
            an address of None requests no answer.
        needed: the size in bytes that the library reports for the answer.
        status: the status of the last query, 0 for success.
    """

    _fields_ = (
        ("ask", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("what", ctypes.c_int64),
        ("nbytes", ctypes.c_size_t),
        ("answer", ctypes.c_void_p),
        ("needed", ctypes.c_size_t),
        ("status", ctypes.c_int64),
    )


class Steps:
    """A list of kernel calls with fixed operands, which the library runs.

    Attributes:
        library: the library that runs the calls.
        threads: the number of compute threads.
        lent: the address of a `Lent` (pool.h), by which another library lends its
            threads; 0 to use kvc's own threads.
    """

    def __init__(self, library: Library, threads: int, lent: int = 0) -> None:
        self.library, self.threads, self.lent = library, threads, lent
        self._described: dict[int, bytes] = {}  # by id of the array
        self._arrays: list[Array | None] = []  # one for each operand; kept alive
        self._tensors: list[bytes] = []
        self._integers: list[int] = []
        self._numbers: list[float] = []
        self._steps: list[tuple[int, int, int, int, int]] = []
        self._questions: list[Question] = []  # kept alive
        self._memory: tuple[Array, ...] = ()
        self._counts = np.zeros((0, 2), np.int32)
        self._settled: Array | None = None
        self._ends: Sequence[Ints] = ()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._count

    def add(
        self,
        kernel: str,
        tensors: list[Array | None],
        integers: list[int],
        numbers: list[float],
    ) -> None:
        """Add a call of a kernel; None in `tensors` stands for an omitted operand."""
        self._count += 1
        places = len(self._tensors), len(self._integers), len(self._numbers)
        self._steps.append((self.library.kernel(kernel), len(tensors), *places))
        self._arrays += tensors
        self._tensors += [self._describe(tensor) for tensor in tensors]
        self._integers += integers
        self._numbers += numbers

    def add_call(self, function: int, handle: int) -> None:
        """Add a call of a function of another library (libraries.cc).

        Args:
            function: the address of the function.
            handle: the address of the handle that the function takes.
        """
        self.add("call", [], [function, handle], [])

    def add_question(self, question: "Question") -> None:
        """Add a query about another library's last run, for recordings only."""
        self._questions.append(question)
        self.add("ask", [], [ctypes.addressof(question)], [])

    def settle(self) -> Array:
        """Encode all added steps, and return the encoded list.

        No step can be added afterwards. The encoded list is valid as long as the
        `Steps` object lives.
        """
        if self._settled is not None:
            return self._settled
        tensors = np.frombuffer(bytearray().join(self._tensors), TENSOR)
        totals = (0, 0, len(tensors), len(self._integers), len(self._numbers))
        columns = np.array([*self._steps, totals], np.int64)
        integers = np.array(self._integers, np.int64)
        numbers = np.array(self._numbers, np.float64)
        self._tensors, self._integers, self._numbers = [], [], []
        ends = [*columns[1:, 2:].T]
        return self._settle(columns[:-1, 0], tensors, integers, numbers, ends)

    def _settle(
        self,
        kernels: Array,
        tensors: Array,
        integers: Array,
        numbers: Array,
        ends: Sequence[Ints],
    ) -> Array:
        """Encode steps; `ends` has where their operands, integers and numbers end."""
        # An address each, also where there are none.
        integers = np.append(integers, np.zeros(1, np.int64))
        numbers = np.append(numbers, np.zeros(1, np.float64))
        steps = np.zeros(len(kernels), _STEP)
        counts = [np.diff(each, prepend=0) for each in ends]
        steps["kernel"], steps["tensor_count"] = kernels, counts[0]
        names, arrays = ("tensors", "integers", "numbers"), (tensors, integers, numbers)
        for name, array, end, count in zip(names, arrays, ends, counts, strict=True):
            starts = (end - count).astype(np.uint64)
            steps[name] = starts * array.itemsize + address_of(array)
        self._memory = tensors, integers, numbers
        self._ends, self._settled = ends, steps
        self._counts = np.stack(counts[1:], axis=1).astype(np.int32)
        return steps

    @classmethod
    def of_columns(
        cls,
        library: Library,
        threads: int,
        kernels: Array,
        tensors: Array,
        integers: Array,
        numbers: Array,
        ends: Sequence[Ints],
    ) -> "Steps":
        """Return steps that are given as arrays; no more can be added.

        Args:
            library: the library that runs the calls.
            threads: the number of compute threads.
            kernels: the library's number of each step's kernel, int32 [steps].
            tensors: all operands, of the dtype `TENSOR`.
            integers: the arguments that are integers, int64.
            numbers: the arguments that are numbers, float64.
            ends: where the operands, integers and numbers of each step end.
        """
        made = cls(library, threads)
        made._settle(kernels, tensors, integers, numbers, ends)
        made._count = len(kernels)
        return made

    def calls(self) -> Iterator["Call"]:
        """Yield all steps as they were added."""
        self.settle()
        _, integers, numbers = self._memory
        names, begins = self.library.names(), (0, 0, 0)
        pairs = zip(self._steps, zip(*self._ends, strict=True), strict=True)
        for (kernel, *_), ends in pairs:
            tensors, ints, floats = map(slice, begins, ends)
            begins = ends
            yield Call(
                names[kernel],
                tuple(self._arrays[tensors]),
                tuple(integers[ints].tolist()),
                tuple(numbers[floats].tolist()),
            )

    def setting_counts(self) -> Array:
        """Return how many integers and numbers each step has, int32 [steps, 2]."""
        self.settle()
        return self._counts

    def addresses(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return the addresses of all operands, uint64 [operands], to be changed."""
        self.settle()
        tensors: Any = self._memory[0]
        found: np.ndarray[tuple[int], np.dtype[np.uint64]] = tensors["data"]
        return found

    def _describe(self, array: Array | None) -> bytes:
        if array is None:
            return _NO_TENSOR
        found = self._described.get(id(array))
        if found is None:
            found = self._described[id(array)] = _described(array)
        return found


@frozen
class NativePartition:
    """The native steps of a partition that a delegate prepared.

    Attributes:
        steps: the steps that run the partition.
        raises: a function that takes the failure of a step, and raises the error for
            it.
        make_ready: a function to call before the steps run.
        backend: the backend of the partition, for reports.
        kept: arrays whose addresses the partition has beside the steps' operands.
        instructions: the instruction of each step, for reports; empty if the library
            does not tell the steps' instructions.
        operators: a function that returns, for reports, the names of a library's
            operators, and the duration of each in the last run, uint64 [operators], in
            microseconds.
    """

    steps: Steps
    raises: Callable[[Failure], NoReturn]
    make_ready: Callable[[], None] | None = None
    backend: str = ""
    kept: Sequence[Array] = ()
    instructions: Sequence[Instruction] = ()
    operators: Callable[[], tuple[Sequence[str], Array]] | None = None


class NativeCall:
    """Prepared partitions that run one after another in a single native call.

    Attributes:
        partitions: the partitions in running order.
        reached: the index of the partition at which the last run failed; no later
            partition has begun.
        begun: whether any partition has begun. The first partition begins only when all
            partitions are ready.
    """

    def __init__(self, partitions: Sequence[NativePartition]) -> None:
        self.partitions = tuple(partitions)
        self.reached, self.begun = 0, False
        self._ready = [
            (index, partition.make_ready)
            for index, partition in enumerate(partitions)
            if partition.make_ready is not None
        ]
        first = partitions[0].steps
        self._run, self._threads = first.library.run, first.threads
        self._lent = max(partition.steps.lent for partition in partitions)
        self._steps = np.concatenate(
            [partition.steps.settle() for partition in partitions]
        )
        self._ends = list(accumulate(len(partition.steps) for partition in partitions))
        self._failure = np.zeros(1, _FAILURE)
        self._places = address_of(self._steps), address_of(self._failure)
        self._ended: tuple[Array, int] | None = None

    def __len__(self) -> int:
        """Return the number of steps of all partitions together."""
        return self._ends[-1]

    def clock(self) -> tuple[Array, int]:
        """Return an array for the end times of steps, and the address of the array.

        The array is int64 [steps].
        """
        if self._ended is None:
            ended = np.zeros(len(self), np.int64)
            self._ended = ended, address_of(ended)
        return self._ended

    def __call__(self, ended: int = 0) -> None:
        """Run all steps.

        The library returns to Python now and then, so that Ctrl-C has an effect.

        Args:
            ended: the address of an int64 array for the end time of each step; 0 to
                record no times.
        """
        self.begun = False
        for index, make_ready in self._ready:
            self.reached = index
            make_ready()
        self.begun = True
        # The place of an interrupt is unknown; assume the last partition.
        self.reached = len(self.partitions) - 1
        count, at = len(self._steps), 0
        steps, failure = self._places
        while at < count:
            at = self._run(steps, count, at, self._threads, failure, self._lent, ended)
            if self._failure["fault"][0]:
                (found,) = self._failure
                facts = tuple(int(fact) for fact in found["facts"])
                self.raise_at(Failure(int(found["fault"]), int(found["step"]), facts))

    def raise_at(self, failure: Failure) -> NoReturn:
        """Raise the error of a failure, whose step is an index among all steps."""
        self.begun, self.reached = True, bisect_right(self._ends, failure.step)
        partition = self.partitions[self.reached]
        start = self._ends[self.reached] - len(partition.steps)
        partition.raises(Failure(failure.fault, failure.step - start, failure.facts))


def _described(array: Array) -> bytes:
    rank, size = array.ndim, array.itemsize
    rest = (0,) * (_MAX_RANK - rank)
    strides = [stride // size for stride in array.strides]
    dtype = _dtype_of(array.dtype)
    return _TENSOR.pack(
        address_of(array), dtype, rank, *array.shape, *rest, *strides, *rest
    )


@cache
def _dtype_of(dtype: "np.dtype[np.generic]") -> DType:
    found = DType.from_numpy(dtype)
    assert found is not None, "the verifier knows all dtypes"
    return found
