"""Run a call on the caller's own arrays, which the method writes or extends in place.

In: the inputs of a call, and the inputs that the method writes. Out: a `Loan` for each
written input, with the memory that the method works on. Usually this is the caller's
memory itself. If the caller's array is not contiguous, the method works on a copy,
which is written back after success. If a plain array becomes longer, the method works
on a copy with room for the new elements.

Bytes that a failed call has written into a caller's array stay there. The lengths of
growing arrays change only after success.
"""

from collections.abc import Mapping

import numpy as np
from numpy.lib.array_utils import byte_bounds

from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.inputs import Inputs
from kvc.runtime.memory.arrays import (
    Array,
    address_of,
    copy_into,
    is_tensor,
    own_copy,
    prefix,
)
from kvc.runtime.memory.growing import GrowingArray
from kvc.runtime.states.effects import Borrowed, Growth
from kvc.schema.errors import CacheOverflow, InputMismatch
from kvc.schema.frozen import frozen
from kvc.schema.types import evaluate


@frozen
class Loan:
    """The memory of one written input during one call.

    Attributes:
        value: the id of the input.
        memory: the array that the method works on, with room for the final length.
        original: the array to copy `memory` back to, None if `memory` is the original.
        growing: the caller's `GrowingArray` that becomes longer, None for plain arrays.
        length: the length of `growing` after the call.
        outputs: the indices of the outputs that return the extended array.
    """

    value: int
    memory: Array
    original: Array | None
    growing: GrowingArray | None
    length: int
    outputs: tuple[int, ...]

    def finish(self) -> None:
        """Copy results back and set the new length, after a call has succeeded."""
        if self.original is not None:
            copy_into(self.original, prefix(self.memory, self.original.shape))
        if self.growing is not None:
            self.growing.set_length(self.length)


def lend(
    entry: MethodEntry, inputs: Inputs, sizes: Mapping[str, int]
) -> tuple[Loan, ...]:
    """Return the loans of a call.

    Raises:
        InputMismatch: a written array is read-only, or overlaps another argument.
        CacheOverflow: a growing array has too little room for the new elements.
    """
    loans = []
    written: dict[int, Array] = {}
    for borrowed in entry.effects.borrowed:
        leaf = borrowed.input
        lender = _Lender(entry, inputs, leaf)
        if borrowed.growth is None:
            loans.append(lender.lend_fixed(borrowed))
        else:
            loans.append(lender.lend_growing(borrowed, borrowed.growth, sizes))
        if lender.written is not None:
            written[leaf] = lender.written
    # No other argument may share memory with an input that the call writes.
    shared = _shared(inputs, written)
    if shared is not None:
        leaf, other = shared
        expected = "memory of its own, since the method writes it"
        found = f"memory that input {entry.signature.names[other]} shares"
        raise _mismatch(entry, leaf, expected, found)
    return tuple(loans)


def _shared(inputs: Inputs, written: Mapping[int, Array]) -> tuple[int, int] | None:
    """Return (written input, other input) whose memory overlaps, None if none does.

    The byte ranges of the inputs are visited in order of their first bytes. A range
    overlaps an earlier range if it begins before the furthest end of the earlier
    ranges.
    """
    if not written:
        return None
    same = {id(inputs.leaves[leaf]): leaf for leaf in written}
    spans = []
    for leaf, array in enumerate(inputs.arrays):
        owner = same.get(id(inputs.leaves[leaf]), leaf)
        if owner != leaf:
            return owner, leaf
        memory = written.get(leaf, array)
        if memory.size:
            spans.append((*byte_bounds(memory), leaf))
    furthest = furthest_written = (0, -1)
    for low, high, leaf in sorted(spans):
        end, other = furthest if leaf in written else furthest_written
        if low < end:
            return (leaf, other) if leaf in written else (other, leaf)
        furthest = max(furthest, (high, leaf))
        if leaf in written:
            furthest_written = max(furthest_written, (high, leaf))
    return None


class _Lender:
    """Lends the caller's array for one written input of a call.

    Attributes:
        written: all memory of the caller that the call may write, None if the input's
            memory is not written.
    """

    def __init__(self, entry: MethodEntry, inputs: Inputs, leaf: int) -> None:
        self._entry, self._inputs, self._leaf = entry, inputs, leaf
        self._array, self._given = inputs.arrays[leaf], inputs.leaves[leaf]
        self.written: Array | None = None

    def lend_fixed(self, borrowed: Borrowed) -> Loan:
        """Lend an array whose elements are overwritten but whose length stays."""
        if borrowed.mutated:
            self._check_writable()
        memory, original = self._array, None
        if not memory.flags.c_contiguous:
            memory, original = own_copy(memory), memory
        return Loan(borrowed.value, memory, original, None, 0, ())

    def lend_growing(
        self, borrowed: Borrowed, growth: Growth, sizes: Mapping[str, int]
    ) -> Loan:
        """Lend an array that becomes longer."""
        length = evaluate(growth.length, sizes)
        reach = max(evaluate(dim, sizes) for dim in growth.reach)
        if not isinstance(self._given, GrowingArray):
            # A copy has room for the new elements.
            if borrowed.mutated:
                self._check_writable()
            shape = list(self._array.shape)
            shape[growth.axis] = max(reach, shape[growth.axis])
            memory: Array = np.empty(tuple(shape), self._array.dtype)
            copy_into(prefix(memory, self._array.shape), self._array)
            original = self._array if borrowed.mutated else None
            return Loan(borrowed.value, memory, original, None, 0, ())
        growing, start = self._given, self._given.length
        if growing.axis != growth.axis:
            expected = f"a GrowingArray that grows along axis {growth.axis}"
            raise self._mismatch(expected, f"one that grows along axis {growing.axis}")
        self.written = growing.memory
        if reach > growing.capacity:
            raise CacheOverflow(
                row=0, start=start, count=reach - start, capacity=growing.capacity
            )
        outputs = borrowed.outputs
        return Loan(borrowed.value, growing.memory, None, growing, length, outputs)

    def _check_writable(self) -> None:
        """Check that the input is writable, and store its memory in `written`.

        Raises:
            InputMismatch: the input is read-only, or some of its elements share bytes.
        """
        array, given = self._array, self._given
        if not array.flags.writeable:
            raise self._mismatch("an array that may be written", "a read-only one")
        # torch reports no address for an empty tensor.
        if array.size and is_tensor(given) and address_of(array) != given.data_ptr():  # type: ignore[attr-defined]
            raise self._mismatch(
                "a tensor in ordinary memory", "one that must be copied"
            )
        if _overlaps_itself(array):
            found = f"one whose elements overlap each other, of strides {array.strides}"
            raise self._mismatch("an array that may be written", found)
        self.written = given.memory if isinstance(given, GrowingArray) else array

    def _mismatch(self, expected: str, found: str) -> InputMismatch:
        return _mismatch(self._entry, self._leaf, expected, found)


def _mismatch(
    entry: MethodEntry, leaf: int, expected: str, found: str
) -> InputMismatch:
    signature = entry.signature
    return InputMismatch(
        method=signature.method,
        input=signature.names[leaf],
        expected=expected,
        found=found,
    )


def _overlaps_itself(array: Array) -> bool:
    """Tell whether two elements of an array may occupy the same bytes."""
    if array.size == 0:
        return False
    reach = array.itemsize
    dims = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(s), n) for s, n in dims if n > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False
