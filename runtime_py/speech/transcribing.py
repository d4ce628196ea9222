"""`transcribe`: the text of a sound, window by window.

In: a session of a bundle whose encoder takes features of sounds, samples, the requested
language and task. Out: a `Transcription` with tokens, text and times. As in
transformers, a sound that is longer than a window is always transcribed with
timestamps: the next window begins where the last complete sentence ended.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.encoding import find_encode
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.generation import Generation
from kvc.runtime.generation.session_rows import check_session
from kvc.runtime.generation.settings import Arguments, GenerationSettings, settings_of
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.session import Session
from kvc.runtime.speech.spectrum import Floats, Spectrum, spectrum_of
from kvc.runtime.speech.speech_prompts import SpeechTokens, SpokenPart, speech_tokens
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from kvc.schema.model import Method


@frozen
class Segment:
    """The text between two times of a sound.

    Attributes:
        start, end: the times at which the text starts and ends, in seconds.
        tokens: the tokens of the text, including timestamp tokens.
        text: the text, without timestamps.
    """

    start: float
    end: float
    tokens: tuple[int, ...]
    text: str


@frozen
class Transcription:
    """The text of a sound.

    Attributes:
        segments: the segments in order of time; without timestamps, a single segment.
        language: the code of the requested or detected language; None for a model of
            one language, or if the bundle fixes it.
    """

    segments: tuple[Segment, ...]
    language: str | None

    @property
    def text(self) -> str:
        """Return the text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()


def transcribe(
    session: Session,
    samples: Floats,
    *,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool | None = None,
    tokenizer: Tokenizer | None = None,
    **settings: Unpack[Arguments],
) -> Transcription:
    """Transcribe a sound.

    Args:
        session: a session of a speech model; each window resets it.
        samples: the samples of one channel, [n], from -1 to 1, at the sample rate
            `spectrum_of(program.metadata).rate`.
        language: a code such as "en"; default: the model detects the language, if it
            supports several.
        task: "transcribe", or "translate" into English. Default: the bundle's task.
        timestamps: whether to return times of sentences; default: only for sounds that
            are longer than a window, which need them.
        tokenizer: the tokenizer of the text. Default: the tokenizer of the bundle.
        settings: the settings of the generation for each window, as in `generate`.

    Raises:
        BadSetting: a setting is impossible, the model does not support the language or
            the task, the bundle's model is not a speech model, or there are no samples.
        UnusableLogits, ExecutionError: as `generate`.
    """
    hearing = _Hearing(session, tokenizer, settings)
    language, task = hearing.tokens.usual(language, task)
    features = hearing.features(samples)
    is_long = features.shape[1] > hearing.frames
    if is_long and timestamps is False:
        expected = "True or left out: the sound is longer than a window"
        raise BadSetting(name="timestamps", expected=expected, found="False")
    moments = is_long or bool(timestamps)
    hearing.tokens.check(language, task, moments)
    return hearing.transcribe(features, language, task, moments)


