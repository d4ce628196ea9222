"""`record`: record the times at which each step of a call begins and ends.

In: calls of methods within a `with` block, in the thread of the block. Out: a `Span`
for each step of each call. The instruction loop asks this module for the active
recorders. Native code records the end of each step that it runs, in nanoseconds of the
same clock.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.runtime.native import NativeCall
from kvc.schema.frozen import frozen
from kvc.schema.graph import Instruction

TimedStep = tuple[Callable[..., object], tuple[object, ...]]


@frozen
class Span:
    """The duration of one step of a call.

    The spans of steps inside a branch or loop lie within the span of the branch or
    loop.

    Attributes:
        method: the called method.
        op: the operator of the instruction. If a backend's library reports the
            operators that it ran, `op` is the library's name for one of these
            operators; the remaining time of the partition is a span with the name
            "kvc::delegate".
        backend: the backend that ran the step; "" if the runtime itself ran the step.
        source: the line of the user's code that the step comes from, and the module of
            that line; "" if unknown.
        began, ended: the times at which the step began and ended, in nanoseconds of
            `time.perf_counter_ns`.
    """

    method: str
    op: str
    backend: str
    source: str
    began: int
    ended: int


class Recorder:
    """Collects the steps that calls have run since recording began."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._ended = False

    def add(self, note: "Note") -> None:
        """Store the note of a step; do nothing after the recording has ended."""
        if not self._ended:
            self._notes.append(note)

    def end(self) -> None:
        """Ignore later notes: tasks that began during the recording may still run."""
        self._ended = True

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the spans recorded so far, in the order in which the steps ended."""
        return tuple(span for note in self._notes for span in note.spans())


@frozen
class _Note:
    """A step that Python ran."""

    method: str
    instruction: Instruction
    began: int
    ended: int

    def spans(self) -> Iterator[Span]:
        instruction = self.instruction
        yield Span(
            self.method, instruction.op, "", instruction.source, self.began, self.ended
        )


@frozen
class _Reported:
    """The data of one partition from which spans are made after native code has run it.

    The partition itself is not referred to here, since a reference would keep the
    program's memory alive.

    Attributes:
        backend: the backend of the partition.
        steps: the number of steps of the partition.
        whole: the instruction that calls the partition.
        instructions: the instruction of each step; empty if the backend's library does
            not tell the steps' instructions.
    """

    backend: str
    steps: int
    whole: Instruction
    instructions: Sequence[Instruction]


# The names of a library's operators, and the microseconds that each took.
_Operators = tuple[Sequence[str], Array]


@frozen
class _NativeNote:
    """Steps that native code ran.

    Attributes:
        method: the called method.
        partitions: the partitions whose steps ran, in running order.
        operators: for each partition, the names and times of the operators that the
            backend's library reports; None if the library reports no operators.
        began: the time at which the first step began, in nanoseconds.
        ended: the time at which each step ended in nanoseconds, int64 [steps].
    """

    method: str
    partitions: Sequence[_Reported]
    operators: Sequence[_Operators | None]
    began: int
    ended: Array

    def spans(self) -> Iterator[Span]:
        began, at = self.began, 0
        for partition, operators in zip(self.partitions, self.operators, strict=True):
            times: Sequence[int] = self.ended[at : at + partition.steps].tolist()
            at += len(times)
            steps, backend = partition.instructions, partition.backend
            if not steps:
                steps, times = [partition.whole], times[-1:]
            if operators is not None:
                # The operators ran one after another; the library reports no begin
                # times.
                names, took = operators
                ends = began + 1000 * np.cumsum(took.astype(np.int64))
                source = partition.whole.source
                for op, last in zip(names, ends.tolist(), strict=True):
                    last = min(last, times[-1])
                    yield Span(self.method, op, backend, source, began, last)
                    began = last
            for instruction, last in zip(steps, times, strict=True):
                yield Span(
                    self.method,
                    instruction.op,
                    backend,
                    instruction.source,
                    began,
                    last,
                )
                began = last


Note = _Note | _NativeNote
RECORDERS: Final[ContextVar[tuple[Recorder, ...]]] = ContextVar("recorders", default=())


def watch(
    recorders: Sequence[Recorder],
    method: str,
    steps: Sequence[TimedStep],
    places: Sequence[Sequence[int]],
    instructions: Sequence[Instruction],
) -> Iterator[TimedStep]:
    """Yield the steps of a frame for the caller to run; record how long each takes.

    Args:
        recorders: the recorders that receive the notes.
        method: the called method.
        steps: pairs of a function and its arguments.
        places: for each step the indices of the instructions that it runs; a native
            call runs one instruction for each of its partitions.
        instructions: the instructions of the frame.
    """
    for (function, arguments), at in zip(steps, places, strict=True):
        note: Note
        if isinstance(function, NativeCall):
            ended, place = function.clock()
            began = time.perf_counter_ns()
            yield function, (place,)
            reported = _REPORTED.get(function)
            if reported is None:
                reported = _REPORTED[function] = _report(
                    function, [instructions[i] for i in at]
                )
            operators = [
                None if one.operators is None else one.operators()
                for one in function.partitions
            ]
            note = _NativeNote(method, reported, operators, began, ended.copy())
        else:
            began = time.perf_counter_ns()
            yield function, arguments
            ended_at = time.perf_counter_ns()
            note = _Note(method, instructions[at[0]], began, ended_at)
        for recorder in recorders:
            recorder.add(note)


# The partitions of each native call, which are the same at every run.
_REPORTED: Final = WeakKeyDictionary[NativeCall, Sequence[_Reported]]()


def _report(call: NativeCall, delegates: Sequence[Instruction]) -> Sequence[_Reported]:
    return [
        _Reported(one.backend, len(one.steps), whole, one.instructions)
        for one, whole in zip(call.partitions, delegates, strict=True)
    ]


@contextmanager
def record() -> Iterator[Recorder]:
    """Record the calls that the current thread makes within the `with` block.

    Recording adds some 30 ns to a step that native code runs, and 1 us to a step that
    Python runs. Calls within a call, such as those of loops, are recorded too. `with`
    blocks may be nested, or end in any order: each block records calls until its own
    end.
    """
    recorder = Recorder()
    RECORDERS.set((*RECORDERS.get(), recorder))
    try:
        yield recorder
    finally:
        recorder.end()
        RECORDERS.set(tuple(one for one in RECORDERS.get() if one is not recorder))
