"""Record when each step of calls began and ended: `record`.

In: calls of methods within a `with` block, in its thread. Out: a `Span` for each step
of each call. The instruction loop asks here whether anybody records; native code writes
down when each of its steps has ended, in nanoseconds of the same clock.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import numpy as np

from kvc.runtime.arrays import Array, address_of
from kvc.runtime.native import NativeCall
from kvc.schema.frozen import frozen
from kvc.schema.model import Instruction

Step = tuple[Callable[..., object], tuple[object, ...]]


@frozen
class Span:
    """A step of a call.

    Spans of the steps in a branch or loop lie within that of the branch or loop.

    Attributes:
        method: that was called.
        op: of the instruction; "kvc::delegate" of a partition whose library does not
            tell more.
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
        self._notes: list[_Note | _NativeNote] = []

    def watch(
        self,
        method: str,
        steps: Sequence[Step],
        instructions: Sequence[Sequence[Instruction]],
    ) -> Iterator[Step]:
        """Yield the steps of a frame, which run in between, and note what they take.

        Args:
            method: that is called.
            steps: functions and their arguments.
            instructions: that each step runs; of native calls one for each partition.
        """
        for (function, arguments), told in zip(steps, instructions, strict=True):
            began = time.perf_counter_ns()
            if isinstance(function, NativeCall):
                ended = np.zeros(len(function), np.int64)
                yield function, (address_of(ended),)
                self._notes.append(_NativeNote(method, function, told, began, ended))
            else:
                yield function, arguments
                now = time.perf_counter_ns()
                self._notes.append(_Note(method, told[0], began, now))

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
class _NativeNote:
    """Steps that native code ran; `ended` is int64 [steps]."""

    method: str
    call: NativeCall
    delegates: Sequence[Instruction]
    began: int
    ended: Array

    def spans(self) -> Iterator[Span]:
        began, at = self.began, 0
        for partition, whole in zip(self.call.partitions, self.delegates, strict=True):
            times: Sequence[int] = self.ended[at : at + len(partition.steps)].tolist()
            at += len(times)
            steps = partition.instructions
            if not steps:  # the library does not tell
                steps, times = [whole], times[-1:]
            for told, last in zip(steps, times, strict=True):
                backend = partition.backend
                yield Span(self.method, told.op, backend, told.source, began, last)
                began = last


RECORDER: Final[ContextVar[Recorder | None]] = ContextVar("recorder", default=None)


@contextmanager
def record() -> Iterator[Recorder]:
    """Record the calls of this thread within the `with` block.

    Recording takes some 30 ns for a step that native code runs, and 1 us for one that
    Python runs. Calls within a call, as of loops, are recorded too.
    """
    recorder = Recorder()
    token = RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        RECORDER.reset(token)
