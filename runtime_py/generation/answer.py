"""`Answer`: the tokens that follow one prompt; `Spelling`: the text of an answer.

In: a prompt, the row of the session that runs it, settings, logits at each step. Out:
the sampled token, whether the caller gets the token, why the answer ends, and the
answer's text. The text comes in pieces of complete characters; a suffix that may begin
a stop string waits for the next tokens. The whole text is the same however it is cut
into pieces. The text ends before the first stop string that is complete. If several
stop strings become complete at the same character, the text ends before the longest of
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from kvc.runtime.generation.log_probabilities import (
    TokenLogprob,
    log_probabilities,
    token_logprob,
)
from kvc.runtime.generation.logits import Ids, Logits
from kvc.runtime.generation.matching import Matcher
from kvc.runtime.generation.processors import forced_tokens, processors_of
from kvc.runtime.generation.sampling import Chooser
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting

# `Row`: the token count of one row of a session in a generation.


@dataclass(slots=True)
class Row:
    """The number of tokens that one row of a session has run in a generation.

    Attributes:
        start: how many tokens the row had before the generation, None if unknown.
        capacity: how many tokens the row can have, None for no limit.
        fed: how many tokens the row has run in the generation.
    """

    start: int | None
    capacity: int | None
    fed: int = 0

    @property
    def room(self) -> int | None:
        """Return how many more tokens fit into the row, None for no limit."""
        return (
            None
            if self.start is None or self.capacity is None
            else self.capacity - self.start - self.fed
        )


# `Answer`: the tokens that follow one prompt; `Spelling`: their text.


EndReason = Literal["stop", "stop_string", "length", "max_tokens"]
Rules = Callable[[Logits, Sequence[int]], Logits]


class Answer:
    """One answer during its generation.

    Attributes:
        prompt: the tokens before the answer.
        chooser: samples the answer's tokens.
        stop_tokens: the tokens that end the answer.
        tokens: the tokens of the answer so far, without a stop token.
        chosen: all sampled tokens, including a stop token.
        logprobs: the log probabilities of sampled tokens, if the settings ask for them;
            a draft may be some tokens ahead of `tokens`.
        reason: why the answer ended, None while the answer goes on. "stop": the model
            generated a stop token. "stop_string": the last token completes a stop
            string in the text. "length": the cache is full. "max_tokens": the limit of
            `max_tokens` or `max_length` is reached.
        ends_when_full: whether the answer ends with the token that the full cache has
            no room for; if not, the call that would run it fails.
    """

    def __init__(
        self,
        prompt: tuple[int, ...],
        row: Row,
        settings: GenerationSettings,
        tokenizer: Callable[[], Tokenizer],
        history: Sequence[int] = (),
        number: int = 0,
        rules: Rules | None = None,
        matcher: Matcher | None = None,
    ) -> None:
        """Begin an empty answer after a prompt.

        Args:
            prompt: the tokens of the prompt, which the row does not hold yet.
            row: the row of the session that runs prompt and answer; `row.fed` counts
                the tokens that have run.
            settings: the settings of sampling.
            tokenizer: returns the tokenizer for the answer's text.
            history: the tokens that the row already holds before the prompt.
            number: the index of the row.
            rules: masks the logits of tokens that must not follow the answer so far.
            matcher: of the form that the answer must have.

        Raises:
            BadSetting: the prompt is longer than `max_length` allows.
        """
        held, max_length = (row.start or 0) + len(prompt), settings.max_length
        if max_length is not None and max_length <= held:
            raise BadSetting(
                name="max_length",
                expected=f"more than {held}, the tokens up to the end of the prompt "
                "(max_tokens counts the answer alone)",
                found=max_length,
            )
        self._most = settings.max_tokens if max_length is None else max_length - held
        self._row, self.prompt = row, prompt
        self._matcher, self._logprobs = matcher, settings.logprobs
        before = (*history, *prompt)
        start = len(before)
        processors = processors_of(settings, start, held)
        if rules is not None:
            follow = rules
            processors.append(lambda ids, logits: follow(logits, ids[start:].tolist()))
        if matcher is not None:
            allow = matcher.allowed
            processors.append(lambda ids, logits: allow(ids[start:], logits))
        forced = _forced(settings, start, held, self._most, matcher)
        self.chooser = Chooser(settings, before, number, processors, forced)
        ends = frozenset[int]() if matcher is None else matcher.ends
        self.stop_tokens = frozenset(settings.stop_tokens) | ends
        self.tokens: list[int] = []
        self.chosen: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: EndReason | None = "max_tokens" if self._most == 0 else None
        self.ends_when_full = True
        self._stop_strings, self._tokenizer = settings.stop_strings, tokenizer
        if self._stop_strings:
            _ = self.spelling  # raises its errors before anything runs

    def go_on_from(self, other: "Answer") -> None:
        """Take over an answer so far, which began after another prompt."""
        self.tokens, self.chosen = other.tokens, other.chosen
        self.logprobs, self.ends_when_full = other.logprobs, other.ends_when_full
        self.chooser.go_on_from(other.chooser, other.chosen)
        if "spelling" in other.__dict__:
            self.spelling = other.spelling

    @property
    def last(self) -> int | None:
        """Return the newest token, which has not run yet; None after the end."""
        return self.tokens[-1] if self.reason is None else None

    @property
    def wanted(self) -> int | None:
        """Return how many more tokens the settings allow, None for no limit.

        The limits are those of `max_tokens` and `max_length`.
        """
        return None if self._most is None else self._most - len(self.tokens)

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that the session has not run yet."""
        held = self._row.fed
        return (*self.prompt[held:], *self.chosen[max(0, held - len(self.prompt)) :])

    def choose(self, logits: Logits) -> int | None:
        """Sample and return the next token; None if the answer has ended.

        Raises:
            UnusableLogits: the logits allow no token.
        """
        if self.reason is not None:
            return None
        if self._logprobs is None:
            return self.chooser.choose(logits)
        (exact,) = log_probabilities(logits[None])
        token = self.chooser.choose(logits)
        self.logprobs.append(token_logprob(exact, token, self._logprobs))
        return token

    def force(self) -> int | None:
        """Return the next token if there is no choice, so that nothing need run first.

        Log probabilities need the logits, so with them there is always a choice.
        """
        if self.reason is not None or self._logprobs is not None:
            return None
        return self.chooser.force()

    @property
    def found(self) -> Sequence[int]:
        """Return the tokens that would be the answer if it ended now."""
        return self.tokens

    @property
    def is_complete(self) -> bool | None:
        """Tell whether the answer has the asked form; None if no form is asked for."""
        if self._matcher is None:
            return None
        return self._matcher.is_complete(np.array(self.tokens, np.int64))

    def take(self, token: int | None) -> int | None:
        """Append a sampled token; return the token, or None if it is a stop token.

        If the answer ends with the token, `reason` is set at once: the caller might not
        ask for a further token.
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

    @cached_property
    def spelling(self) -> "Spelling":
        """Return the object that turns the answer into text, piece by piece.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: the bundle's tokenizer cannot be
                used.
        """
        return self._new_spelling()

    def text(self) -> str:
        """Return the answer's text so far, cut before a stop string.

        Raises:
            BadSetting, MissingPackage, BadTokenizer: as `spelling`.
        """
        spelling = self._new_spelling()
        spelling.spell(self.tokens)
        return spelling.take() + spelling.finish()

    def _new_spelling(self) -> "Spelling":
        return Spelling(self._tokenizer(), self.prompt, self._stop_strings)

    def _limit(self) -> EndReason | None:
        """Return why the answer ends after its newest token, None if it goes on."""
        if self._stop_strings:
            self.spelling.spell(self.tokens)
            if self.spelling.stopped:
                return "stop_string"
        if self._matcher is not None:
            made = np.array(self.tokens, np.int64)
            if self._matcher.is_over(made):
                return "stop"
        if self.wanted == 0:
            return "max_tokens"
        room = self._row.room
        waiting = len(self.prompt) + len(self.chosen) - self._row.fed
        if room is None or not self.ends_when_full or room >= waiting:
            return None
        return "length"


def _forced(
    settings: GenerationSettings,
    start: int,
    held: int,
    most: int | None,
    matcher: Matcher | None,
) -> Callable[[Ids], int | None] | None:
    """Return a function from the tokens so far to the one that must follow, or None.

    Return None if no token is ever forced.

    Args:
        settings: the settings that name forced tokens.
        start: how many of the tokens so far stand before the answer.
        held: how many tokens of session and prompt stand before the answer.
        most: the greatest number of tokens of the answer, None for no limit.
        matcher: of the form that the answer must have.
    """
    set_at = forced_tokens(settings, held, most)
    if set_at is None and matcher is None:
        return None

    def forced(ids: Ids) -> int | None:
        token = None if set_at is None else set_at(ids.size - start)
        if token is None and matcher is not None:
            return matcher.forced(ids[start:])
        return token

    return forced


class Spelling:
    """The text of one answer.

    Attributes:
        stopped: whether a stop string has been found.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop_strings: Sequence[str]
    ) -> None:
        """Begin the text of an answer to a prompt."""
        self._stream = tokenizer.stream(after=prompt)
        self._stops = StopStrings(stop_strings)
        self._spelled = 0
        self._ready: list[str] = []
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Tell whether a stop string has been found."""
        return self._stops.found

    def spell(self, tokens: Sequence[int]) -> None:
        """Add the new tokens of an answer; `tokens` is the whole answer so far."""
        for token in tokens[self._spelled :]:
            self._ready.append(self._stops.push(self._stream.push(token)))
        self._spelled = len(tokens)

    def take(self) -> str:
        """Return the new text that later tokens cannot change.

        Text that an earlier call returned is left out.
        """
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self) -> str:
        """Return the rest of the text, after the last token; "" at a second call."""
        if self._finished:
            return ""
        self._finished = True
        last = self._stops.push(self._stream.finish())
        return self.take() + last + self._stops.finish()


class StopStrings:
    """Searches text for stop strings.

    Attributes:
        found: whether a stop string has been found; text after the stop string is
            dropped.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""  # the longest suffix of the text that may begin a stop string
        self.found = False

    def push(self, piece: str) -> str:
        """Add a piece of text; return the text that cannot be part of a stop string.

        The returned text may begin with text of earlier pieces.
        """
        if self.found:
            return ""
        text = self._held + piece
        start = self._find(text)
        if start is None:
            # The longest suffix that may begin a stop string stays here.
            start = next(filter(partial(self._may_begin, text), range(len(text))), None)
            start = len(text) if start is None else start
            self._held = text[start:]
        else:
            self.found, self._held = True, ""
        return text[:start]

    def _may_begin(self, text: str, start: int) -> bool:
        """Tell whether a stop string may begin at an index of a text."""
        rest = text[start:]
        return any(string.startswith(rest) for string in self._strings)

    def finish(self) -> str:
        """Return the text that `push` did not return; called after the last piece."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        """Return the index at which the earliest complete stop string begins in a text.

        The earliest stop string is the one that ends first; among equal ends, the
        longest. Return None if the text has no complete stop string.
        """
        starts = [(text.find(string), len(string)) for string in self._strings]
        spans = [(start + size, start) for start, size in starts if start >= 0]
        return min(spans)[1] if spans else None
