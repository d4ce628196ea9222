"""`CompletionRequest`: a body of POST /v1/completions, checked.

In: the parsed body. Out: the prompts, texts or tokens, the settings, and how the
answers are told.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.generation import Arguments
from kvc.schema.frozen import frozen
from kvc.serving.openai.chat_requests import Telling, telling_in
from kvc.serving.openai.fields import Fields
from kvc.serving.openai.response_formats import schema_in
from kvc.serving.openai.settings import (
    IGNORED,
    MOST_ANSWERS,
    MOST_TOP,
    SETTINGS,
    check_logprobs,
    check_neutral,
    settings_in,
)

_MOST_TOKEN: Final = (1 << 31) - 1
_NEUTRAL: Final[Mapping[str, tuple[object, str]]] = {
    "best_of": (1, "this server makes the n answers that are asked for"),
    "suffix": ("", "this server only continues texts"),
}
_KNOWN: Final = frozenset(
    {
        *SETTINGS, *IGNORED, *_NEUTRAL, "echo", "logprobs", "max_completion_tokens",
        "model", "n", "prompt", "response_format", "stream", "stream_options", "user",
    }
)  # fmt: skip

Prompt = str | tuple[int, ...]


@frozen
class CompletionRequest:
    """A request for continuations of texts.

    Attributes:
        prompts: the texts, or their tokens.
        settings: the settings of the answers.
        telling: how they are told.
        echo: whether an answer begins with its prompt.
    """

    prompts: Sequence[Prompt]
    settings: Arguments
    telling: Telling
    echo: bool = False


def completion_request(fields: Fields, most: int) -> CompletionRequest:
    """Return what a body asks for.

    Args:
        fields: the fields of the body.
        most: the greatest number of tokens of an answer.

    Raises:
        BadSetting: a field is impossible, or asks for what kvc does not have.
    """
    fields.check_known(_KNOWN)
    telling = telling_in(fields)
    best = fields.get("best_of")
    if best != telling.count:
        check_neutral(fields, _NEUTRAL)
    settings, schema = settings_in(fields, most), schema_in(fields)
    if schema is not None:
        settings["json_schema"] = schema  # type: ignore[typeddict-item]  # an object
    count, echo = fields.whole("logprobs", 0, MOST_TOP), fields.flag("echo") or False
    if count is not None:
        settings["logprobs"] = count
        if echo:
            raise fields.bad("echo", "false beside logprobs")
    prompts = inputs_in(fields, "prompt", MOST_ANSWERS)
    if len(prompts) * telling.count > MOST_ANSWERS:
        raise fields.bad("n", f"at most {MOST_ANSWERS} answers to all prompts")
    check_logprobs(fields, settings, len(prompts) * telling.count)
    return CompletionRequest(prompts, settings, telling, echo)


def inputs_in(fields: Fields, name: str, most: int) -> Sequence[Prompt]:
    """Return texts or tokens: one text, several, one list of tokens, or several.

    Args:
        fields: the fields of the body.
        name: the name of the field.
        most: the greatest number of texts.

    Raises:
        BadSetting: the field is none of these.
    """
    found = fields.get(name)
    if isinstance(found, str):
        return [found]
    expected = f"a text, a list of token ids, or a list of at most {most} of them"
    if not isinstance(found, list) or not found:
        raise fields.bad(name, expected)
    if _are_tokens(found):
        return [tuple(found)]
    made: list[Prompt] = []
    for one in found:
        if isinstance(one, str):
            made.append(one)
        elif isinstance(one, list) and one and _are_tokens(one):
            made.append(tuple(one))
    if len(made) != len(found) or len(made) > most:
        raise fields.bad(name, expected)
    return made


def _are_tokens(found: Sequence[object]) -> bool:
    return all(type(one) is int and 0 <= one <= _MOST_TOKEN for one in found)
