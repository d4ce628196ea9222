"""`Answer`: what follows one prompt, in its row of a session.

In: a prompt, its row, settings, logits at each step. Out: the token that is chosen,
whether it is handed out, why the answer ends, and its text.
"""

from collections.abc import Callable
from typing import Literal

from kvc.runtime.generation.choosing import Chooser, Logits
from kvc.runtime.generation.feeding import Row
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.generation.spelling import Spelling
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting

Reason = Literal["stop", "stop_string", "length", "max_tokens"]


class Answer:
    """An answer as it is made.

    Attributes:
        prompt: the tokens before it.
        chooser: chooses its tokens.
        stop_tokens: end it.
        tokens: that were handed out.
        chosen: all tokens, a stop token too.
        reason: why it ended, None while it goes on. "stop": the model made a stop
            token. "stop_string": the text has a stop string, which the last token
            completes. "length": the cache is full. "max_tokens": the most tokens that
            were asked for, by number or by `max_length`.
    """

    def __init__(
        self,
        prompt: tuple[int, ...],
        row: Row,
        chooser: Chooser,
        settings: GenerationSettings,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        """Begin after a prompt; the row says how much of prompt and answer it holds.

        Raises:
            BadSetting: the prompt is longer than `max_length` allows.
        """
        self._most = _most_tokens(settings, (row.start or 0) + len(prompt))
        self._row = row
        self.prompt, self.chooser = prompt, chooser
        self.stop_tokens = frozenset(settings.stop_tokens)
        self.tokens: list[int] = []
        self.chosen: list[int] = []
        self.reason: Reason | None = "max_tokens" if self._most == 0 else None
        self._stop_strings, self._tokenizer = settings.stop_strings, tokenizer
        self._spelling = self._new_spelling() if settings.stop_strings else None

    @property
    def last(self) -> int | None:
        """Return the token that is to be fed next, None when the answer has ended."""
        return self.tokens[-1] if self.reason is None else None

    @property
    def wanted(self) -> int | None:
        """Return how many more tokens may be made, None for no limit."""
        return None if self._most is None else self._most - len(self.tokens)

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that are not in the session."""
        held = self._row.fed
        return (*self.prompt[held:], *self.chosen[max(0, held - len(self.prompt)) :])

    def choose(self, logits: Logits) -> int | None:
        """Return the token that comes next, None where the answer has ended.

        Raises:
            UnusableLogits: there is nothing to choose from.
        """
        return self.chooser.choose(logits) if self.reason is None else None

    def take(self, token: int | None) -> int | None:
        """Take a token that was chosen; return it, None where it is not handed out.

        Why it is the last one is known before it goes out: the caller may not come back
        for another.
        """
        if token is None:
            return None
        self.chosen.append(token)
        if token in self.stop_tokens:
            self.reason = "stop"
            return None
        self.tokens.append(token)
        self.reason = self._limit()
        return token

    def spelling(self) -> Spelling:
        """Return what spells the answer piece by piece, the same each time.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
        """
        if self._spelling is None:
            self._spelling = self._new_spelling()
        return self._spelling

    def text(self) -> str:
        """Return all of the text so far, cut before a stop string.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: as `spelling`.
        """
        spelling = self._new_spelling()
        spelling.spell(self.tokens)
        return spelling.take() + spelling.finish()

    def _new_spelling(self) -> Spelling:
        return Spelling(self._tokenizer(), self.prompt, self._stop_strings)

    def _limit(self) -> Reason | None:
        """Return why the token that is about to be handed out is the last one."""
        if self._stop_strings:
            spelling = self.spelling()
            spelling.spell(self.tokens)
            if spelling.stopped:
                return "stop_string"
        if self.wanted == 0:
            return "max_tokens"
        room = self._row.room
        return "length" if room is not None and room < 1 else None


def _most_tokens(settings: GenerationSettings, held: int) -> int | None:
    """Return how many tokens may be made after those held, None for no limit.

    Raises:
        BadSetting: the prompt is longer than `max_length` allows.
    """
    if settings.max_length is None:
        return settings.max_tokens
    if settings.max_length <= held:
        raise BadSetting(
            name="max_length",
            expected=f"more than {held}, which are there with the prompt (max_tokens "
            "counts the answer alone)",
            found=settings.max_length,
        )
    return settings.max_length - held
