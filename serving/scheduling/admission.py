"""`Admission`: gives a waiting request a row, and what is known of its prompt already.

In: a job, the rows, what they and parked sessions hold. Out: a row that holds as many
of the prompt's first tokens as can be had without reading them; or no row, if there is
none, if its bytes do not fit, or if another request is about to read the same tokens.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from kvc.serving.scheduling.job import Job
from kvc.serving.scheduling.memory import RowMemory
from kvc.serving.scheduling.rows import Chosen, Rows
from kvc.serving.scheduling.texts import Text, Texts, Tokens, common_tokens

_LEAST = 8  # fewer shared tokens are read again
_WORTH = 32  # tokens for which a request waits until another has read them


class Admission:
    """Places requests in rows.

    Attributes:
        jobs: the job that each busy row runs.
        idle: the text that each other row still holds, None for an empty row.
    """

    def __init__(
        self, rows: Rows, memory: RowMemory, texts: Texts, nbytes: int | None
    ) -> None:
        """Begin with empty rows.

        Args:
            rows: the rows.
            memory: the bytes that a row takes.
            texts: the parked sessions.
            nbytes: the greatest number of bytes that rows and parked sessions take.
        """
        self._rows, self._memory, self._texts = rows, memory, texts
        self._most = nbytes
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
        request = job.request
        count = len(request.prompt)
        most = request.settings.max_tokens
        if request.settings.max_length is not None and most is None:
            most = max(request.settings.max_length - count, 0)
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
        if not self.idle or not self._fits(self.needed(job)):
            return False
        prompt = np.array(job.request.prompt, np.int64)
        adapter: Chosen = (job.request.adapter, job.request.scale)
        donors = [] if job.request.pictures else self._donors(prompt, adapter)
        shared = donors[0][0] if donors else 0
        if not job.request.pictures and self._is_coming(prompt, adapter, shared):
            return False
        job.reserved = self.needed(job)
        row, reused = self._placed(prompt, adapter, donors)
        self.idle.pop(row)
        self.jobs[row] = job
        try:
            job.begin(row, reused, self._rows.capacity)
        except BaseException:
            del self.jobs[row]
            self.idle[row] = None
            raise
        return True

    def _fits(self, needed: int) -> bool:
        """Free remembered texts for a row of some bytes; tell whether it fits."""
        if self._most is None:
            return True
        left = self._most - sum(job.reserved for job in self.jobs.values())
        if needed > left:
            return False
        for row, text in self.idle.items():
            if needed + self.remembered_nbytes <= left:
                return True
            if text is not None and text.nbytes:
                self._rows.clear(row, text.adapter)
                self.idle[row] = None
        self._texts.shrink(left - needed)
        return True

    def _donors(self, prompt: Tokens, adapter: Chosen) -> list[tuple[int, object]]:
        """Return (shared tokens, row or parked text) of texts that begin alike.

        The most shared first. The last token of the prompt is always read.
        """
        most = prompt.size - 1
        found: list[tuple[int, object]] = []
        for row, tokens, own in self._held():
            if own == adapter:
                found.append((min(common_tokens(tokens, prompt), most), row))
        text, shared = self._texts.find(prompt, adapter)
        if text is not None:
            found.append((min(shared, most), text))
        enough = [one for one in found if one[0] >= _LEAST]
        return sorted(enough, key=lambda one: -one[0])

    def _held(self) -> Iterator[tuple[int, Tokens, Chosen]]:
        """Yield each row with the tokens that it holds and their adapter."""
        for row, text in self.idle.items():
            if text is not None:
                yield row, text.tokens, text.adapter
        for row, job in self.jobs.items():
            request = job.request
            if not request.pictures:
                tokens = np.array(job.tokens, np.int64)
                yield row, tokens, (request.adapter, request.scale)

    def _is_coming(self, prompt: Tokens, adapter: Chosen, shared: int) -> bool:
        """Tell whether a job is reading many more tokens of a prompt."""
        for job in self.jobs.values():
            request = job.request
            same = (request.adapter, request.scale) == adapter
            if not same or request.pictures or not job.reads:
                continue
            other = np.array(request.prompt, np.int64)
            if min(common_tokens(other, prompt), prompt.size - 1) >= shared + _WORTH:
                return True
        return False

    def _placed(
        self, prompt: Tokens, adapter: Chosen, donors: list[tuple[int, object]]
    ) -> tuple[int, int]:
        """Return a row for a prompt, and how many of its first tokens the row holds."""
        for shared, donor in donors:
            taken = isinstance(donor, int) and donor in self.idle
            if taken and self._used_up(donor, shared) and self._rows.cut(donor, shared):  # type: ignore[arg-type]
                return donor, shared  # type: ignore[return-value]
        row = self._free_row()
        # Again: what the row held is parked now, and may have replaced others.
        for shared, donor in self._donors(prompt, adapter) if donors else []:
            if self._copied(donor, row, shared):
                return row, shared
        self._rows.clear(row, adapter)
        return row, 0

    def _used_up(self, row: object, shared: int) -> bool:
        """Tell whether a row's text is of no more use than what a prompt shares."""
        text = self.idle[row]  # type: ignore[index]
        return text is not None and 2 * shared >= text.tokens.size

    def _copied(self, donor: object, row: int, shared: int) -> bool:
        if isinstance(donor, Text):
            session = self._texts.use(donor)
            return self._rows.take(row, session, donor.adapter, shared)
        assert isinstance(donor, int)
        return self._rows.copy(donor, row, shared)

    def _free_row(self) -> int:
        """Return the row to use; what it holds is parked if there is room for it."""
        empty = [row for row, text in self.idle.items() if text is None]
        if empty:
            return min(empty, key=self._apart)
        row = min(self.idle, key=lambda row: self.idle[row].used)  # type: ignore[union-attr]
        self.park(row)
        return row

    def _apart(self, row: int) -> tuple[int, int]:
        """Return how far a row is from busy ones, and the row."""
        return min((abs(row - busy) for busy in self.jobs), default=0), row

    def park(self, row: int) -> None:
        """Move what an idle row holds to a session of its own, or forget it."""
        text = self.idle[row]
        if (
            text is not None
            and text.tokens.size
            and self._texts.keeps(text.tokens.size)
        ):
            self._texts.park(text.tokens, text.adapter, self._rows.give(row))
        self.idle[row] = None

    def move(self, job: Job, row: int) -> bool:
        """Move a job to an idle row, whose text is parked or forgotten."""
        source = job.row
        assert source is not None, "the job has a row"
        self.park(row)
        if not self._rows.copy(source, row, job.held):
            return False
        del self.jobs[source], self.idle[row]
        self.jobs[row], self.idle[source] = job, None
        job.row = row
        return True

    def leave(self, job: Job, uses: int = 0) -> None:
        """Note that a job has ended; its row keeps its text until it is needed.

        `uses` is greater the later the job ended.
        """
        row, request = job.row, job.request
        assert row is not None, "the job has a row"
        del self.jobs[row]
        if request.pictures:
            self.idle[row] = None
            return
        tokens = np.array(job.tokens, np.int64)
        adapter: Chosen = (request.adapter, request.scale)
        nbytes = self._memory.nbytes(tokens.size)
        self.idle[row] = Text(tokens, adapter, None, nbytes, uses)

    def forget(self) -> None:
        """Note that all rows are empty; jobs must have left."""
        self.idle = dict.fromkeys(range(self._rows.size))

    def counts(self) -> Mapping[str, int]:
        """Return how many jobs of each client run."""
        found: dict[str, int] = {}
        for job in self.jobs.values():
            found[job.request.client] = found.get(job.request.client, 0) + 1
        return found
