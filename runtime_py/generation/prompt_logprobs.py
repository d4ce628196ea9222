"""Log probabilities of the tokens of prompts.

In: a session of a program with a method that returns the logits of every token, and
prompts. Out: the log probability of each token after the first, for each row.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.calls.chunks import chunk_sizes, plan_chunks
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.log_probabilities import (
    TokenLogprob,
    log_probabilities,
    token_logprob,
)
from kvc.runtime.generation.logits import Logits
from kvc.runtime.generation.session_rows import of_rows
from kvc.runtime.sessions.methods import require_all_logits
from kvc.runtime.sessions.session import Session


class WatchedFeeder(Feeder):
    """Feeds prompts by the method that returns the logits of every token.

    Attributes:
        logprobs: for each row the log probabilities of those tokens of the prompt that
            have run, but for the first, which no logits precede.
    """

    def __init__(self, session: Session, rows: int, count: int) -> None:
        """Find the methods of a session of `rows` rows.

        Args:
            session: the session.
            rows: the number of prompts.
            count: how many of the likeliest tokens to name at each place.

        Raises:
            UnknownName: the program lacks a role.
            BadSetting: as `Feeder`.
            Poisoned, Busy, Closed, Forked: as `Session.call`.
        """
        super().__init__(session, rows)
        method = require_all_logits(session, "prompt_logprobs")
        (method,) = of_rows([method], rows)
        self._all = chunk_sizes(method, session.symbols, session.longest_call)
        self._found: list[list[TokenLogprob]] = [[] for _ in range(rows)]
        self.logprobs = self._found
        self._count = count

    def feed_prompts(self, prompts: Sequence[Sequence[int]]) -> Logits:
        """Run prompts in chunks; return the logits after the last token of each prompt.

        Raises:
            UnusableLogits: the logits of a token hold NaN, or only infinities.
            StateMismatch, ExecutionError: as `Feeder.feed_prompts`.
        """
        last, at = np.zeros((0, 0), np.float32), 0
        longest = max(map(len, prompts))
        for chunk in plan_chunks(longest, [self._all], self._decode):
            parts = [prompt[at : at + chunk.count] for prompt in prompts]
            began = time.perf_counter()
            flat = self.run(chunk.method, parts)
            self.prefill.seconds += time.perf_counter() - began
            self.prefill.tokens += sum(map(len, parts))
            logits = flat.reshape(len(prompts), -1, flat.shape[-1])
            last = last if last.size else np.zeros_like(logits[:, 0])
            for row, part in enumerate(parts):
                if part:
                    self._note(row, prompts[row][at + 1 :], logits[row, : len(part)])
                    last[row] = logits[row, len(part) - 1]
            at += chunk.count
        return last

    def _note(
        self, row: int, following: Sequence[int], logits: npt.NDArray[np.float32]
    ) -> None:
        for each, token in zip(logits, following, strict=False):  # the last has none
            (exact,) = log_probabilities(each[None])
            self._found[row].append(token_logprob(exact, token, self._count))
