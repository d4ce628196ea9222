"""`Generation`: tokens, or text, as they are made.

In: a session, a prompt, settings, all checked. Out: tokens or pieces of text, why it
stopped, and how fast it went. A token that has been handed out enters the session only
when the next one is asked for, so the last one never does: it is `pending`.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Literal

from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.feeding import Feeder, Pace
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.generation.spelling import Spelling
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting, CacheOverflow

Reason = Literal["stop", "stop_string", "length", "max_tokens"]


class Generation(Iterator[int]):
    """Tokens as they are made; `text()` gives text instead.

    The first token that is asked for runs the prompt. Whoever stops asking leaves the
    session usable. When it has ended, was closed or failed, the session holds the
    prompt and the answer but for `pending`; to go on, give `pending` and what is to
    follow as the next prompt.

    Attributes:
        settings: what it goes by.
        tokens: all that were handed out so far.
        reason: why it ended; None while it goes on, and where it was left or failed.
            "stop": the model made a stop token. "stop_string": the text has a stop
            string, which the last token completes. "length": the cache is full.
            "max_tokens": the most tokens that were asked for, by number or by
            `max_length`.
        prefill, decode: tokens run, and their pace: for decode, from one token to the
            next without what the caller does in between.
        time_to_first_token: seconds from asking for it, None before.
    """

    def __init__(
        self,
        feeder: Feeder,
        prompt: tuple[int, ...],
        history: Sequence[int],
        settings: GenerationSettings,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        self.settings = settings
        self.tokens: list[int] = []
        self.reason: Reason | None = None
        self.decode = Pace()
        self.time_to_first_token: float | None = None
        self._feeder, self._prompt = feeder, prompt
        self._tokenizer = tokenizer
        self._spelling: Spelling | None = None
        if settings.stop_strings:
            self._new_spelling()
        self._stop_tokens = frozenset(settings.stop_tokens)
        self._most = _most_tokens(feeder, len(prompt), settings)
        self._chooser = Chooser(settings, (*history, *prompt))
        self._chosen: list[int] = []
        self._making = self._make()

    @property
    def prefill(self) -> Pace:
        """Return how many tokens of the prompt have run, and their pace."""
        return self._feeder.prefill

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that are not in the session.

        As a rule the last token of the answer, or the stop token that ended it. After
        an interrupted prompt, the rest of it.
        """
        return (*self._prompt, *self._chosen)[self._feeder.fed :]

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
        return self._spell(self._spelling or self._new_spelling())

    def close(self) -> None:
        """End it here; closing twice is safe."""
        self._making.close()

    def _new_spelling(self) -> Spelling:
        stops = self.settings.stop_strings
        self._spelling = Spelling(self._tokenizer(), self._prompt, stops)
        return self._spelling

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
        if self._most == 0:
            self.reason = "max_tokens"
            return
        began = time.perf_counter()
        logits = self._feeder.feed_prompt(self._prompt)
        token = self._choose(logits)
        self.time_to_first_token = time.perf_counter() - began
        while token not in self._stop_tokens:
            self.tokens.append(token)
            # Known before the token goes out: the caller may not come back for another.
            self.reason = self._limit()
            yield token
            if self.reason is not None:
                return
            began = time.perf_counter()
            try:
                logits = self._feeder.feed(token)
            except CacheOverflow:
                self.reason = "length"
                return
            token = self._choose(logits)
            self.decode.tokens += 1
            self.decode.seconds += time.perf_counter() - began
        self.reason = "stop"

    def _choose(self, logits: Logits) -> int:
        token = self._chooser.choose(logits)
        self._chosen.append(token)
        return token

    def _limit(self) -> Reason | None:
        """Return why the token that is about to be handed out is the last one."""
        if self.settings.stop_strings and self._spelling is not None:
            self._spelling.spell(self.tokens)
            if self._spelling.stopped:
                return "stop_string"
        if len(self.tokens) == self._most:
            return "max_tokens"
        room = self._feeder.room
        return "length" if room is not None and room < 1 else None


def _most_tokens(
    feeder: Feeder, prompt: int, settings: GenerationSettings
) -> int | None:
    """Return how many tokens may be made, None for no limit.

    Raises:
        BadSetting: the prompt is longer than `max_length` allows.
    """
    if settings.max_length is None:
        return settings.max_tokens
    left = settings.max_length - (feeder.start or 0) - prompt
    if left <= 0:
        raise BadSetting(
            name="max_length",
            expected=f"more than {settings.max_length - left}, which are there with "
            "the prompt (max_tokens counts the answer alone)",
            found=settings.max_length,
        )
    return left
