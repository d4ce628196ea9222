"""`Turns`: what a scheduler's thread does over and over.

A turn drops cancelled requests, gives rows to waiting ones, reads parts of prompts for
as long as others may wait, and then makes a token of each answer in one call. In:
waiting jobs. Out: updates of jobs. One thread uses it.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import numpy as np

from kvc.runtime import Program
from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.image_prefill import picturing_of
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.picture_places import places_of
from kvc.schema.errors import KvcError, Poisoned, RequestFailed
from kvc.serving.scheduling.admission import Admission
from kvc.serving.scheduling.job import Job
from kvc.serving.scheduling.limits import Limits
from kvc.serving.scheduling.memory import RowMemory
from kvc.serving.scheduling.opening import open_rows
from kvc.serving.scheduling.pace import Pace
from kvc.serving.scheduling.requests import Ending
from kvc.serving.scheduling.status import Status
from kvc.serving.scheduling.texts import Texts
from kvc.serving.scheduling.waiting import Waiting

_MOVED: Final = 24  # a row of so many tokens is copied in the time that a row takes
_LEFT: Final = 64  # tokens that an answer without a limit is expected to have left
_PARKED: Final = 64  # a prompt of as many tokens is parked, if its row cannot go back

_Made = TypeVar("_Made")


class Turns:
    """The rows of a program, and the jobs that run in them.

    Attributes:
        rows: the rows.
        memory: the bytes that a row takes.
        capacity: how many tokens a row can hold, None for no limit.
        waiting: the jobs that wait.
        counts: how much has been done so far, by the names of `Status`.
    """

    def __init__(self, program: Program, limits: Limits) -> None:
        """Open the rows.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: the limits allow no row, or more than the program does.
            OutOfMemory: the system provides no address space.
        """
        self._program, self._limits = program, limits
        alone = program.session(limits.capacity)
        self._goes_back = not alone.going_back.needs_copies
        self.memory, capacity = RowMemory(alone), limits.capacity
        if limits.nbytes is not None and alone.capacity is not None:
            capacity = self.memory.most_tokens(limits.nbytes, alone.capacity)
        self.rows = open_rows(program, limits.rows, capacity)
        self.capacity = self.rows.capacity
        remembered = limits.remembered_nbytes
        self._texts = Texts(remembered, self.memory.nbytes, self._goes_back)
        self._admission = Admission(self.rows, self.memory, self._texts, limits.nbytes)
        self.waiting, self._pace = Waiting(), Pace()
        self.counts: Counter[str] = Counter()
        self._ended = 0
        self._preparing = self.rows.prepare()

    @property
    def is_idle(self) -> bool:
        """Tell whether there is nothing to do."""
        return not (self._admission.jobs or len(self.waiting))

    def prepare(self) -> bool:
        """Do some work ahead of requests; tell whether there was any left."""
        with suppress(KvcError):  # it will be met again, by the request that needs it
            return next(self._preparing, self) is not self
        return False

    def turn(self) -> None:
        """Do what is to be done once."""
        self._drop_cancelled()
        self._begin()
        self._read()
        self._step()
        self._close_up()

    @property
    def status(self) -> Status:
        """Return what is being done now; other threads may see a state between two."""
        admission = self._admission
        return Status(
            rows=self.rows.size,
            running=len(admission.jobs),
            waiting=len(self.waiting),
            nbytes=admission.nbytes,
            remembered_nbytes=admission.remembered_nbytes,
            **dict(self.counts),
        )

    def recover(self, error: Exception) -> None:
        """Begin anew after a defect: end what runs; what waits goes on."""
        jobs = list(self._admission.jobs.values())
        self._admission.jobs.clear()
        for job in jobs:
            self._end(job, "failed", _defect(error))
        self.rows.mend()
        self._admission.forget()

    def end_all(self, ending: Ending, error: KvcError | None = None) -> None:
        """End every job, running or waiting."""
        for job in list(self._admission.jobs.values()):
            self._leave(job)
            self._end(job, ending, error)
        for job in self.waiting.take_if(lambda _: True):
            self._end(job, ending, error)

    def close(self) -> None:
        """Close all sessions."""
        self._admission.forget()
        self._texts.shrink(0)
        self.rows.close()
        self.memory.close()

    def _drop_cancelled(self) -> None:
        if len(self.waiting):
            for job in self.waiting.take_if(lambda job: job.is_over):
                self._end(job, "cancelled")
        for job in [one for one in self._admission.jobs.values() if one.is_over]:
            self._leave(job)
            self._end(job, "cancelled")

    def _begin(self) -> None:
        """Give rows to waiting jobs, in their order, as long as one can begin."""
        began = len(self.waiting) > 0
        while began:
            began = False
            for job in self.waiting.in_turn(self._admission.counts()):
                try:
                    began = self._admission.begin(job)
                except Exception as error:
                    self.waiting.remove(job)
                    told = error if isinstance(error, KvcError) else _defect(error)
                    self._end(job, "failed", told)
                    began = True
                    break
                if began:
                    self.waiting.remove(job)
                    self._count(reused_tokens=job.reused)
                    break

    def _read(self) -> None:
        """Read parts of prompts, for no longer than others may wait."""
        until = time.perf_counter() + self._limits.stall
        first = True
        while reading := [j for j in self._admission.jobs.values() if j.reads]:
            answering = len(reading) < len(self._admission.jobs)
            left = until - time.perf_counter()
            most = self._pace.most(left if answering else None)
            if answering and not first and most <= 0:
                return
            self._read_part(reading[0], max(most, 16))
            first = False
            if not answering:
                return  # so that cancelled and new requests are seen

    def _read_part(self, job: Job, most: int) -> None:
        row = job.row
        assert row is not None, "the job has a row"
        if job.request.pictures and not job.held:
            self._try([job], lambda: self._read_pictures(job))
            return
        longest = self.rows.longest
        part = job.pending[: most if longest is None else min(most, longest)]
        began = time.perf_counter()
        logits = self._try([job], lambda: self.rows.read(row, part))
        if logits is None:
            return
        self._pace.note(len(part), time.perf_counter() - began)
        job.ran(len(part))
        self._count(prompt_tokens=len(part))
        if not job.pending:
            self._after_prompt(job)
            self._choose(job, logits)

    def _after_prompt(self, job: Job) -> None:
        """Park a copy of a long prompt if its row cannot go back to it later."""
        row, tokens = job.row, job.tokens
        if self._goes_back or len(tokens) < _PARKED or job.request.pictures:
            return
        if row is not None and self._texts.keeps(len(tokens)):
            adapter = (job.request.adapter, job.request.scale)
            held = np.array(tokens, np.int64)
            self._texts.park(held, adapter, self.rows.twin(row))

    def _read_pictures(self, job: Job) -> bool:
        """Read a prompt with pictures in a session of its own."""
        request, row = job.request, job.row
        assert row is not None, "the job has a row"
        name = request.adapter
        scale = None if name is None else request.scale
        with self._program.session(self.capacity, adapter=name, scale=scale) as alone:
            shown: list[list[InParts]] = [list(request.pictures)]
            picturing = picturing_of(alone, places_of(alone), shown)
            feeder = Feeder(alone, picturing=picturing)
            feeder.check_prompts([request.prompt])
            logits = feeder.feed_prompts([request.prompt])
            self.rows.take(row, alone, (name, request.scale), len(request.prompt))
        job.ran(len(request.prompt))
        self._count(prompt_tokens=len(request.prompt))
        self._choose(job, logits[0])
        return True

    def _step(self) -> None:
        """Make the next token of each answer."""
        ready = {row: job for row, job in self._admission.jobs.items() if not job.reads}
        if not ready:
            return
        tokens = {row: job.pending[0] for row, job in ready.items()}
        made = self._try(list(ready.values()), lambda: self.rows.step(tokens))
        if made is None:
            return
        self._count(steps=1)
        for row, job in ready.items():
            job.ran(1)
            self._choose(job, made[row])

    def _choose(self, job: Job, logits: Logits) -> None:
        """Choose a job's next token; let the job leave if that was the last."""

        def choose() -> bool:
            before = len(job.answer.tokens)
            ended = job.choose(logits)
            self._count(tokens=len(job.answer.tokens) - before)
            return ended

        if self._try([job], choose):
            self._leave(job)
            self._count(finished=1)

    def _leave(self, job: Job) -> None:
        self._ended += 1
        self._admission.leave(job, self._ended)

    def _end(self, job: Job, ending: Ending, error: KvcError | None = None) -> None:
        self._count(**{ending: 1})
        job.end(ending, error)

    def _try(self, jobs: list[Job], action: Callable[[], _Made]) -> _Made | None:
        """Run an action; if it fails, end the jobs that it was for, and return None."""
        try:
            return action()
        except KvcError as error:
            self._fail(jobs, error)
        except Exception as error:  # a defect of kvc, which must not end the thread
            self._fail(jobs, _defect(error))
        return None

    def _fail(self, jobs: list[Job], error: KvcError) -> None:
        lost = isinstance(error, Poisoned) or not self.rows.is_usable
        for job in list(self._admission.jobs.values()) if lost else jobs:
            self._leave(job)
            self._end(job, "failed", error)
        if lost:
            self.rows.mend()
            self._admission.forget()

    def _close_up(self) -> None:
        """Move a row so that the rows that decode together are adjacent."""
        jobs = self._admission.jobs
        if not self.rows.together or len(self.waiting) or len(jobs) < 2:
            return
        first, last = min(jobs), max(jobs)
        holes = [row for row in self._admission.idle if first < row < last]
        if not holes:
            return
        ends = (jobs[first], jobs[last])
        job = min(ends, key=lambda one: one.held)
        left = min((_LEFT if one.most_left is None else one.most_left) for one in ends)
        if job.held < _MOVED * min(left, _LEFT) and not job.request.pictures:
            self._try([job], lambda: self._admission.move(job, holes[0]))

    def _count(self, **added: int) -> None:
        self.counts.update(added)


def _defect(error: Exception) -> KvcError:
    """Return an error of kvc's for one that kvc should not have raised."""
    made = RequestFailed(reason=f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
