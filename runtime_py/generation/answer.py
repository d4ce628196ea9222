"""`Answer`: what follows one prompt, apart from where its tokens come from.

In: a prompt, settings, each token as it is chosen. Out: whether it is handed out, and
why the answer ends.
"""

from collections.abc import Callable
from typing import Literal

from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.generation.spelling import Spelling
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting

Reason = Literal["stop", "stop_string", "length", "max_tokens"]


class Answer:
    """An answer as it is made.

    Attributes:
        prompt: the tokens before it.
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
        start: int | None,
        settings: GenerationSettings,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        """Begin behind a prompt that begins at `start`, None where nothing counts.

        Raises:
            BadSetting: the prompt is longer than `max_length` allows.
        """
        most = _most_tokens(settings, (start or 0) + len(prompt))
        self.prompt = prompt
        self.tokens: list[int] = []
        self.chosen: list[int] = []
        self.reason: Reason | None = "max_tokens" if most == 0 else None
        self._settings, self._most, self._tokenizer = settings, most, tokenizer
        self._stop_tokens = frozenset(settings.stop_tokens)
        self._spelling = self._new_spelling() if settings.stop_strings else None

    @property
    def wanted(self) -> int | None:
        """Return how many more tokens may be made, None for no limit."""
        return None if self._most is None else self._most - len(self.tokens)

    def take(self, token: int, room: int | None) -> bool:
        """Take the token that was chosen; tell whether it is handed out.

        Why it is the last one is known before it goes out: the caller may not come back
        for another.

        Args:
            token: the next one.
            room: how many more tokens the cache takes, None for no limit.
        """
        self.chosen.append(token)
        if token in self._stop_tokens:
            self.reason = "stop"
            return False
        self.tokens.append(token)
        self.reason = self._limit(room)
        return True

    def pending(self, held: int) -> tuple[int, ...]:
        """Return the tokens of prompt and answer after the first `held`."""
        fed = max(0, held - len(self.prompt))
        return (*self.prompt[held:], *self.chosen[fed:])

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
        return Spelling(self._tokenizer(), self.prompt, self._settings.stop_strings)

    def _limit(self, room: int | None) -> Reason | None:
        """Return why the token that is about to be handed out is the last one."""
        if self._settings.stop_strings:
            spelling = self.spelling()
            spelling.spell(self.tokens)
            if spelling.stopped:
                return "stop_string"
        if self.wanted == 0:
            return "max_tokens"
        return "length" if room is not None and room < 1 else None


def _most_tokens(settings: GenerationSettings, held: int) -> int | None:
    """Return how many tokens may be made behind those held, None for no limit.

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