class _Hearing:
    """The transcription of one sound on a session, with the settings that it needs."""

    def __init__(
        self, session: Session, tokenizer: Tokenizer | None, given: Arguments
    ) -> None:
        check_session(session)
        self._spectrum: Spectrum = spectrum_of(session.metadata)
        self._settings: GenerationSettings = settings_of(session.metadata, given, 3)
        if self._settings.constraint is not None:
            expected, found = "none: a transcription has no form", "a form"
            name = self._settings.constraint.kind
            raise BadSetting(name=name, expected=expected, found=found)
        config: Mapping[str, object] = json.loads(
            session.metadata.get("generation_config", "{}")
        )
        self.tokens: SpeechTokens = speech_tokens(config, self._settings)
        self._session, self._tokenizer = session, tokenizer or tokenizer_of(session)
        encode = find_encode(session)
        self._encode, bins, self.frames = _sizes_of(encode)
        if bins != self._spectrum.bins:
            expected = f"a spectrum of {bins} bands, the encoder's input"
            found = f"one of {self._spectrum.bins}"
            raise BadSetting(name="the bundle", expected=expected, found=found)
        added = encode.advances[0].tokens if encode and encode.advances else None
        # Frames per step, the least time between two timestamps.
        self._stride = self.frames // added if isinstance(added, int) else 1

    def features(self, samples: Floats) -> Floats:
        """Return the features of a sound, [bins, frames].

        Raises:
            BadSetting: `samples` are not finite floats [n], one or more.
        """
        found = np.asarray(samples)
        if found.ndim != 1 or not found.size or found.dtype.kind != "f":
            expected, shape = "floats [n], one or more", f"{found.dtype} {found.shape}"
            raise BadSetting(name="samples", expected=expected, found=shape)
        if not np.isfinite(found).all():
            raise BadSetting(name="samples", expected="finite numbers", found="others")
        return self._spectrum.log_mel(found.astype(np.float32))

    def transcribe(
        self, features: Floats, language: str | None, task: str | None, moments: bool
    ) -> Transcription:
        """Return the transcription of features [bins, frames].

        `moments` tells whether to return the times of sentences.
        """
        seconds = self._spectrum.hop * self._stride / self._spectrum.rate  # of a step
        segments: list[Segment] = []
        known = None if language is None else self.tokens.languages[language]
        asks, at = self.tokens.asks_for_language(language, task), 0
        while at < features.shape[1]:
            window = features[:, at : at + self.frames]
            missing = self.frames - window.shape[1]
            given = np.pad(window, ((0, 0), (0, missing)))[None]
            self._session.call(self._encode, given)
            if asks and known is None:
                known = self._heard_language()
            prompt = self.tokens.prompt(known, language is not None, task, moments)
            feeder = Feeder(self._session)
            feeder.check_prompts([prompt])
            settings, (row,) = self._settings, feeder.rows
            rules = self.tokens.moments(settings).allowed if moments else None
            answer = Answer(prompt, row, settings, lambda: self._tokenizer, rules=rules)
            said = list(Generation(Decoding(feeder), [answer], settings))
            parts, rest = self._parts(said, window.shape[1])
            start = at * self._spectrum.hop / self._spectrum.rate
            segments += [self._segment(part, start, seconds) for part in parts]
            # A window that makes no progress would be transcribed forever.
            at += int(rest) * self._stride if rest else window.shape[1]
        codes = {token: code for code, token in self.tokens.languages.items()}
        return Transcription(tuple(segments), None if known is None else codes[known])

    def _heard_language(self) -> int:
        """Return the token of the language that the model detects."""
        (prefill, *_) = find_roles(self._session, "prefill")
        start = np.array([[self.tokens.start]], np.int64)
        logits = np.asarray(self._session.call(prefill.name, start)).reshape(-1)
        self._session.rewind(1)
        known = self.tokens.languages.values()
        return max(known, key=lambda token: float(logits[token]))

    def _parts(
        self, said: Sequence[int], frames: int
    ) -> tuple[Sequence[SpokenPart], float | None]:
        """Return the parts of an answer, split at its timestamps, and the next window.

        Args:
            said: the tokens of the answer.
            frames: the number of frames in the window.

        Returns:
            The parts of the answer; and the step at which the next window begins, None
            if the window was transcribed to its end.
        """
        steps = frames // self._stride
        if self.tokens.none is None:
            return [SpokenPart(0, steps, tuple(said))], None
        return self.tokens.moments(self._settings).parts(said, steps)

    def _segment(self, part: SpokenPart, start: float, seconds: float) -> Segment:
        text = "".join(self._texts(part.tokens))
        times = start + part.start * seconds, start + part.end * seconds
        return Segment(*times, part.tokens, text)

    def _texts(self, tokens: Sequence[int]) -> Iterator[str]:
        stream, begin = self._tokenizer.stream(), self.tokens.none
        for token in tokens:
            if begin is None or token <= begin:
                yield stream.push(token)
        yield stream.finish()


def _sizes_of(encode: "Method | None") -> tuple[str, int, int]:
    """Return the encoder's method, the number of bands, and the frames of a window.

    Raises:
        BadSetting: the bundle has no encoder of features.
    """
    if encode is not None and encode.graph.inputs:
        dims = encode.graph.values[encode.graph.inputs[0]].type.dims
        if len(dims) == 3 and isinstance(dims[1], int) and isinstance(dims[2], int):
            return encode.name, dims[1], dims[2]
    expected = "one of a speech model, whose encoder takes features [1, bands, frames]"
    raise BadSetting(name="the bundle", expected=expected, found="another")
