"""The steps of a partition: their shaders and operands.

In: arrays that represent the device's memory, and numbers. Out: the bytes that shaders
read (`step.glsl` has their layout), and a `Dispatch` for each step.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.vulkan.commands import Dispatch
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.dtypes import DType

MAX_RANK: Final = 8
ABSENT: Final = -1
_INTEGERS, _NUMBERS = 16, 8
_HEAD: Final = struct.Struct(f"<{_INTEGERS}q{_NUMBERS}f")
_TENSOR: Final = struct.Struct(f"<Qii{MAX_RANK}i{MAX_RANK}i")
_NO_TENSOR: Final = bytes(_TENSOR.size)
_MOST_GROUPS: Final = 65_535  # the number that every device supports
_MOST: Final = 1 << 31  # elements that a shader can count
_WHOLE: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class Steps:
    """The steps recorded so far.

    Attributes:
        owners: for each step, the index of its instruction.
        instruction: the index of the instruction whose steps come next.
    """

    def __init__(
        self,
        place: Callable[[int], int],
        reserve: Callable[[int], Array],
    ) -> None:
        """Set how addresses are converted, and where memory comes from.

        Args:
            place: converts an array's start address to the address for shaders.
            reserve: returns memory that lives as long as the steps, uint8 [n].
        """
        self._place, self._reserve = place, reserve
        self._content: list[bytes] = []
        self._dispatches: list[Callable[[int], Dispatch]] = []
        self._nbytes, self.instruction = 0, 0
        self.owners: list[int] = []

    def add(
        self,
        shader: str,
        op: int,
        tensors: Sequence[Array | None],
        *,
        count: int,
        groups: int | None = None,
        integers: Mapping[int, int] | None = None,
        numbers: Mapping[int, float] | None = None,
    ) -> None:
        """Record a step, unless it computes nothing and has no groups.

        Args:
            shader: name of the shader.
            op: number of the operation within the shader.
            tensors: the operands in the order of the shader.
            count: the number of results, rows or other units that the step computes.
            groups: the number of workgroups; None for a workgroup per 64 units.
            integers: integer parameters by index.
            numbers: float parameters by index.

        Raises:
            ValueError: an operand has too many elements.
            OverflowError: an integer needs more than 64 bits.
        """
        if groups is None:
            groups = -(-count // 64)
        if not groups:
            return
        check_count(count)
        wholes, floats = [0] * _INTEGERS, [0.0] * _NUMBERS
        for number, value in (integers or {}).items():
            wholes[number] = value
        for number, single in (numbers or {}).items():
            with np.errstate(over="ignore"):  # too large a number becomes infinite
                floats[number] = float(np.float32(single))
        content = self._encode(wholes, floats, tensors)
        start, number = self._nbytes, len(self._dispatches)
        run = min(groups, _MOST_GROUPS)
        self._content.append(content)
        self._nbytes += len(content)
        self.owners.append(self.instruction)
        self._dispatches.append(
            lambda table: Dispatch(shader, table + start, number, op, count, run)
        )

    def temporary(self, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> Array:
        """Return an array in memory that only these steps use."""
        nbytes = math.prod(shape) * dtype.itemsize
        return np.ndarray(shape, dtype, self._reserve(nbytes).data)

    def packed(self, array: Array) -> Array:
        """Return a contiguous array: `array`, or a copy that a step makes."""
        if array.flags.c_contiguous:
            return array
        made = self.temporary(array.shape, array.dtype)
        self.copy(made, array)
        return made

    def copy(self, target: Array, source: Array) -> None:
        """Add a step that copies elements of any dtype, broadcast to the target."""
        self.each(64, [whole_bits(target), whole_bits(source)])

    def each(
        self,
        op: int,
        tensors: Sequence[Array | None],
        numbers: Mapping[int, float] | None = None,
        integers: Mapping[int, int] | None = None,
        merge: bool = True,
    ) -> None:
        """Add a step that computes each element of the first tensor.

        The element is computed from the elements at the same index in all other
        tensors.
        """
        target = tensors[0]
        assert target is not None, "the result is there"
        shown = [
            None if t is None else np.broadcast_to(t, target.shape) for t in tensors
        ]
        if merge:
            shown = merged(shown)
        whole = dict(integers or {}) | {15: len(shown)}
        count = target.size
        self.add("elementwise", op, shown, count=count, numbers=numbers, integers=whole)

    @property
    def nbytes(self) -> int:
        """Return the size of the table of all steps."""
        return self._nbytes

    def content(self) -> bytes:
        """Return the table of all steps as bytes."""
        return b"".join(self._content)

    def dispatches(self, table: int) -> list[Dispatch]:
        """Return all dispatches; `table` is the address of all steps for shaders."""
        return [make(table) for make in self._dispatches]

    def _encode(
        self,
        integers: Sequence[int],
        numbers: Sequence[float],
        tensors: Sequence[Array | None],
    ) -> bytes:
        if any(not -(1 << 63) <= value < 1 << 63 for value in integers):
            raise OverflowError("an integer has more than 64 bits")
        head = _HEAD.pack(*integers, *numbers)
        found = [_NO_TENSOR if each is None else self._tensor(each) for each in tensors]
        # Shaders read all tensors they could have; missing ones are marked absent.
        return head + b"".join(found) + _NO_TENSOR * max(0, 11 - len(found))

    def _tensor(self, array: Array) -> bytes:
        dtype = DType.from_numpy(array.dtype)
        assert dtype is not None, "of a dtype of kvc"
        size, rank = array.itemsize, array.ndim
        if rank > MAX_RANK:
            raise ValueError(f"{rank} dims")
        check_span(array)
        strides = [stride // size for stride in array.strides]
        none = [0] * (MAX_RANK - rank)
        # The stride of an axis of one element does not matter, and may be any number.
        strides = [
            step if n > 1 else 0 for n, step in zip(array.shape, strides, strict=True)
        ]
        # An empty tensor is present, but has no address.
        place = self._place(address_of(array)) if array.size else 1
        return _TENSOR.pack(place, dtype, rank, *array.shape, *none, *strides, *none)


def check_count(count: int) -> None:
    """Check that a shader can count `count` elements.

    Raises:
        ValueError: `count` is too large.
    """
    if count >= _MOST:
        raise ValueError(f"{count} elements, of which a shader counts {_MOST}")


def check_span(array: Array) -> None:
    """Check that the offsets of all elements of an array fit a shader's int.

    Raises:
        ValueError: an offset does not fit.
    """
    pairs = zip(array.shape, array.strides, strict=True)
    span = sum((n - 1) * abs(stride) for n, stride in pairs) // array.itemsize
    if span >= _MOST or max(array.shape, default=0) >= _MOST:
        raise ValueError(f"{array.shape} spans more than {_MOST} elements")


def whole_bits(array: Array) -> Array:
    """Return an array's bits as integers, which shaders copy without conversion."""
    return array.view(_WHOLE[array.itemsize])


def merged(arrays: Sequence[Array | None]) -> list[Array | None]:
    """Return arrays of equal shapes with as few axes as possible.

    Neighboring axes are merged where they are contiguous in all arrays.
    """
    given = [array for array in arrays if array is not None]
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in given]
    for axis, size in enumerate(given[0].shape):
        own = [array.strides[axis] for array in given]
        if size == 1:
            continue
        pairs = zip(steps, own, strict=True)
        if dims and all(step[-1] == stride * size for step, stride in pairs):
            dims[-1] *= size
            for step, stride in zip(steps, own, strict=True):
                step[-1] = stride
            continue
        dims.append(size)
        for step, stride in zip(steps, own, strict=True):
            step.append(stride)
    found = iter([strided(a, dims, s) for a, s in zip(given, steps, strict=True)])
    return [None if array is None else next(found) for array in arrays]


def strided(array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """Return an array at the address of `array` with a new shape and new strides."""
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)


def seen_as(array: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a view of an array in a new shape; None if the strides allow no view."""
    made = array.reshape(shape)
    return made if not made.size or address_of(made) == address_of(array) else None
