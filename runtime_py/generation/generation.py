"""`Generation`: tokens, or text, as they are made.

In: a source of tokens, a prompt, settings, all checked. Out: tokens or pieces of text,
why it stopped, and how fast it went. A token that has been handed out enters the
session only when the next one is asked for, so the last one never does: it is
`pending`.
"""

import time
from collections.abc import Callable, Generator, Iterator

from kvc.runtime.generation.answer import Answer, Reason
from kvc.runtime.generation.feeding import Pace
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.generation.sources import Source
from kvc.runtime.generation.spelling import Spelling
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import CacheOverflow


class Generation(Iterator[int]):
    """Tokens as they are made; `text()` gives text instead.

    The first token that is asked for runs the prompt. Whoever stops asking leaves the
    session usable. When it has ended, was closed or failed, the session holds the
    prompt and the answer but for `pending`; to go on, give `pending` and what is to
    follow as the next prompt.

    Attributes:
        settings: what it goes by.
        prefill, decode: tokens run, and their pace: for decode, from one token to the
            next without what the caller does in between.
        time_to_first_token: seconds from asking for it, None before.
    """

    def __init__(
        self,
        source: Source,
        prompt: tuple[int, ...],
        settings: GenerationSettings,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        self.settings = settings
        self.decode = Pace()
        self.time_to_first_token: float | None = None
        self._source = source
        self._answer = Answer(prompt, source.start, settings, tokenizer)
        self._making = self._make()

    @property
    def tokens(self) -> list[int]:
        """Return all tokens that were handed out so far."""
        return self._answer.tokens

    @property
    def reason(self) -> Reason | None:
        """Return why it ended; None while it goes on, and where it was left or failed.

        "stop": the model made a stop token. "stop_string": the text has a stop string,
        which the last token completes. "length": the cache is full. "max_tokens": the
        most tokens that were asked for, by number or by `max_length`.
        """
        return self._answer.reason

    @property
    def prefill(self) -> Pace:
        """Return how many tokens of the prompt have run, and their pace."""
        return self._source.prefill

    @property
    def drafted(self) -> int:
        """Return how many tokens a draft has guessed that the target has checked."""
        return self._source.drafted.tokens

    @property
    def accepted(self) -> int:
        """Return how many of the guesses were right."""
        return self._source.drafted.accepted

    @property
    def acceptance(self) -> float:
        """Return the share of the guesses that were right, 0 when there were none."""
        return self._source.drafted.acceptance

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that are not in the session.

        As a rule the last token of the answer, or the stop token that ended it. After
        an interrupted prompt, the rest of it.
        """
        return self._answer.pending(self._source.held)

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> int:
        return next(self._making)

    def text(self) -> Iterator[str]:
        """Return the text in pieces, each of complete characters, none empty.

        It begins with the text of all tokens handed out so far that has not been given
        as text yet. A stop string is left out, and text is held back only while one may
        still begin in it.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
        """
        return self._spell(self._answer.spelling())

    def close(self) -> None:
        """End it here; closing twice is safe."""
        self._making.close()

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.reason or 'goes on'}>"

    def _spell(self, spelling: Spelling) -> Iterator[str]:
        while True:
            spelling.spell(self.tokens)
            if piece := spelling.take():
                yield piece
            if next(self, None) is None:
                break
        if piece := spelling.finish():
            yield piece

    def _make(self) -> Generator[int, None, None]:
        if self.reason is not None:  # no token was asked for
            return
        try:
            yield from self._run()
        finally:
            self._source.settle()
            self._source.leave_pending(self.pending)

    def _run(self) -> Generator[int, None, None]:
        began = time.perf_counter()
        token = self._source.begin(self._answer.prompt)
        self.time_to_first_token = time.perf_counter() - began
        while self._answer.take(token, self._source.room):
            self._source.leave_pending(self.pending)
            yield token
            if self.reason is not None:
                return
            began = time.perf_counter()
            try:
                token = self._source.follow(token, self._answer.wanted)
            except CacheOverflow:
                self._answer.reason = "length"
                return
            self.decode.tokens += 1
            self.decode.seconds += time.perf_counter() - began
