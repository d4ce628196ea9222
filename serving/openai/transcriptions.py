"""POST /v1/audio/transcriptions and translations: the form, and its answers.

In: the fields of a form. Out: what to hear and how to tell it; later, for what was
heard, the content and the type of the answer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.schema.frozen import frozen
from kvc.serving.models.speech_model import Heard
from kvc.serving.openai.fields import Fields, bad

_FORMS: Final = ("json", "text", "verbose_json", "srt", "vtt")
_TIMED: Final = ("verbose_json", "srt", "vtt")
_KNOWN: Final = frozenset(
    {
        "chunking_strategy", "language", "model", "response_format", "stream",
        "temperature", "timestamp_granularities[]", "user",
    }
)  # fmt: skip


@frozen
class SpeechRequest:
    """A request for what is said in a sound.

    Attributes:
        language: the language, None to let the model tell.
        form: how the answer is told.
        temperature: 0 to take the likeliest words.
    """

    language: str | None
    form: str
    temperature: float

    @property
    def times(self) -> bool:
        """Tell whether the answer has times."""
        return self.form in _TIMED


def speech_request(form: Sequence[tuple[str, str]]) -> SpeechRequest:
    """Return what the fields of a form ask for, beside the file.

    Raises:
        BadSetting: a field is impossible, or asks for what kvc does not have.
    """
    fields = Fields(dict(form))
    fields.check_known(_KNOWN)
    for name, value in form:
        if name == "timestamp_granularities[]" and value != "segment":
            raise bad(name, "segment: kvc knows no times of words", value)
    if fields.get("stream") not in (None, "false", "False"):
        raise fields.bad("stream", "false: what is said is told as a whole")
    if fields.get("chunking_strategy") not in (None, "auto"):
        raise fields.bad("chunking_strategy", "auto, or none")
    temperature = _number(fields, "temperature")
    language = fields.text("language") or None
    chosen = fields.one_of("response_format", _FORMS) or "json"
    return SpeechRequest(language, chosen, temperature)


def _number(fields: Fields, name: str) -> float:
    found = fields.text(name)
    try:
        number = float(found or 0)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise fields.bad(name, "a number from 0 to 1")
    return number


def speech_answer(request: SpeechRequest, heard: Heard, task: str) -> tuple[str, str]:
    """Return the content and the type of the answer.

    Args:
        request: the request.
        heard: what was heard.
        task: "transcribe" or "translate".
    """
    match request.form:
        case "text":
            return heard.made.text + "\n", "text/plain; charset=utf-8"
        case "srt":
            return _subtitles(heard, ","), "text/plain; charset=utf-8"
        case "vtt":
            return "WEBVTT\n\n" + _subtitles(heard, "."), "text/vtt; charset=utf-8"
        case "verbose_json":
            told = _verbose(request, heard, task)
        case _:
            seconds = {"type": "duration", "seconds": heard.seconds}
            told = {"text": heard.made.text, "usage": seconds}
    return json.dumps(told, ensure_ascii=False), "application/json"


def _verbose(request: SpeechRequest, heard: Heard, task: str) -> Mapping[str, object]:
    return {
        "task": task,
        "language": heard.made.language or request.language or "unknown",
        "duration": round(heard.seconds, 3),
        "text": heard.made.text,
        "segments": [
            {
                "id": number,
                "start": one.start,
                "end": one.end,
                "text": one.text,
                "tokens": one.tokens,
                "temperature": request.temperature,
            }
            for number, one in enumerate(heard.made.segments)
        ],
    }


def _subtitles(heard: Heard, comma: str) -> str:
    return "".join(
        f"{number}\n{_time(one.start, comma)} --> {_time(one.end, comma)}\n"
        f"{one.text.strip()}\n\n"
        for number, one in enumerate(heard.made.segments, 1)
    )


def _time(seconds: float, comma: str) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{comma}{rest % 1000:03}"
