"""`TextChoice`: one continuation of a text, read from the updates of the scheduler."""

from collections.abc import Sequence

from kvc.schema.frozen import frozen
from kvc.serving.models.token_texts import TokenTexts
from kvc.serving.openai.chat_answers import finish_reason
from kvc.serving.openai.logprobs import Offsets, completion_logprobs
from kvc.serving.scheduling import Update


@frozen
class TextDelta:
    """What is new of a continuation.

    Attributes:
        text: new text.
        logprobs: the log probabilities of new tokens, None without them.
        finish: why the answer ended, None while it goes on.
    """

    text: str
    logprobs: dict[str, object] | None = None
    finish: str | None = None


class TextChoice:
    """Reads one continuation."""

    def __init__(
        self, begin: str, texts: TokenTexts | None, prompt: Sequence[int] = ()
    ) -> None:
        """Begin a continuation.

        Args:
            begin: the text that it begins with, such as the prompt.
            texts: the texts of tokens, None without log probabilities.
            prompt: the tokens of the prompt.
        """
        self._begin, self._texts = begin, texts
        self._offsets = None if texts is None else Offsets(texts, prompt, len(begin))
        self._whole: list[str] = []
        self._logprobs: list[dict[str, object]] = []
        self._finish: str | None = None

    def take(self, update: Update) -> TextDelta:
        """Return what is new in an update, which is not of a failure."""
        logs = None
        if self._texts is not None and self._offsets is not None and update.logprobs:
            logs = completion_logprobs(update.logprobs, self._texts, self._offsets)
        text, self._begin = self._begin + update.text, ""
        if update.ending is not None:
            self._finish = finish_reason(update.ending)
        return TextDelta(text, logs, self._finish)

    def keep(self, update: Update) -> None:
        """Keep what is new in an update for `choice`."""
        new = self.take(update)
        self._whole.append(new.text)
        if new.logprobs is not None:
            self._logprobs.append(new.logprobs)

    def choice(self, index: int) -> dict[str, object]:
        """Return the finished answer as a choice of an object text_completion."""
        return {
            "index": index,
            "text": "".join(self._whole),
            "logprobs": self._all_logprobs(),
            "finish_reason": self._finish,
        }

    def _all_logprobs(self) -> dict[str, list[object]] | None:
        if self._texts is None:
            return None
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {
            name: [value for one in self._logprobs for value in _listed(one[name])]
            for name in names
        }


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []
