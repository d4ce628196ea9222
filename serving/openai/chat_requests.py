"""`ChatRequest`: a body of POST /v1/chat/completions, checked.

In: the parsed body. Out: what it asks for: a chat, settings, how many answers and how
they are told.
"""

from collections.abc import Mapping
from typing import Final

from kvc.runtime.generation import Arguments
from kvc.schema.frozen import frozen
from kvc.serving.models.chat_prompts import Chat
from kvc.serving.models.replies import Forced
from kvc.serving.openai.fields import Fields
from kvc.serving.openai.messages import messages_in
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
from kvc.serving.openai.tools import tools_in

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NEUTRAL: Final[Mapping[str, tuple[object, str]]] = {
    "audio": (None, "models of this server do not speak"),
    "function_call": (None, "it is deprecated; use tool_choice"),
    "functions": (None, "it is deprecated; use tools"),
    "modalities": (["text"], "models of this server answer with text"),
    "moderation": (None, "this server has no moderation"),
    "verbosity": ("medium", "models of this server do not know it"),
    "web_search_options": (None, "this server fetches nothing from the network"),
}
_KNOWN: Final = frozenset(
    {
        *SETTINGS, *IGNORED, *_NEUTRAL, "chat_template_kwargs", "logprobs",
        "max_completion_tokens", "messages", "model", "n", "parallel_tool_calls",
        "reasoning_effort", "response_format", "stream", "stream_options",
        "tool_choice", "tools", "top_logprobs", "user",
    }
)  # fmt: skip


@frozen
class Telling:
    """How answers are told.

    Attributes:
        stream: whether they are told while they are made.
        usage: whether a stream ends with the numbers of tokens.
        count: how many answers there are.
        client: whose request it is, "" if it does not say so.
        each: whether each chunk of a stream has the numbers of tokens until then.
    """

    stream: bool = False
    usage: bool = False
    count: int = 1
    client: str = ""
    each: bool = False


@frozen
class ChatRequest:
    """A request for answers in a chat.

    Attributes:
        chat: the chat.
        settings: the settings of the answers.
        forced: the calls that an answer must be, None if it may be text.
        telling: how they are told.
    """

    chat: Chat
    settings: Arguments
    forced: Forced | None
    telling: Telling


def telling_in(fields: Fields) -> Telling:
    """Return how the answers to a request are told.

    Raises:
        BadSetting: a field is impossible.
    """
    stream = fields.flag("stream") or False
    options, usage, each = fields.inner("stream_options"), False, False
    if options is not None:
        if not stream:
            raise fields.bad("stream_options", "none without stream")
        usage = options.flag("include_usage") or False
        each = usage and bool(options.flag("continuous_usage_stats"))
    count = fields.whole("n", 1, MOST_ANSWERS) or 1
    return Telling(stream, usage, count, (fields.text("user") or "")[:256], each)


def chat_request(fields: Fields, most: int) -> ChatRequest:
    """Return what a body asks for.

    Args:
        fields: the fields of the body.
        most: the greatest number of tokens of an answer.

    Raises:
        BadSetting: a field is impossible, or asks for what kvc does not have.
        BadPicture, MissingPackage: a picture cannot be read.
    """
    fields.check_known(_KNOWN)
    check_neutral(fields, _NEUTRAL)
    settings, schema = settings_in(fields, most), schema_in(fields)
    tools = tools_in(fields)
    if schema is not None:
        settings["json_schema"] = schema  # type: ignore[typeddict-item]  # an object
    if tools.forced is not None:
        if schema is not None:
            expected = "none beside a tool_choice that asks for a call"
            raise fields.bad("response_format", expected)
        settings["json_schema"] = tools.forced.schema
    if (count := _logprobs(fields)) is not None:
        settings["logprobs"] = count
    telling = telling_in(fields)
    check_logprobs(fields, settings, telling.count)
    arguments = fields.inner("chat_template_kwargs")
    messages, pictures = messages_in(fields)
    chat = Chat(
        messages,
        pictures,
        tools.told,
        None if arguments is None else arguments.value,
        fields.one_of("reasoning_effort", _EFFORTS),
    )
    return ChatRequest(chat, settings, tools.forced, telling)


def _logprobs(fields: Fields) -> int | None:
    """Return how many of the likeliest tokens are told at each place, None for no logs.

    Raises:
        BadSetting: `top_logprobs` is given without `logprobs`, or is impossible.
    """
    asked, top = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MOST_TOP)
    if asked:
        return top or 0
    if top:
        raise fields.bad("top_logprobs", "none without logprobs")
    return None
