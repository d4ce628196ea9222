"""`BatchGeneration`: the answers to several prompts, a row of a session for each.

In: a session, prompts, settings, all checked. Out: at each step one more token of each
row that goes on, why rows ended, and how fast it went. As in a generation of one row, a
token that has been handed out enters the session only when the next is asked for.
"""

import time
from collections.abc import Generator, Iterator, Sequence

from kvc.runtime.generation.answer import Answer, Reason
from kvc.runtime.generation.batch_feeding import BatchFeeder
from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.feeding import Pace
from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import CacheOverflow

Step = tuple[int | None, ...]


class BatchGeneration(Iterator[Step]):
    """Tokens of all rows as they are made; `texts()` gives texts instead.

    Each step is a tuple with the new token of each row, None for one that has ended.
    The first step that is asked for runs the prompts. Rows end by themselves, and are
    not touched from then on; iteration ends with the last of them. Whoever stops asking
    leaves the session usable. To go on, give for each row its `pending` and what is to
    follow as the next prompt.

    Attributes:
        settings: what it goes by; row r chooses by `seed` + r.
        prefill, decode: tokens run of all rows, and their pace: for decode, from one
            step to the next without what the caller does in between.
        time_to_first_token: seconds from asking for the first step, None before.
    """

    def __init__(
        self,
        feeder: BatchFeeder,
        rows: Sequence[Answer],
        choosers: Sequence[Chooser],
        settings: GenerationSettings,
    ) -> None:
        """Begin; rows and what chooses their tokens are as many as the feeder has."""
        self.settings = settings
        self.decode = Pace()
        self.time_to_first_token: float | None = None
        self._feeder, self._rows = feeder, tuple(rows)
        self._choosers = tuple(choosers)
        self._making = self._make()

    @property
    def tokens(self) -> tuple[list[int], ...]:
        """Return the tokens of each row that were handed out so far."""
        return tuple(row.tokens for row in self._rows)

    @property
    def reason(self) -> tuple[Reason | None, ...]:
        """Return why each row ended, as `Generation.reason`; None while it goes on."""
        return tuple(row.reason for row in self._rows)

    @property
    def pending(self) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of prompt and answer of each row that the session lacks."""
        rows = zip(self._rows, self._feeder.fed, strict=True)
        return tuple(row.pending(fed) for row, fed in rows)

    @property
    def prefill(self) -> Pace:
        """Return how many tokens of the prompts have run, and their pace."""
        return self._feeder.prefill

    def __iter__(self) -> "BatchGeneration":
        return self

    def __next__(self) -> Step:
        return next(self._making)

    def texts(self) -> list[str]:
        """Return the text of each row's answer, after running what is left of it.

        A stop string is left out.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
            ExecutionError: as `Session.call`.
        """
        for _ in self:
            pass
        return [row.text() for row in self._rows]

    def close(self) -> None:
        """End it here; closing twice is safe."""
        self._making.close()

    def __repr__(self) -> str:
        rows = (f"{len(row.tokens)} {row.reason or 'goes on'}" for row in self._rows)
        return f"<BatchGeneration, tokens of each row: {', '.join(rows)}>"

    def _make(self) -> Generator[Step, None, None]:
        if not self._going():
            return
        try:
            yield from self._run()
        finally:
            self._feeder.leave_pending(self.pending)

    def _run(self) -> Generator[Step, None, None]:
        began = time.perf_counter()
        logits = self._feeder.feed_prompts([row.prompt for row in self._rows])
        step = self._choose(logits)
        self.time_to_first_token = time.perf_counter() - began
        while any(token is not None for token in step):
            self._feeder.leave_pending(self.pending)
            yield step
            if not self._going():
                return
            began = time.perf_counter()
            try:
                logits = self._feeder.feed(self._last_tokens())
            except CacheOverflow:
                self._end_full()
                return
            self.decode.tokens += len(self._going())
            step = self._choose(logits)
            self.decode.seconds += time.perf_counter() - began

    def _going(self) -> list[Answer]:
        return [row for row in self._rows if row.reason is None]

    def _choose(self, logits: Sequence[Logits]) -> Step:
        """Let each row that goes on choose; return what is handed out."""
        return tuple(map(self._choose_in, range(len(self._rows)), logits))

    def _choose_in(self, number: int, logits: Logits) -> int | None:
        """Return what a row hands out, None where it has ended or ends now."""
        row = self._rows[number]
        if row.reason is not None:
            return None
        token = self._choosers[number].choose(logits)
        return token if row.take(token, self._feeder.room(number)) else None

    def _last_tokens(self) -> list[int | None]:
        """Return the token of each row that the session lacks, None where it ended."""
        return [row.tokens[-1] if row.reason is None else None for row in self._rows]

    def _end_full(self) -> None:
        for row in self._going():
            row.reason = "length"
