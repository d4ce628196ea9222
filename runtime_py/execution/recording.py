"""Record when each step of calls began and ended: `record`.

In: calls of methods within a `with` block, in its thread. Out: a `Span` for each step
of each call. The instruction loop asks here who records; native code writes down when
each of its steps has ended, in nanoseconds of the same clock.
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
    """A step of a call.

    Spans of the steps in a branch or loop lie within that of the branch or loop.

    Attributes:
        method: that was called.
        op: of the instruction; of a library that says what it runs, its name for that,
            and "kvc::delegate" for the rest of the partition.
        backend: that ran it, "" for the runtime itself.
        source: the user's line, and the module; "" where it is not known.
        began, ended: in nanoseconds of `time.perf_counter_ns`.
    """

    method: str
    op: str
    backend: str
    source: str
    began: int
    ended: int


class Recorder:
    """What calls have run since recording began."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._ended = False

    def add(self, note: "Note") -> None:
        """Keep what a step took, until recording ends."""
        if not self._ended:
            self._notes.append(note)

    def end(self) -> None:
        """Keep nothing more: tasks that began meanwhile may still run."""
        self._ended = True

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the spans so far, in the order in which they ended."""
        return tuple(span for note in self._notes for span in note.spans())


@frozen
class _Note:
    """A step that Python ran."""

    method: str
    told: Instruction
    began: int
    ended: int

    def spans(self) -> Iterator[Span]:
        told = self.told
        yield Span(self.method, told.op, "", told.source, self.began, self.ended)


@frozen
class _Told:
    """What a partition that native code ran says of its steps.

    Not the partition itself, which holds memory of its program.

    Attributes:
        backend: whose partition it is.
        steps: how many it has.
        whole: the instruction that calls it.
        instructions: that each step runs; none where the library does not tell.
    """

    backend: str
    steps: int
    whole: Instruction
    instructions: Sequence[Instruction]


# Names of a library's operators, and the microseconds of each.
_Operators = tuple[Sequence[str], Array]


@frozen
class _NativeNote:
    """Steps that native code ran.

    Attributes:
        method: that was called.
        partitions: in running order.
        operators: of each partition; None where its library does not tell.
        began: in nanoseconds.
        ended: the same of each step, int64 [steps].
    """

    method: str
    partitions: Sequence[_Told]
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
                # They ran one after another; when each began nobody tells.
                names, took = operators
                ends = began + 1000 * np.cumsum(took.astype(np.int64))
                source = partition.whole.source
                for op, last in zip(names, ends.tolist(), strict=True):
                    last = min(last, times[-1])
                    yield Span(self.method, op, backend, source, began, last)
                    began = last
            for told, last in zip(steps, times, strict=True):
                yield Span(self.method, told.op, backend, told.source, began, last)
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
    """Yield the steps of a frame, which run in between, and note what they take.

    Args:
        recorders: that are told.
        method: that is called.
        steps: functions and their arguments.
        places: of the instructions that each step runs; of native calls one for each
            partition.
        instructions: of the frame.
    """
    for (function, arguments), at in zip(steps, places, strict=True):
        note: Note
        if isinstance(function, NativeCall):
            ended, place = function.clock()
            began = time.perf_counter_ns()
            yield function, (place,)
            told = _TOLD.get(function)
            if told is None:
                told = _TOLD[function] = _told(function, [instructions[i] for i in at])
            operators = [
                None if one.operators is None else one.operators()
                for one in function.partitions
            ]
            note = _NativeNote(method, told, operators, began, ended.copy())
        else:
            began = time.perf_counter_ns()
            yield function, arguments
            ended_at = time.perf_counter_ns()
            note = _Note(method, instructions[at[0]], began, ended_at)
        for recorder in recorders:
            recorder.add(note)


# What each native call says of itself, which is the same whenever it runs.
_TOLD: Final = WeakKeyDictionary[NativeCall, Sequence[_Told]]()


def _told(call: NativeCall, delegates: Sequence[Instruction]) -> Sequence[_Told]:
    return [
        _Told(one.backend, len(one.steps), whole, one.instructions)
        for one, whole in zip(call.partitions, delegates, strict=True)
    ]


@contextmanager
def record() -> Iterator[Recorder]:
    """Record the calls of this thread within the `with` block.

    Recording takes some 30 ns for a step that native code runs, and 1 us for one that
    Python runs. Calls within a call, as of loops, are recorded too. Blocks may lie in
    one another, or end in any order: each records what is called until it ends.
    """
    recorder = Recorder()
    RECORDERS.set((*RECORDERS.get(), recorder))
    try:
        yield recorder
    finally:
        recorder.end()
        RECORDERS.set(tuple(one for one in RECORDERS.get() if one is not recorder))
