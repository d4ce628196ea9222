"""Bind a block to sizes and memory: a list of steps of shaders, submitted at once.

View operators run during binding, on arrays that represent the device's memory. All
other operators become steps. Numbers that change with every token (the position, the
valid length) lie in memory that the steps read. So a method such as decode is bound and
recorded once, not for every token.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import numpy as np

from kvc.runtime.delegates.vulkan.commands import Commands
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.indexing import CHECKS, FRESH, UPDATES
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.mirrors import Mirrors
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.delegate import first_write
from kvc.runtime.execution.executor import Unbegun, fail
from kvc.runtime.execution.values import GraphMemory, Values, checks_rows
from kvc.runtime.memory.arrays import Array, lies_over
from kvc.schema.errors import (
    BranchMismatch,
    CacheOverflow,
    IndexOutOfRange,
    KvcError,
    RowLengthOutOfRange,
)
from kvc.schema.graph import Argument, Instruction
from kvc.schema.model import Block
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.verify.dims import Point
from kvc.schema.verify.signatures import check_at, sized_together

_CHECK_INDEX: Final = "kvc::check_index"
_CHECK_SIZE: Final = "kvc::check_size"
_CACHE_OVERFLOW, _INDEX_OUT_OF_RANGE, _ROW_LENGTH, _BAD_LENGTH = 1, 2, 3, 4  # step.glsl


class Places:
    """The device's buffers; finds the buffer of an array by the array's address."""

    def __init__(self, buffers: Sequence[DeviceBuffer]) -> None:
        """Set the initial buffers."""
        self._buffers = sorted(buffers, key=_place_of)
        self._bases = [buffer.base for buffer in self._buffers]

    def add(self, buffer: DeviceBuffer) -> None:
        """Add a buffer."""
        place = bisect_right(self._buffers, _place_of(buffer), key=_place_of)
        self._bases.insert(place, buffer.base)
        self._buffers.insert(place, buffer)

    def find(self, address: int) -> int:
        """Return an array's address for shaders, given the array's start address.

        Buffers can share pages. An array lies completely in the last buffer that begins
        at or before the array. If several buffers begin at that address, the array lies
        in the longest of them, which contains the shorter buffers.
        """
        buffer = self._buffers[bisect_right(self._bases, address) - 1]
        assert buffer.holds(address), "it lies in memory of the device"
        return buffer.place(address)


def _place_of(buffer: DeviceBuffer) -> tuple[int, int]:
    return buffer.base, buffer.nbytes


class Bound:
    """A partition that is bound and recorded; calling the object runs the partition.

    Attributes:
        mirrors: the copies between host and device.
        dispatches: the number of dispatches in a submission.
    """

    def __init__(
        self,
        device: Device,
        mirrors: Mirrors,
        steps: Steps,
        places: Places,
        fail_at: Callable[[int, int, Sequence[int]], NoReturn],
    ) -> None:
        """Record the steps as commands.

        Args:
            device: the device that runs the commands.
            mirrors: the device's copies of the host's arrays.
            steps: the steps to record.
            places: finds the device's address of an array.
            fail_at: raises the error for a fault: number of the step, kind of fault,
                facts.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: the driver refuses.
        """
        self.mirrors, self._fail_at = mirrors, fail_at
        # The commands' buffers must live as long as the commands.
        self._kept = places
        what = "the steps of a partition on a Vulkan device"
        table = DeviceBuffer(device, steps.nbytes, what, shared=True)
        table.bytes[: steps.nbytes] = np.frombuffer(steps.content(), np.uint8)
        places.add(table)
        dispatches = steps.dispatches(table.address)
        self.dispatches = len(dispatches)
        self._commands = Commands(
            device, mirrors.faults, mirrors.before, dispatches, mirrors.after
        )

    def __call__(self) -> None:
        """Copy inputs, submit all commands, wait for their end, and copy outputs."""
        self.mirrors.copy_in()
        self._commands.run()
        fault = self.mirrors.fault()
        if fault is not None:
            self._fail_at(*fault)
        self.mirrors.copy_out()


class Binder:
    """The values of a block at some sizes, and the steps recorded so far."""

    def __init__(
        self,
        method: str,
        block: Block,
        sizes: Mapping[str, int],
        memory: GraphMemory,
        steps: Steps,
    ) -> None:
        """Bind a block of supported operators only.

        Args:
            method: name of the block's method, for messages.
            block: the block.
            sizes: the sizes of the program's symbols.
            memory: the block's values, as arrays that represent the device's memory.
            steps: collects the steps.
        """
        self._method, self._graph, self._sizes = method, block.graph, sizes
        self._first_write = first_write(block)
        self._values = Values(block.graph, sizes, memory)
        self._types = [value.type for value in block.graph.values]
        self._steps = steps

    def bind(self, outputs: Sequence[Array]) -> None:
        """Add steps for all instructions, and for copies of results to `outputs`.

        Raises:
            KernelFailed: a view is impossible, or an operand is too large.
        """
        together, point = sized_together(self._graph), Point(self._sizes)
        for index, instruction in enumerate(self._graph.instructions):
            self._steps.instruction = index
            try:
                if index in together:
                    check_at(instruction, self._types, point)
                self._bind(instruction)
            except Exception as error:
                fail(self._method, index, instruction, error)
        for value, target in zip(self._graph.outputs, outputs, strict=True):
            made = self._values.array(value)
            if target.size and not lies_over(made, target):
                self._copy_out(value, target, made)

    def _copy_out(self, value: int, target: Array, made: Array) -> None:
        """Add a step that copies a result to the caller's output.

        Args:
            value: id of the result.
            target: the output.
            made: the result.

        Raises:
            KernelFailed: the result has more elements than a shader can count.
        """
        steps = self._graph.instructions
        makers = (i for i, step in enumerate(steps) if value in step.results)
        self._steps.instruction = index = next(makers, max(len(steps) - 1, 0))
        try:
            self._steps.copy(target, made)
        except ValueError as error:
            step = steps[index] if steps else Instruction(DELEGATE, (), ())
            fail(self._method, index, step, error)

    def fail_at(self, step: int, fault: int, facts: Sequence[int]) -> NoReturn:
        """Raise the error for a fault: the one that the reference would raise.

        Args:
            step: number of the step that failed.
            fault: the kind of fault.
            facts: numbers that describe the fault.

        Raises:
            Unbegun: the call has written nothing that outlives it; the cause of the
                exception is the error that the reference would raise.
        """
        index = self._steps.owners[step]
        instruction = self._graph.instructions[index]
        try:
            checks = instruction.op == _CHECK_INDEX
            error = _error(
                fault,
                facts,
                checks and not checks_rows(self._graph, instruction, self._sizes),
            )
            fail(self._method, index, instruction, error)
        except KvcError as error:
            # Steps that write check all their arguments before the first write.
            if index < self._first_write + (fault != _BAD_LENGTH):
                raise Unbegun from error
            raise

    def _bind(self, instruction: Instruction) -> None:
        op = instruction.op
        match OPS[op].aliasing:
            case Aliasing.VIEW:
                bind_view(instruction, self._values)
            case Aliasing.UPDATE:
                self._bind_update(instruction)
            case Aliasing.CHECK if op == _CHECK_SIZE:
                size, expected = self._arguments(instruction.arguments)
                if size != expected:
                    raise BranchMismatch(size=size, expected=expected)  # type: ignore[arg-type]  # integers
            case Aliasing.CHECK:
                CHECKS[op](self._steps, (), *self._arguments(instruction.arguments))
            case Aliasing.FRESH:
                outs = [self._values.written(value) for value in instruction.results]
                FRESH[op](self._steps, outs, *self._arguments(instruction.arguments))
            case Aliasing.CONTROL:
                raise AssertionError("control flow stays outside")

    def _arguments(self, arguments: Sequence[Argument]) -> list[object]:
        return [self._values.argument(each, self._values.array) for each in arguments]

    def _bind_update(self, instruction: Instruction) -> None:
        target, copy = self._values.updated(instruction)
        if copy is not None:
            self._steps.copy(*copy)
        arguments = self._arguments(instruction.arguments[1:])
        UPDATES[instruction.op](self._steps, [target], *arguments)


def _error(fault: int, facts: Sequence[int], is_index: bool) -> Exception:
    first, second, third, fourth = facts
    if fault == _CACHE_OVERFLOW and is_index:
        return IndexOutOfRange(place="", index=second, size=fourth)
    if fault == _CACHE_OVERFLOW:
        return CacheOverflow(row=first, start=second, count=third, capacity=fourth)
    if fault == _INDEX_OUT_OF_RANGE:
        return IndexOutOfRange(place="", index=first, size=second)
    if fault == _ROW_LENGTH:
        return RowLengthOutOfRange(row=first, length=second, most=third)
    what = f"row {first} has {second} valid positions, the cache has {third}"
    return ValueError(what)
