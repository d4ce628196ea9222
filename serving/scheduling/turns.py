"""`Turns`: what a scheduler's thread does over and over.

A turn drops cancelled requests, gives rows to waiting ones, reads parts of prompts for
as long as others may wait, and then makes a token of each answer in one call. In:
waiting jobs. Out: updates of jobs. One thread uses it.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from kvc.runtime import Program
from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.image_prefill import picturing_of
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.picture_places import places_of
from kvc.schema.errors import BadSetting, KvcError, Poisoned, RequestFailed
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
_PASSED: Final = 32  # later ones that may begin before a job, which then goes first
_LEFT: Final = 64  # tokens that an answer without a limit is expected to have left

_ENDLESS: Final = 1 << 24  # tokens, of rows whose states have no capacity

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
        self.memory = RowMemory(alone)
        try:
            self._wanted, most = self._most_tokens(alone.capacity)
            self.rows = open_rows(program, limits.rows, self._wanted)
        except BaseException:
            self.memory.close()
            raise
        if self.rows.capacity is None:
            self.rows.capacity = most
        self.capacity = self.rows.capacity
        texts = Texts(self.memory.nbytes, not alone.going_back.needs_copies)
        bytes_of = limits.nbytes, limits.most_remembered
        self._admission = Admission(self.rows, self.memory, texts, bytes_of)
        self.waiting, self._pace = Waiting(), Pace()
        self.counts: Counter[str] = Counter()
        self._preparing = self.rows.prepare()
        self._parts = 0  # of prompts that have been read

    def _most_tokens(self, capacity: int | None) -> tuple[int | None, int | None]:
        """Return the capacity to open rows with, and how many tokens they may hold.

        Args:
            capacity: how many tokens a row could hold, None for no limit.

        Raises:
            BadSetting: not even a token fits into the bytes.
        """
        nbytes = self._limits.nbytes
        if nbytes is None:
            return self._limits.capacity, capacity
        bound = _ENDLESS if capacity is None else capacity
        most = self.memory.most_tokens(nbytes, bound)
        if not most:
            expected = f"at least {self.memory.nbytes(1)}, the bytes of a row"
            raise BadSetting(name="nbytes", expected=expected, found=nbytes)
        return (None if capacity is None else most), most

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
        """Do what is to be done once.

        Raises:
            Closed: the program has been closed.
        """
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
        """Begin anew after an error: end what runs; what waits goes on.

        Raises:
            Closed: the program has been closed.
        """
        self._end_running("failed", as_told(error))
        self.rows.mend()
        self._admission.forget()

    def end_all(self, ending: Ending, error: KvcError | None = None) -> None:
        """End every job, running or waiting."""
        self._end_running(ending, error)
        for job in self.waiting.take_if(lambda _: True):
            self._end(job, ending, error)

    def _end_running(self, ending: Ending, error: KvcError | None) -> None:
        """End the jobs that run; their rows must be emptied."""
        jobs = list(self._admission.jobs.values())
        self._admission.jobs.clear()
        for job in jobs:
            self._end(job, ending, error)

    def close(self) -> None:
        """Close all sessions; jobs must have ended."""
        self._admission.close()
        self.rows.close()
        self.memory.close()

    def _drop_cancelled(self) -> None:
        if len(self.waiting):
            for job in self.waiting.take_if(lambda job: job.is_over):
                self._end(job, "cancelled")
        for job in [one for one in self._admission.jobs.values() if one.is_over]:
            self._end(job, "cancelled")

    def _begin(self) -> None:
        """Give rows to waiting jobs, in their order, as long as one can begin."""
        while len(self.waiting) and self._begin_one():
            pass

    def _begin_one(self) -> bool:
        """Give a row to the first job that can have one; tell whether there was any."""
        jobs = list(self.waiting.in_turn(self._admission.counts()))
        jobs.sort(key=lambda one: one.passed < _PASSED)
        for job in jobs:
            try:
                began = self._admission.begin(job)
            except Exception as error:  # of kvc or a defect
                self.waiting.remove(job)
                self._end(job, "failed", as_told(error))
                return True
            if began:
                self.waiting.remove(job)
                self._count(reused_tokens=job.reused)
                for other in jobs:
                    other.passed += other.arrived < job.arrived
                return True
            if job.passed >= _PASSED and not self._admission.fits(job):
                return False  # it would never fit while smaller ones begin
        return False

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
            self._read_part(self._next_of(reading), max(most, 16))
            first = False
            if not answering:
                return  # so that cancelled and new requests are seen

    def _next_of(self, reading: Sequence[Job]) -> Job:
        """Return the oldest job and the one that has the least to read, in turn.

        So a long prompt does not hold up short ones, nor they a long one for ever.
        """
        self._parts += 1
        if self._parts % 2:
            return min(reading, key=lambda job: job.arrived)
        return min(reading, key=lambda job: job.prompt.size - job.held)

    def _read_part(self, job: Job, most: int) -> None:
        row = job.row
        assert row is not None, "the job has a row"
        if job.request.pictures and not job.held:
            found = self._try([job], lambda: self._read_pictures(job))
            if found is not None:
                self._after_part(job, job.prompt.size, found)
            return
        longest = self.rows.longest
        part = job.pending[: most if longest is None else min(most, longest)]
        began = time.perf_counter()
        logits = self._try([job], lambda: self.rows.read(row, part))
        if logits is None:
            return
        self._pace.note(len(part), time.perf_counter() - began)
        self._after_part(job, len(part), logits)

    def _after_part(self, job: Job, count: int, logits: Logits) -> None:
        job.ran(count)
        self._count(prompt_tokens=count)
        if not job.pending:
            if job.held == job.prompt.size:
                self._admission.keep_prompt(job)
            self._choose(job, logits)

    def _read_pictures(self, job: Job) -> Logits:
        """Read a prompt with pictures in a session of its own.

        Raises:
            KvcError: as `Feeder.feed_prompts`, and as calls of sessions.
        """
        row, prompt = job.row, job.prompt.tolist()
        assert row is not None, "the job has a row"
        with self._program.session(self._wanted) as alone:
            alone.use_adapter(*job.adapter)
            shown: list[list[InParts]] = [list(job.request.pictures)]
            picturing = picturing_of(alone, places_of(alone), shown)
            feeder = Feeder(alone, picturing=picturing)
            feeder.check_prompts([prompt])
            logits = feeder.feed_prompts([prompt])
            taken = self.rows.take(row, alone, job.adapter, len(prompt))
            assert taken, "the row holds all tokens of the session"
        found: Logits = logits[0]
        return found

    def _step(self) -> None:
        """Make the next token of each answer."""
        ready = {row: job for row, job in self._admission.jobs.items() if not job.reads}
        if self.rows.together and ready:
            self._step_of(ready)
            return
        for row, job in ready.items():  # a failure is of one alone
            self._step_of({row: job})

    def _step_of(self, ready: Mapping[int, Job]) -> None:
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
        update = self._try([job], lambda: job.choose(logits))
        if update is None:
            return
        self._count(tokens=len(update.tokens))
        if update.ending is None:
            job.tell(update)
        else:
            self._leave(job, "finished", lambda: job.tell(update))

    def _end(self, job: Job, ending: Ending, error: KvcError | None = None) -> None:
        """End a job before its answer, whether it runs or waits."""
        self._leave(job, ending, lambda: job.end(ending, error))

    def _leave(self, job: Job, how: str, tell: Callable[[], None]) -> None:
        """Free the row of a job, count how it ended, and tell its listener.

        Raises:
            KvcError: as `Admission.leave`; the listener has been told all the same.
        """
        try:
            if job.row is not None and self._admission.jobs.get(job.row) is job:
                self._admission.leave(job)
        finally:
            self._count(**{how: 1})
            tell()

    def _try(self, jobs: list[Job], action: Callable[[], _Made]) -> _Made | None:
        """Run an action; if it fails, end the jobs that it was for, and return None."""
        try:
            return action()
        except Exception as error:  # of kvc or a defect, which must not end the thread
            self._fail(jobs, as_told(error))
        return None

    def _fail(self, jobs: list[Job], error: KvcError) -> None:
        if isinstance(error, Poisoned) or not self.rows.is_usable:
            self.recover(error)
            return
        for job in jobs:
            self._end(job, "failed", error)

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


def as_told(error: Exception) -> KvcError:
    """Return an error of kvc's for one that kvc should not have raised."""
    if isinstance(error, KvcError):
        return error
    made = RequestFailed(reason=f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
