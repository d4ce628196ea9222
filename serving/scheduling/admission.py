"""`Admission`: gives a waiting request a row, and what is known of its prompt already.

In: a job, the rows, what they and parked sessions hold. Out: a row that holds as many
of the prompt's first tokens as can be had without reading them; or no row, if there is
none, if its bytes do not fit, or if another request is about to read the same tokens.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from kvc.schema.errors import KvcError
from kvc.serving.scheduling.job import Job
from kvc.serving.scheduling.memory import RowMemory
from kvc.serving.scheduling.rows import PLAIN, Chosen, Rows
from kvc.serving.scheduling.texts import Text, Texts, Tokens, common_tokens

_LEAST: Final = 8  # fewer shared tokens are read again
_WORTH: Final = 32  # tokens for which a request waits until another has read them
_PARKED: Final = 64  # a prompt of as many tokens is parked, if its row cannot go back

Donor = int | Text  # a row that holds a text, or a parked one


class Admission:
    """Places requests in rows.

    Attributes:
        jobs: the job that each busy row runs.
        idle: the text that each other row still holds, None for an empty row.
    """

    def __init__(
        self, rows: Rows, memory: RowMemory, texts: Texts, most: tuple[int | None, int]
    ) -> None:
        """Begin with empty rows.

        Args:
            rows: the rows.
            memory: the bytes that a row takes.
            texts: the parked sessions.
            most: the greatest number of bytes that rows and parked sessions take, None
                for no limit; and that texts take which have ended.
        """
        self._rows, self._memory, self._texts = rows, memory, texts
        self._most, self._most_remembered = most
        self.jobs: dict[int, Job] = {}
        self.idle: dict[int, Text | None] = dict.fromkeys(range(rows.size))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows and parked sessions as they are now."""
        jobs = tuple(self.jobs.values())
        busy = sum(self._memory.nbytes(job.held) for job in jobs)
        return busy + self.remembered_nbytes

    @property
    def remembered_nbytes(self) -> int:
        """Return the bytes of texts that have ended."""
        held = (text for text in tuple(self.idle.values()) if text is not None)
        return self._texts.nbytes + sum(text.nbytes for text in held)

    def needed(self, job: Job) -> int:
        """Return the bytes that a job's row may take until its end."""
        settings, count = job.request.settings, job.prompt.size
        most = settings.max_tokens
        if settings.max_length is not None and most is None:
            most = max(settings.max_length - count, 0)
        capacity = self._rows.capacity
        if capacity is not None:
            count = capacity if most is None else min(count + most, capacity)
        elif most is not None:
            count += most
        return self._memory.nbytes(count)

    def begin(self, job: Job) -> bool:
        """Give a job a row; tell whether it has one now.

        Raises:
            KvcError: as `Job.begin`, and as calls of sessions; the row is empty.
        """
        if not self.idle or not self.fits(job):
            return False
        donors = self._donors(job)
        if self._is_coming(job, donors[0][0] if donors else 0):
            return False
        for _, donor in donors[:1]:
            text = self.idle.get(donor) if isinstance(donor, int) else donor
            if text is not None:
                self._texts.use(text)  # so that it is forgotten last
        job.reserved = self.needed(job)
        if self._most is not None:
            self.shrink(self._left() - job.reserved)
        row, reused = self._placed(job, donors)
        try:
            job.begin(row, reused, self._rows.capacity)
        except BaseException:
            self._forget_row(row)
            raise
        del self.idle[row]
        self.jobs[row] = job
        return True

    def fits(self, job: Job) -> bool:
        """Tell whether a row of a job's bytes fits, if others are forgotten for it."""
        return self._most is None or self.needed(job) <= self._left()

    def _left(self) -> int:
        """Return the bytes that no job has reserved."""
        assert self._most is not None, "there is a limit"
        return self._most - sum(job.reserved for job in self.jobs.values())

    @property
    def _room(self) -> int:
        """Return the bytes that texts which have ended may take now."""
        if self._most is None:
            return self._most_remembered
        return min(self._most_remembered, self._left())

    def _donors(self, job: Job) -> list[tuple[int, Donor]]:
        """Return (shared tokens, row or parked text) of texts that begin alike.

        The most shared first. The last token of the prompt is always read.
        """
        if job.request.pictures:
            return []
        prompt, adapter = job.prompt, job.adapter
        held = [(t, row) for row, t, own in self._held() if own == adapter]
        found: list[tuple[int, Donor]] = [
            (common_tokens(tokens, prompt), row) for tokens, row in held
        ]
        found += self._texts.alike(prompt, adapter)
        most = prompt.size - 1
        enough = [(min(n, most), donor) for n, donor in found if min(n, most) >= _LEAST]
        return sorted(enough, key=lambda one: -one[0])

    def _held(self) -> Iterator[tuple[int, Tokens, Chosen]]:
        """Yield each row with the tokens that it holds and their adapter."""
        for row, text in self.idle.items():
            if text is not None:
                yield row, text.tokens, text.adapter
        for row, job in self.jobs.items():
            if not job.request.pictures:
                yield row, job.tokens, job.adapter

    def _is_coming(self, waits: Job, shared: int) -> bool:
        """Tell whether a job is reading many more tokens of another job's prompt."""
        if waits.request.pictures:
            return False
        for job in self.jobs.values():
            if job.adapter != waits.adapter or job.request.pictures or not job.reads:
                continue
            common = common_tokens(job.prompt, waits.prompt)
            useful = self._texts.goes_back or common == job.prompt.size
            if useful and min(common, waits.prompt.size - 1) >= shared + _WORTH:
                return True
        return False

    def _placed(self, job: Job, donors: list[tuple[int, Donor]]) -> tuple[int, int]:
        """Return a row for a job, and how many first tokens of its prompt it holds."""
        for shared, donor in donors:
            if isinstance(donor, Text) or not self._used_up(donor, shared):
                continue
            if self._rows.cut(donor, shared):
                return donor, shared
        row = self._free_row()
        # Again: what the row held is parked now, and may have replaced others.
        for shared, donor in self._donors(job) if donors else []:
            if self._copied(donor, row, shared):
                return row, shared
        self._rows.clear(row, job.adapter)
        return row, 0

    def _used_up(self, row: int, shared: int) -> bool:
        """Tell whether a row is idle, and of no more use than what a prompt shares."""
        text = self.idle.get(row)
        return text is not None and 2 * shared >= text.tokens.size

    def _copied(self, donor: Donor, row: int, shared: int) -> bool:
        if isinstance(donor, int):
            return self._rows.copy(donor, row, shared)
        assert donor.session is not None, "it is parked"
        self._texts.use(donor)
        return self._rows.take(row, donor.session, donor.adapter, shared)

    def _free_row(self) -> int:
        """Return the row to use; what it holds is parked if there is room for it."""
        empty = [row for row, text in self.idle.items() if text is None]
        if empty:
            return min(empty, key=self._apart)
        texts = {row: text for row, text in self.idle.items() if text is not None}
        row = min(texts, key=lambda row: texts[row].used)
        self.park(row)
        return row

    def _apart(self, row: int) -> tuple[int, int]:
        """Return how far a row is from busy ones, and the row."""
        return min((abs(row - busy) for busy in self.jobs), default=0), row

    def park(self, row: int) -> None:
        """Move what an idle row holds to a session of its own, or forget it."""
        text, self.idle[row] = self.idle[row], None
        if text is not None and text.tokens.size:
            with suppress(KvcError):  # no room for it, or the rows meet it again
                self._texts.park(text.tokens, text.adapter, self._rows.give(row))

    def keep_prompt(self, job: Job) -> None:
        """Park a copy of a long prompt, if its row cannot go back to it later."""
        count, row = job.held, job.row
        if self._texts.goes_back or count < _PARKED or job.request.pictures:
            return
        nbytes = self._memory.nbytes(count)
        if row is not None and nbytes <= self._room:
            self.shrink(self._room - nbytes)
            with suppress(KvcError):  # no room for it, or the rows meet it again
                self._texts.park(job.tokens, job.adapter, self._rows.twin(row))

    def move(self, job: Job, row: int) -> bool:
        """Move a job to an idle row, whose text is parked or forgotten.

        Raises:
            KvcError: as calls of sessions.
        """
        source = job.row
        assert source is not None, "the job has a row"
        self.park(row)
        if not self._rows.copy(source, row, job.held):
            return False
        del self.jobs[source], self.idle[row]
        self.jobs[row], self.idle[source] = job, None
        job.row = row
        self._forget_row(source)
        return True

    def leave(self, job: Job) -> None:
        """Note that a job has ended; its row keeps its text until it is needed.

        Raises:
            KvcError: as calls of sessions.
        """
        row = job.row
        assert row is not None, "the job has a row"
        del self.jobs[row]
        self.idle[row] = None
        if job.request.pictures:
            self._forget_row(row)
            return
        self.idle[row] = self._texts.in_row(job.tokens, job.adapter)
        self.shrink(self._room)

    def shrink(self, nbytes: int) -> None:
        """Forget texts that have ended until the others take no more than some bytes.

        The one that was used longest ago goes first.

        Raises:
            KvcError: as calls of sessions.
        """
        while self.remembered_nbytes > max(nbytes, 0):
            held: list[tuple[int, Donor]] = [
                (text.used, row) for row, text in self.idle.items() if text is not None
            ]
            held += [(text.used, text) for text in self._texts.parked]
            _, oldest = min(held, key=lambda one: one[0])
            if isinstance(oldest, int):
                self._forget_row(oldest)
            else:
                self._texts.close(oldest)

    def _forget_row(self, row: int) -> None:
        self.idle[row] = None
        self._rows.clear(row, PLAIN)

    def forget(self) -> None:
        """Note that all rows are empty; jobs must have left."""
        self.idle = dict.fromkeys(range(self._rows.size))

    def close(self) -> None:
        """Close the parked sessions."""
        for text in list(self._texts.parked):
            self._texts.close(text)

    def counts(self) -> Mapping[str, int]:
        """Return how many jobs of each client run."""
        found: dict[str, int] = {}
        for job in self.jobs.values():
            found[job.request.client] = found.get(job.request.client, 0) + 1
        return found
