"""`SpeechTokens`: the control tokens of a speech decoder.

In: a bundle's generation_config, as transformers writes it for Whisper. Out: the tokens
that a decoder begins with, for a language and a task, and the timestamp tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.generation.settings import GenerationSettings
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import check_count

# Timestamp tokens


Logits = npt.NDArray[np.float32]


@frozen
class SpokenPart:
    """The tokens between two times of a window.

    Attributes:
        start, end: the two times, in steps from the start of the window.
        tokens: the tokens, including timestamp tokens.
    """

    start: float
    end: float
    tokens: tuple[int, ...]


@frozen
class Timestamps:
    """The timestamp tokens, one for each step of time.

    Attributes:
        begin: the first timestamp token; greater token ids are later times.
        none: the token that disables timestamps if a prompt has this token.
        stop: the token that ends a text; token ids below `stop` stand for text.
        latest: the last step at which an answer may begin, None for no limit.
    """

    begin: int
    none: int
    stop: int
    latest: int | None

    def allowed(self, logits: Logits, said: Sequence[int]) -> Logits:
        """Return logits with -inf for tokens that must not follow the answer so far."""
        left = logits.astype(np.float32, copy=True)
        left[self.none] = -np.inf
        is_time = [token >= self.begin for token in said]
        if is_time[-1:] == [True]:
            if all(is_time[-2:]):
                left[self.begin :] = -np.inf  # a pair of timestamps: text follows
            else:
                left[: self.stop] = -np.inf  # a second timestamp, or the end
        left[self.begin : self._earliest(said, is_time)] = -np.inf
        if not said:
            left[: self.begin] = -np.inf
            if self.latest is not None:
                left[self.begin + self.latest + 1 :] = -np.inf
        if _together(left[self.begin :]) > left[: self.begin].max():
            left[: self.begin] = -np.inf
        return left

    def _earliest(self, said: Sequence[int], is_time: Sequence[bool]) -> int:
        """Return the earliest timestamp that may follow, since times never decrease."""
        if not any(is_time):
            return self.begin
        last = max(i for i, timed in enumerate(is_time) if timed)
        opens = list(is_time[-2:]) == [False, True]
        return said[last] if opens else said[last] + 1

    def parts(
        self, said: Sequence[int], steps: float
    ) -> tuple[list[SpokenPart], float | None]:
        """Return the parts of a window's answer, and the start of the next window.

        Args:
            said: the tokens of the answer, without the stop token.
            steps: the number of steps in the window.

        Returns:
            The parts of the answer; and the step at which the next window begins, None
            if the window was transcribed to its end.
        """
        is_time = [token >= self.begin for token in said]
        pairs = [i + 1 for i in range(len(said) - 1) if is_time[i] and is_time[i + 1]]
        ends_once = is_time[-2:] == [False, True]
        if not pairs:
            last = [i for i, timed in enumerate(is_time) if timed][-1:]
            known = last and said[last[0]] != self.begin
            end = said[last[0]] - self.begin if known else steps
            return [SpokenPart(0, end, tuple(said))], None
        cuts = [*pairs, len(said)] if ends_once else [*pairs[:-1], pairs[-1] + 1]
        found = []
        for number, (first, cut) in enumerate(zip([0, *cuts], cuts, strict=False)):
            tokens = tuple(said[first:cut])
            is_whole = number < len(cuts) - 1 or ends_once
            closing = tokens[-1] if is_whole else tokens[-2]
            found.append(
                SpokenPart(tokens[0] - self.begin, closing - self.begin, tokens)
            )
        return found, None if ends_once else said[cuts[-1] - 2] - self.begin


def _together(logits: Logits) -> float:
    """Return log(sum(exp(logits))), the logarithm of a total of likelihoods."""
    best = float(logits.max(initial=-np.inf))
    if best == -np.inf:
        return best
    return best + float(np.log(np.exp(logits - np.float32(best)).sum()))


# Control tokens


_TRANSCRIBE: Final = "transcribe"


@frozen
class SpeechTokens:
    """The control tokens of a speech decoder.

    Attributes:
        start: the token that begins a text.
        languages: code of a language -> its token; empty for a model of one language.
        tasks: "transcribe" and "translate" -> their tokens.
        none: the token that disables timestamps; None for a model without timestamp
            tokens.
        latest: the last step at which an answer may begin, None for no limit.
        fixed: the tokens after the start token, used if the caller requests neither a
            language nor a task.
        language, task: the defaults of the bundle; None for no default.
    """

    start: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    none: int | None
    latest: int | None
    fixed: Sequence[int | None]
    language: str | None = None
    task: str | None = None

    def usual(
        self, language: str | None, task: str | None
    ) -> tuple[str | None, str | None]:
        """Return the language and the task; the bundle's defaults replace None."""
        return (
            self.language if language is None else language.strip("<|>"),
            self.task if task is None else task,
        )

    def check(self, language: str | None, task: str | None, timestamps: bool) -> None:
        """Check the requested language, task and timestamps.

        Raises:
            BadSetting: the model does not support the language, the task or timestamps.
        """
        wanted = (("language", language, self.languages), ("task", task, self.tasks))
        for name, asked, known in wanted:
            if asked is not None and asked not in known:
                listed = ", ".join(sorted(known)) or "none: the model has only one"
                raise BadSetting(name=name, expected=listed, found=repr(asked))
        if timestamps and self.none is None:
            expected = "False: the bundle has no timestamp tokens"
            raise BadSetting(name="timestamps", expected=expected, found="True")

    def asks_for_language(self, language: str | None, task: str | None) -> bool:
        """Tell whether the model must detect the language, since it is not given."""
        if language is not None or not self.languages:
            return False
        return task is not None or self.fixed[:1] in ([], [None])

    def prompt(
        self, language: int | None, asked: bool, task: str | None, timestamps: bool
    ) -> tuple[int, ...]:
        """Return the tokens that a decoder begins with.

        Args:
            language: the token of the language; None for the default.
            asked: whether the caller requested the language; if not, the model has
                detected it.
            task: the task. None: "transcribe" if the caller requested a language; if
                not, the task of the bundle's fixed tokens.
            timestamps: whether timestamps are wanted.
        """
        given = [] if asked or task is not None else [*self.fixed]
        if language is not None:
            given = [language, *given[1:]]
        if task is not None:
            given.append(self.tasks[task])
        elif asked and _TRANSCRIBE in self.tasks:
            given.append(self.tasks[_TRANSCRIBE])
        if given[-1:] == [self.none]:
            given.pop()
        if not timestamps:
            given.append(self.none)
        return (self.start, *[token for token in given if token is not None])

    def moments(self, settings: GenerationSettings) -> Timestamps:
        """Return the timestamp tokens of a model that has them."""
        assert self.none is not None
        stop = min(settings.stop_tokens, default=self.none)
        return Timestamps(self.none + 1, self.none, stop, self.latest)


