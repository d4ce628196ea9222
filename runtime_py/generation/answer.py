"""`Answer`: the tokens that follow one prompt; `Spelling`: their text.

In: a prompt, its row of the session, settings, logits at each step. Out: the sampled
token, whether it is returned, why the answer ends, and its text: pieces of complete
characters, without a suffix that may begin a stop string. The text does not depend on
how it is cut into pieces. It ends before the stop string that is complete first; of
several that are complete at the same place, before the longest.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal

from kvc.runtime.generation.row import Row
from kvc.runtime.generation.sampling import Chooser, Logits, Placing, Rules
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting

EndReason = Literal["stop", "stop_string", "length", "max_tokens"]


class Answer:
    """An answer while it is generated.

    Attributes:
        prompt: the tokens before it.
        chooser: samples its tokens.
        stop_tokens: the tokens that end it.
        tokens: the tokens returned so far.
        chosen: all sampled tokens, including a stop token.
        reason: why it ended, None while it goes on. "stop": the model generated a stop
            token. "stop_string": the last token completes a stop string in the text.
            "length": the cache is full. "max_tokens": the limit of `max_tokens` or
            `max_length` is reached.
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
    ) -> None:
        """Begin after a prompt; the row counts how much of prompt and answer it holds.

        Args:
            prompt: tokens that are not in the row yet.
            row: the row that holds prompt and answer.
            settings: the settings of sampling.
            tokenizer: returns the tokenizer for the answer's text.
            history: tokens that the row holds already.
            number: the index of the row.
            rules: masks the logits of tokens that must not follow the tokens so far.

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
        placing = Placing(settings, held, self._most, rules)
        self.chooser = Chooser(settings, (*history, *prompt), number, placing)
        self.stop_tokens = frozenset(settings.stop_tokens)
        self.tokens: list[int] = []
        self.chosen: list[int] = []
        self.reason: EndReason | None = "max_tokens" if self._most == 0 else None
        self._stop_strings, self._tokenizer = settings.stop_strings, tokenizer
        if self._stop_strings:
            _ = self.spelling  # raises its errors before anything runs

    @property
    def last(self) -> int | None:
        """Return the token that is to run next, None if the answer has ended."""
        return self.tokens[-1] if self.reason is None else None

    @property
    def wanted(self) -> int | None:
        """Return how many more tokens may be generated, None for no limit."""
        return None if self._most is None else self._most - len(self.tokens)

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the tokens of prompt and answer that are not in the session."""
        held = self._row.fed
        return (*self.prompt[held:], *self.chosen[max(0, held - len(self.prompt)) :])

    def choose(self, logits: Logits) -> int | None:
        """Return the next token, None if the answer has ended.

        Raises:
            UnusableLogits: the logits allow no token.
        """
        return self.chooser.choose(logits) if self.reason is None else None

    def take(self, token: int | None) -> int | None:
        """Append a sampled token; return it, or None for a stop token.

        Also set the reason if it is the last token, before it is returned: the caller
        may not ask for another one.
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
        """Return all of the text so far, cut before a stop string.

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
        if self.wanted == 0:
            return "max_tokens"
        return "length" if self._row.room == 0 else None


class Spelling:
    """The text of one answer.

    Attributes:
        stopped: whether a stop string has been found.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop_strings: Sequence[str]
    ) -> None:
        """Start after a prompt."""
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
        """Add the tokens of the whole answer that have not been added yet."""
        for token in tokens[self._spelled :]:
            self._ready.append(self._stops.push(self._stream.push(token)))
        self._spelled = len(tokens)

    def take(self) -> str:
        """Return the complete text that has not been returned yet."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self) -> str:
        """Return the rest of the text after the last token; "" at a second call."""
        if self._finished:
            return ""
        self._finished = True
        last = self._stops.push(self._stream.finish())
        return self.take() + last + self._stops.finish()


class StopStrings:
    """Searches text for stop strings.

    Attributes:
        found: whether a stop string has been found; no text is returned after it.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""  # the longest suffix of the text that may begin a stop string
        self.found = False

    def push(self, piece: str) -> str:
        """Add a piece; return the text that cannot belong to a stop string."""
        if self.found:
            return ""
        text = self._held + piece
        start = self._find(text)
        if start is None:
            start = len(text) - self._count_held(text)
            self._held = text[start:]
        else:
            self.found, self._held = True, ""
        return text[:start]

    def finish(self) -> str:
        """Return the text that was held back, after the last piece."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        """Return the start of the stop string that ends first, None without one."""
        starts = [(text.find(string), len(string)) for string in self._strings]
        spans = [(start + size, start) for start, size in starts if start >= 0]
        return min(spans)[1] if spans else None

    def _count_held(self, text: str) -> int:
        """Return the length of the longest suffix that may begin a stop string."""
        beginnings = (
            string[:length]
            for string in self._strings
            for length in range(min(len(string), len(text) + 1))
        )
        return max((len(b) for b in beginnings if text.endswith(b)), default=0)
