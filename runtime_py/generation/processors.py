"""Processors: change the logits of a step, before a token is chosen.

In: at each step the tokens so far, int64 [n], and logits float32 [vocab]. Out: logits
float32 [vocab], -inf for a token that must not follow. The operations and their order
are those of transformers 5 (generation/logits_process.py); penalties of frequency and
presence are those of OpenAI's API, which count the answer's tokens alone. A processor
depends on the tokens alone, not on earlier calls: so it is right after a rewind, in a
batch, and for a draft's guesses.
"""

from collections.abc import Callable, Iterable

import numpy as np

from kvc.runtime.generation.logits import Ids, Logits, Processor
from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import BadSetting


def forced_tokens(
    settings: GenerationSettings, held: int, most: int | None
) -> Callable[[int], int | None] | None:
    """Return a function from an index of the answer to the token that is forced there.

    The function returns None for an index at which no token is forced. Instead of a
    function that always does, None is returned.

    Args:
        settings: the settings that name forced tokens.
        held: the number of tokens before the answer.
        most: the greatest number of tokens of the answer, None for no limit.
    """
    first = settings.forced_bos_token_id if held == 1 else None
    last = min(settings.forced_eos_token_id, default=None)
    if first is None and last is None:
        return None

    def forced(place: int) -> int | None:
        if last is not None and most is not None and place == most - 1:
            return last
        return first if place == 0 else None

    return forced


def processors_of(
    settings: GenerationSettings, start: int, held: int
) -> list[Processor]:
    """Return the processors of an answer, in the order of transformers.

    Args:
        settings: the settings of the generation.
        start: how many of the tokens so far stand before the answer.
        held: how many tokens of session and prompt stand before the answer; more than
            `start` if the caller has not named the session's tokens.
    """
    made: list[Processor] = []
    biases = (settings.sequence_bias, settings.logit_bias)
    made += [_add_bias(one) for one in biases if one]
    if settings.repetition_penalty != 1:
        made.append(_penalize_repeated(settings.repetition_penalty))
    if settings.frequency_penalty or settings.presence_penalty:
        made.append(_penalize_answered(settings, start))
    if settings.no_repeat_ngram_size:
        made.append(_without_repeated(settings.no_repeat_ngram_size))
    # As in transformers, a bad word that is a stop token alone may end the answer.
    stops = {(token,) for token in settings.stop_tokens}
    if bad := [word for word in settings.bad_words_ids if word not in stops]:
        made.append(_add_bias([(word, -np.inf) for word in bad]))
    least = settings.min_new_tokens or settings.min_length - held
    if least > 0 and settings.stop_tokens:
        made.append(_hiding(settings.stop_tokens, lambda place: place < least, start))
    if settings.suppress_tokens:
        made.append(_hiding(settings.suppress_tokens, lambda _: True, start))
    if settings.begin_suppress_tokens:
        first = int(held == 1 and settings.forced_bos_token_id is not None)
        hidden = settings.begin_suppress_tokens
        made.append(_hiding(hidden, lambda place: place == first, start))
    return [*made, *settings.processors]


def penalize(logits: Logits, seen: Ids, penalty: float) -> Logits:
    """Return logits in which tokens that occurred before are less likely.

    Args:
        logits: float32 [vocab].
        seen: the earlier tokens. A model may read tokens that it never generates: those
            without a logit are left out.
        penalty: the strength. Above 1 makes the tokens less likely, below 1 makes them
            more likely.
    """
    seen = seen[seen < logits.size]
    found = logits[seen].astype(np.float64)
    weakened = logits.copy()
    with np.errstate(over="ignore"):
        weakened[seen] = np.where(found < 0, found * penalty, found / penalty)
    return weakened


def _penalize_repeated(penalty: float) -> Processor:
    return lambda tokens, logits: penalize(logits, tokens, penalty)


def _penalize_answered(settings: GenerationSettings, start: int) -> Processor:
    often, once = settings.frequency_penalty, settings.presence_penalty

    def process(tokens: Ids, logits: Logits) -> Logits:
        answered = tokens[start:]
        counts = np.bincount(answered[answered < logits.size], minlength=logits.size)
        taken = often * counts + once * (counts > 0)
        return (logits - taken).astype(np.float32)

    return process


def _without_repeated(size: int) -> Processor:
    """Forbid tokens that would end a sequence of `size` tokens a second time."""

    def process(tokens: Ids, logits: Logits) -> Logits:
        if tokens.size < size:
            return logits
        # A sequence is forbidden whose first tokens are the last of the text.
        is_same = np.ones(tokens.size - size + 1, np.bool_)
        for at, token in enumerate(tokens[tokens.size + 1 - size :]):
            is_same &= tokens[at : at + is_same.size] == token
        return _without(logits, tokens[size - 1 :][is_same])

    return process


def _add_bias(biases: Iterable[tuple[tuple[int, ...], float]]) -> Processor:
    """Add a number to the logit of the last of some tokens, where the others precede.

    Raises, when it is called:
        BadSetting: a biased token is not in the vocabulary.
    """
    by_tokens = dict(biases)
    alone = {tokens[0]: bias for tokens, bias in by_tokens.items() if len(tokens) == 1}
    single, added = np.array(list(alone), np.int64), np.array(list(alone.values()))
    longer = [(np.array(t), b) for t, b in by_tokens.items() if len(t) > 1]
    greatest = max((max(tokens) for tokens in by_tokens), default=0)

    def process(tokens: Ids, logits: Logits) -> Logits:
        if greatest >= logits.size:
            raise BadSetting(
                name="sequence_bias, logit_bias or bad_words_ids",
                expected=f"tokens below {logits.size}, the model's vocabulary",
                found=greatest,
            )
        bias = np.zeros(logits.size, np.float32)
        bias[single] += added
        for sequence, number in longer:
            before = sequence[:-1]
            if np.array_equal(tokens[-before.size :], before):
                bias[sequence[-1]] += number
        made: Logits = logits + bias
        return made

    return process


def _hiding(
    hidden: Iterable[int], is_at: Callable[[int], bool], start: int
) -> Processor:
    """Forbid tokens at those indices of the answer for which `is_at` is true."""
    ids = np.array(list(hidden), np.int64)

    def process(tokens: Ids, logits: Logits) -> Logits:
        return _without(logits, ids) if is_at(tokens.size - start) else logits

    return process


def _without(logits: Logits, ids: Ids) -> Logits:
    left = logits.copy()
    left[ids[ids < logits.size]] = -np.inf
    return left