def speech_tokens(
    config: Mapping[str, object], settings: GenerationSettings
) -> SpeechTokens:
    """Return the control tokens that a generation_config declares.

    Raises:
        BadSetting: the start token is missing, or a value is invalid.
    """
    start = settings.decoder_start_token_id
    if start is None:
        expected = "a token; the bundle's generation_config has none"
        raise BadSetting(name="decoder_start_token_id", expected=expected, found=None)
    languages = _tokens(config, "lang_to_id")
    return SpeechTokens(
        start=start,
        languages={name.strip("<|>"): token for name, token in languages.items()},
        tasks=_tokens(config, "task_to_id"),
        none=_count(config, "no_timestamps_token_id"),
        latest=_count(config, "max_initial_timestamp_index"),
        fixed=_fixed(config),
        language=_text(config, "language", "").strip("<|>") or None,
        task=_text(config, "task", "") or None,
    )


def _text(config: Mapping[str, object], name: str, default: str) -> str:
    found = config.get(name) or default
    if not isinstance(found, str):
        raise BadSetting(name=name, expected="a text", found=repr(found))
    return found


def _tokens(config: Mapping[str, object], name: str) -> dict[str, int]:
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise BadSetting(name=name, expected="tokens by name", found=repr(found))
    return {str(key): check_count(f"{name}, {key}", one) for key, one in found.items()}


def _count(config: Mapping[str, object], name: str) -> int | None:
    found = config.get(name)
    return None if found is None else check_count(name, found)


def _fixed(config: Mapping[str, object]) -> Sequence[int | None]:
    """Return the tokens after the start token, read from `forced_decoder_ids`.

    The setting is a list of pairs [[1, token], [2, token], ...]; a token may be None.

    Raises:
        BadSetting: the setting has another form.
    """
    found = config.get("forced_decoder_ids") or []
    places = [[i + 1] for i in range(len(found))] if isinstance(found, list) else None
    try:
        if places is None or [list(pair)[:1] for pair in found] != places:  # type: ignore[attr-defined]
            raise TypeError
        tokens = [token for _, token in found]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        name, expected = "forced_decoder_ids", "[[1, token], [2, token], ...]"
        raise BadSetting(name=name, expected=expected, found=repr(found)) from error
    return [None if t is None else check_count("forced_decoder_ids", t) for t in tokens]
