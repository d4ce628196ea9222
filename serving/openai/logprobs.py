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
        "logprob": _finite(logprob),
        "bytes": None if raw is None else list(raw),
    }


def completion_logprobs(
    found: Sequence[TokenLogprob], texts: TokenTexts, offset: int
) -> tuple[dict[str, object], int]:
    """Return log probabilities in the form of completions.

    Args:
        found: the log probabilities.
        texts: the texts of tokens.
        offset: how many characters the text has before the first token.

    Returns:
        The object, and how many characters the text has after the last token.
    """
    tokens = [texts.text(one.token) for one in found]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    told: dict[str, object] = {
        "tokens": tokens,
        "token_logprobs": [_finite(one.logprob) for one in found],
        "top_logprobs": [
            {texts.text(token): _finite(value) for token, value in one.top}
            for one in found
        ],
        "text_offset": offsets,
    }
    return told, offset


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER
