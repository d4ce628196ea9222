"""`record`: bind a method at some sizes to memory that nobody reads or writes.

In: a program, a method, a size for each symbol. Out: the steps that the native library
would run, each operand with the region of memory that it lies in and its offset there.
Reserved address space stands for the memory of all regions, so that no weights are
needed, and sizes may be as large as the program allows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.bound_lists.regions import Operand, Regions
from kvc.runtime.delegates.table import delegate_of
from kvc.runtime.execution.code import code_of
from kvc.runtime.execution.control import ControlStep
from kvc.runtime.execution.delegate import Handle, Workspace
from kvc.runtime.execution.executor import Frame
from kvc.runtime.execution.frames import bind_graph
from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arrays import copy_into
from kvc.runtime.native import NativeCall
from kvc.schema.frozen import frozen
from kvc.schema.graph import CursorField
from kvc.schema.model import Program

_COPY: Final = "aten::copy"


@frozen
class RecordedStep:
    """One call of a kernel; operands are results first, None where one is left out."""

    kernel: str
    operands: tuple[Operand | None, ...]
    integers: tuple[int, ...]
    numbers: tuple[float, ...]


@frozen
class Recorded:
    """A method bound at some sizes.

    Attributes:
        steps: the steps in running order.
        cursors: for each array of the region CURSOR, 4 * the cursor + the field, and
            the number of elements.
        inputs, outputs: where the method's inputs are put, and its results lie.
        planned_nbytes: bytes of scratch memory that the compiler has planned.
        made_nbytes: bytes of each array that binding adds.
    """

    steps: tuple[RecordedStep, ...]
    cursors: tuple[tuple[int, int], ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    planned_nbytes: int
    made_nbytes: tuple[int, ...]


class CannotRecord(Exception):
    """A method has a step that is no native kernel; its text says which."""


def record(program: Program, method: int, sizes: Mapping[str, int]) -> Recorded:
    """Bind a method of a verified program, and return its steps.

    Args:
        program: the program.
        method: id of the method.
        sizes: the size of each symbol.

    Raises:
        CannotRecord: a step is no call of a native kernel.
        MissingLibrary: the native library is missing.
        KernelFailed: the method cannot be bound to these sizes.
    """
    regions = Regions(program, method, sizes)

    code = code_of(program, method, lambda one: _unread(program, one, regions), {})
    memory = GraphMemory(
        scratch=regions.scratch,
        constant=regions.constant,
        states=regions.states,
        workspace=Workspace(regions.workspace),
    )
    frame = bind_graph(program.methods[method].graph, sizes, memory, code)
    regions.add_cursors([array for _, array in frame.cursors])
    steps = [one for step in frame.steps for one in _steps_of(step, regions)]
    inputs = tuple(regions.operand(array) for array in frame.inputs)
    outputs = tuple(regions.operand(array) for array in frame.outputs)
    return Recorded(
        steps=tuple(steps),
        cursors=_cursors(frame),
        inputs=inputs,
        outputs=outputs,
        planned_nbytes=regions.planned_nbytes,
        made_nbytes=tuple(regions.made_nbytes),
    )


def _unread(program: Program, number: int, regions: Regions) -> Handle:
    partition = program.delegates[number]
    factory = delegate_of(partition.backend)
    handle = factory.unread(program, partition, regions.constant)
    if handle is None:
        raise CannotRecord(f"it has partitions of {partition.backend}")
    return handle


def _cursors(frame: Frame) -> tuple[tuple[int, int], ...]:
    fields = len(CursorField)
    return tuple(
        (fields * slot.cursor + slot.field, array.size) for slot, array in frame.cursors
    )


def _steps_of(
    step: tuple[Callable[..., object], tuple[object, ...]], regions: Regions
) -> Sequence[RecordedStep]:
    """Return what a step of a frame makes the library run.

    Raises:
        CannotRecord: the step is no native call.
    """
    function, arguments = step
    if isinstance(function, NativeCall):
        return [
            RecordedStep(
                call.kernel,
                tuple(map(regions.operand_or_none, call.operands)),
                call.integers,
                call.numbers,
            )
            for partition in function.partitions
            for call in partition.steps.calls()
        ]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ControlStep) and (inside := owner.unrolled()) is not None:
        return [one for each in inside for one in _steps_of(each, regions)]
    if function is copy_into:
        arrays = [array for array in arguments if isinstance(array, np.ndarray)]
        operands = tuple(regions.operand(array) for array in arrays)
        return [RecordedStep(_COPY, operands, (), ())]
    raise CannotRecord("it has control flow that depends on values")
