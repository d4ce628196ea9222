"""Log probabilities of tokens, as the two endpoints of OpenAI tell them."""

import math
from collections.abc import Sequence
from typing import Final

from kvc.runtime.generation import TokenLogprob
from kvc.serving.models.token_texts import TokenTexts

_NEVER: Final = -9999.0  # what OpenAI tells for a probability of 0


def chat_logprobs(
    found: Sequence[TokenLogprob], texts: TokenTexts
) -> list[dict[str, object]]:
    """Return log probabilities in the form of chat completions."""
    return [
        {
            **_entry(one.token, one.logprob, texts),
            "top_logprobs": [_entry(*pair, texts) for pair in one.top],
        }
        for one in found
    ]


def _entry(token: int, logprob: float, texts: TokenTexts) -> dict[str, object]:
    raw = texts.raw(token)
    return {
        "token": texts.text(token),
        "logprob": finite(logprob),
        "bytes": None if raw is None else list(raw),
    }


class Offsets:
    """Tells where in the text of an answer each token begins."""

    def __init__(self, texts: TokenTexts, prompt: Sequence[int], begin: int) -> None:
        """Begin before the first token.

        Args:
            texts: the texts of tokens.
            prompt: the tokens of the prompt.
            begin: how many characters the text has before the first token.
        """
        self._stream, self._next = texts.stream(prompt), begin

    def of(self, token: int) -> int:
        """Add a token; return how many characters are complete before it."""
        found = self._next
        self._next += len(self._stream.push(token))
        return found


def completion_logprobs(
    found: Sequence[TokenLogprob], texts: TokenTexts, offsets: Offsets
) -> dict[str, object]:
    """Return log probabilities in the form of completions.

    Args:
        found: the log probabilities.
        texts: the texts of tokens.
        offsets: where the text has tokens.
    """
    return {
        "tokens": [texts.name(one.token) for one in found],
        "token_logprobs": [finite(one.logprob) for one in found],
        "top_logprobs": [
            {texts.name(token): finite(value) for token, value in one.top}
            for one in found
        ],
        "text_offset": [offsets.of(one.token) for one in found],
    }


def finite(logprob: float) -> float:
    """Return a log probability as JSON can have it."""
    return logprob if math.isfinite(logprob) else _NEVER
