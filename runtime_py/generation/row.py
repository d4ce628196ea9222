"""`Row`: one prompt of a batch and its answer, apart from how they are run.

In: the logits behind the row's last token, float32 [vocab]. Out: the token that comes
next, and why the row ends. It chooses just as a generation of one row does.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.generation.spelling import Spelling
from kvc.runtime.tokenizers import Tokenizer

Reason = Literal["stop", "stop_string", "length", "max_tokens"]


class Row:
    """A row of a batch.

    Attributes:
        prompt: its tokens.
        tokens: of its answer, those that were handed out.
        chosen: of its answer, all, a stop token too.
        reason: why it ended, None while it goes on.
    """

    def __init__(
        self,
        prompt: tuple[int, ...],
        history: Sequence[int],
        settings: GenerationSettings,
        most: int | None,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        """Begin behind a prompt; `most` tokens may be made, None for no limit."""
        self.prompt = prompt
        self.tokens: list[int] = []
        self.chosen: list[int] = []
        self.reason: Reason | None = "max_tokens" if most == 0 else None
        self._settings, self._most, self._tokenizer = settings, most, tokenizer
        self._stop_tokens = frozenset(settings.stop_tokens)
        self._chooser = Chooser(settings, (*history, *prompt))
        self._spelling = self._new_spelling() if settings.stop_strings else None

    def take(self, logits: Logits, room: int | None) -> int | None:
        """Choose a token; return it if it is handed out, None if it ends the row.

        Args:
            logits: float32 [vocab], behind the row's last token.
            room: how many more tokens its cache takes, None for no limit.

        Raises:
            UnusableLogits: they hold NaN, or nothing to choose from.
        """
        token = self._chooser.choose(logits)
        self.chosen.append(token)
        if token in self._stop_tokens:
            self.reason = "stop"
            return None
        self.tokens.append(token)
        self.reason = self._limit(room)
        return token

    def text(self) -> str:
        """Return the text of the answer so far, cut before a stop string.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
        """
        spelling = self._new_spelling()
        spelling.spell(self.tokens)
        return spelling.take() + spelling.finish()

    def _new_spelling(self) -> Spelling:
        return Spelling(self._tokenizer(), self.prompt, self._settings.stop_strings)

    def _limit(self, room: int | None) -> Reason | None:
        """Return why the token that has just been chosen is the last one."""
        if self._spelling is not None:
            self._spelling.spell(self.tokens)
            if self._spelling.stopped:
                return "stop_string"
        if len(self.tokens) == self._most:
            return "max_tokens"
        return "length" if room is not None and room < 1 else None
