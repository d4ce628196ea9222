"""The instruction loop: run the steps of a frame, and report the step that failed.

In: a frame whose inputs are filled. Out: results in the frame's outputs. All
shape-dependent work was done when the frame was bound: a frame is a flat list of steps,
and a `Binding` is a frame with the slots and tokens that a call needs in its session.
This module also writes the positions of cursors into the frame's inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import NoReturn, Protocol

import numpy as np

from kvc.runtime.execution.moving import Mover
from kvc.runtime.execution.recording import RECORDERS, TimedStep, watch
from kvc.runtime.memory.arrays import Array
from kvc.runtime.native import Failure, NativeCall
from kvc.runtime.states.kind import Demand
from kvc.runtime.threads import TorchThreads
from kvc.schema.errors import (
    CacheOverflow,
    IndexOutOfRange,
    KernelFailed,
    KvcError,
    RowLengthOutOfRange,
    StateMismatch,
    listing,
)
from kvc.schema.frozen import frozen
from kvc.schema.graph import CursorField, CursorSlot, Instruction
from kvc.schema.ops import CONTROL_OPS

Rebind = Callable[[Mapping[str, int], Mapping[int, Array] | None], "Frame"]


# Kernels that raise these errors have written nothing.
_CLEAN = (CacheOverflow, RowLengthOutOfRange, IndexOutOfRange)


class Unbegun(Exception):
    """A partition failed before it wrote outside its own memory.

    `__cause__` is the partition's error.
    """


@dataclass(slots=True)
class RunProgress:
    """Where a run has failed.

    Attributes:
        place: the index of the instruction that was running; -1 if none had begun; the
            number of instructions if all were done or it is unknown which was running.
        inside: whether the run failed in a block; parts of the block may have run
            before.
        unbegun: whether a partition failed and reported that it has written nothing.
    """

    place: int = -1
    inside: bool = False
    unbegun: bool = False

    def last(self, error: BaseException) -> int:
        """Return the index of the last instruction that may have written, or -1."""
        clean = isinstance(error, _CLEAN) and not self.inside
        return self.place - (clean or self.unbegun)


@frozen
class Frame:
    """A graph bound to sizes and memory: every operand at its fixed address.

    Attributes:
        method: the method's name, for messages.
        inputs: arrays that the caller fills.
        outputs: arrays that have the results after the last step.
        steps: functions and their arguments, in running order.
        places: for each step the indices of the instructions that it runs; a
            `NativeCall` of several partitions has several.
        instructions: the instructions of the graph.
        torch_threads: the number of threads for torch kernels; 0 if no step is a torch
            kernel.
        cursors: the fields of cursors that the graph reads; a session fills them in.
        rebind: binds the graph to new sizes of the same symbols, and to new memory of
            callers if any is given; raises as `bind_graph`. Only instructions that
            depend on the changes are bound again. The returned frame replaces this
            frame, which must not run any more, even if the rebinding fails. Frames
            with values in `GraphMemory.given` cannot be rebound.
    """

    method: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    steps: tuple[TimedStep, ...]
    places: tuple[tuple[int, ...], ...]
    instructions: tuple[Instruction, ...]
    torch_threads: int
    cursors: tuple[tuple[CursorSlot, Array], ...]
    rebind: "Rebind"

    @property
    def functions(self) -> Sequence[object]:
        """Return the functions of the steps."""
        return [function for function, _ in self.steps]

    def run(self, progress: RunProgress | None = None) -> None:
        """Run all steps; if a step fails, record in `progress` which one.

        Raises:
            KernelFailed: a kernel raised an error that is not a `KvcError`.
        """
        progress = progress or RunProgress()
        progress.place = len(self.instructions)
        if not self.torch_threads:
            self._run(progress)
            return
        import torch

        with torch.inference_mode(), TorchThreads(self.torch_threads):
            self._run(progress)

    def run_within(self) -> None:
        """Run all steps as part of another frame's run.

        Raises:
            KernelFailed: as `run`.
        """
        self._run(RunProgress())

    def _run(self, progress: RunProgress) -> None:
        index, recorders = 0, RECORDERS.get()
        steps: Iterable[TimedStep] = self.steps
        if recorders:
            steps = watch(
                recorders, self.method, self.steps, self.places, self.instructions
            )
        try:
            for index, (function, arguments) in enumerate(steps):  # noqa: B007
                function(*arguments)
        except BaseException as error:
            self._stop(progress, index, error)

    def raise_at(self, failure: Failure, progress: RunProgress) -> NoReturn:
        """Raise the error of a native step that has failed in a list of the same steps.

        Args:
            failure: the failure; its step is an index among all steps of the list.
            progress: as in `run`.

        Raises:
            KernelFailed: as `run`.
        """
        step = failure.step
        for index, function in enumerate(self.functions):
            failing, count = _raising(function), _count_listed(function)
            if failing is not None and step < count:
                try:
                    failing.raise_at(replace(failure, step=step))
                except BaseException as error:
                    self._stop(progress, index, error)
            step -= count
        raise AssertionError("the list has the steps of the frame")

    def count_listed(self) -> int:
        """Return how many steps a bound list has for those of the frame."""
        return sum(map(_count_listed, self.functions))

    def _stop(
        self, progress: RunProgress, index: int, error: BaseException
    ) -> NoReturn:
        """Record where a step failed, and raise its error with the place."""
        try:
            place = self._tell(progress, index, isinstance(error, Unbegun))
            if isinstance(error, Unbegun):
                error = _cause_of(error)
            if isinstance(error, Exception):
                fail(self.method, place, self.instructions[place], error)
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _tell(self, progress: RunProgress, index: int, unbegun: bool) -> int:
        """Record where a step failed, and return the index of the instruction.

        Args:
            progress: the record.
            index: the index of the step.
            unbegun: whether the step reported that it has written nothing.
        """
        if not self.places:
            progress.place = -1
            return -1
        (function, _), places = self.steps[index], self.places[index]
        place = places[0]
        progress.place = place
        if isinstance(function, NativeCall):
            place = places[function.reached]
            progress.place = place if function.begun else places[0]
            unbegun |= not function.begun
        progress.inside = self.instructions[place].op in CONTROL_OPS
        progress.unbegun = unbegun
        return place


def _cause_of(unbegun: Unbegun) -> BaseException:
    """Return the cause of an `Unbegun`, and remove the cause from the exception.

    Otherwise the two exceptions could form a reference cycle.
    """
    cause, unbegun.__cause__ = unbegun.__cause__, None
    assert cause is not None, "partitions raise it from an error"
    return cause


def fail(
    method: str, index: int, instruction: Instruction, error: Exception
) -> NoReturn:
    """Raise an instruction's error again, with the instruction's index and operator.

    Raises:
        KernelFailed: the error is not a `KvcError`. A `KvcError` is raised as it is.
    """
    place = f" at {instruction.source}" if instruction.source else ""
    try:
        if isinstance(error, IndexOutOfRange):
            label = f"method {method}, instruction {index}, {instruction.op}{place}: "
            raise IndexOutOfRange(
                place=label, index=error.index, size=error.size
            ) from error
        if isinstance(error, KvcError):
            raise error from error.__cause__
        raise KernelFailed(
            method=method,
            index=index,
            op=instruction.op,
            place=place,
            reason=str(error) or type(error).__name__,
        ) from error
    finally:
        del error  # its traceback refers to this frame


class Unrolled(ABC):
    """What runs blocks in a step of a frame: several steps of a bound list."""

    @abstractmethod
    def count_listed(self) -> int:
        """Return how many steps of a bound list there are."""

    @abstractmethod
    def raise_at(self, failure: Failure) -> NoReturn:
        """Raise the error of a native step; its index counts from the first of these.

        Raises:
            KernelFailed: as `Frame.run`.
        """


def _raising(function: object) -> NativeCall | Unrolled | None:
    """Return what has native steps in a step of a frame, None for a copy."""
    if isinstance(function, NativeCall):
        return function
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, Unrolled) else None


def _count_listed(function: object) -> int:
    """Return how many steps a bound list has for a step of a frame."""
    found = _raising(function)
    if found is None:
        return 1
    return len(found) if isinstance(found, NativeCall) else found.count_listed()


class Runs(Protocol):
    """A method bound to sizes and memory: a `Frame`, or the frame of a bound list."""

    @property
    def inputs(self) -> Sequence[Array]:
        """Return the arrays that the caller fills."""

    @property
    def outputs(self) -> Sequence[Array]:
        """Return the arrays that have the results after the last step."""

    @property
    def cursors(self) -> Sequence[tuple[CursorSlot, Array]]:
        """Return the fields of cursors that the session fills in."""

    @property
    def functions(self) -> Sequence[object]:
        """Return the functions of the steps, for `mover_of`."""

    def run(self, progress: RunProgress | None = None) -> None:
        """Run all steps; see `Frame.run`."""


@frozen
class Binding:
    """A frame, and what a call of the frame needs from its session.

    Attributes:
        frame: the frame to run.
        demand: the slots and the number of tokens that a call needs in its session.
        fills: (array to fill, index of the argument to copy into it).
        callers: the addresses of the callers' arrays, by value id.
        mover: moves the frame to the states of a call; None if it stays where it is.
    """

    frame: Runs
    demand: Demand
    fills: Sequence[tuple[Array, int]]
    callers: Mapping[int, tuple[object, ...]]
    mover: Mover | None = None


def fill_cursors(
    values: Sequence[tuple[CursorSlot, Array]],
    starts: Sequence[Sequence[int] | None],
    steps: Sequence[Sequence[int]],
    method: str,
) -> None:
    """Fill the cursor fields that a method reads.

    Args:
        values: pairs of a cursor field and the array to fill, int64 [], [1], [rows] or
            [tokens].
        starts: for each cursor, the position of each row before the call.
        steps: for each cursor, how many tokens the call adds to each row.
        method: the method's name, for messages.

    Raises:
        StateMismatch: the method takes one position for all rows, but the rows have
            different positions.
    """
    for slot, array in values:
        found = starts[slot.cursor] or (0,)
        if slot.field in (CursorField.END, CursorField.LENGTHS):
            lengths = steps[slot.cursor]
            ends = slot.field is CursorField.END
            found = list(map(add, found, lengths)) if ends else lengths
        if slot.field is CursorField.PLACES or array.size != len(found):
            if len(set(found)) > 1:
                raise StateMismatch(
                    method=method,
                    state="position",
                    expected="one position for all rows",
                    found=listing([str(position) for position in found]),
                )
            array[...] = found[0]
            if slot.field is CursorField.PLACES:
                np.add(array, np.arange(array.size), out=array)
        else:
            array[...] = found if array.ndim else found[0]
