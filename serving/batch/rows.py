"""`Row`: what a line of a batch asks for.

In: lines, of kvc's form or OpenAI's. Out: rows; one that is no request has an error.

    {"prompt": "def ", "id": 7, "sampling_params": {"max_tokens": 40}}
    {"messages": [{"role": "user", "content": "Hi"}], "adapter": "polite"}
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final, Literal, cast

from kvc.schema.errors import BadRow, KvcError, meant
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import check_tokens
from kvc.serving.batch.ids import Ids
from kvc.serving.batch.lines import LONGEST, Line

Form = Literal["kvc", "chat", "completion"]
Id = str | int
Messages = Sequence[Mapping[str, object]]

_KNOWN: Final = frozenset(
    ("id", "prompt", "messages", "sampling_params", "adapter", "tools")
) | {"chat_template_kwargs", "system"}
_URLS: Final[Mapping[str, Form]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
}
# Fields of a body of OpenAI's that are no settings of generation.
_OF_BODY: Final = ("model", "messages", "prompt", "tools", "chat_template_kwargs")


@frozen
class Row:
    """A request of a batch.

    Attributes:
        number: the number of its line, from 1.
        key: what tells whether the line is still the same.
        id: what the user calls it; the number by default.
        size: the bytes of the line, which tell how long the prompt may be.
        form: the form of its answer.
        prompt: a text, or tokens; None if there are messages.
        messages: the messages of a chat.
        params: the settings of generation as the user wrote them.
        adapter: the name of a loaded adapter, None for that of the batch.
        tools: JSON schemas of tools, for the chat template.
        variables: more variables of the chat template.
        model: the name of the model in OpenAI's form, which the answer repeats.
        error: why the line is no request; None if it is one.
    """

    number: int
    key: int
    id: Id
    size: int
    form: Form = "kvc"
    prompt: str | tuple[int, ...] | None = None
    messages: Messages | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    adapter: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    error: KvcError | None = None


def row_of(line: Line, ids: Ids) -> Row:
    """Return what a line asks for.

    Args:
        line: the line.
        ids: the ids of the lines before it.
    """
    bare = Row(line.number, line.key, line.number, len(line.raw))
    try:
        given = _parsed(line)
    except BadRow as error:
        return replace(bare, error=error)
    is_openai = "custom_id" in given or "url" in given
    bare = replace(bare, form=_form_of(given) if is_openai else "kvc")
    try:
        bare = replace(bare, id=_id_of(given, "custom_id" if is_openai else "id", line))
        ids.add(bare.id, line.number)
        filled = _from_openai(bare, given) if is_openai else _from_kvc(bare, given)
        return _checked(filled)
    except KvcError as error:
        return replace(bare, error=error)


def row_from(given: Mapping[str, object], number: int) -> Row:
    """Return the row of an object of kvc's form, which no file has."""
    bare = Row(number, 0, number, 0)
    try:
        bare = replace(bare, id=_id_of(given, "id", Line(number, b"")))
        return _checked(_from_kvc(bare, given))
    except KvcError as error:
        return replace(bare, error=error)


def _parsed(line: Line) -> Mapping[str, object]:
    """Return the object in a line.

    Raises:
        BadRow: there is none.
    """
    if line.is_too_long:
        raise BadRow(reason=f"the line has more than {LONGEST:,} bytes")
    try:
        found: object = json.loads(line.raw.decode("utf-8"))
        if b"\\ud" in line.raw.lower():
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        reason = "the line has half of a character: \\ud800 to \\udfff go in pairs"
        raise BadRow(reason=reason) from error
    except UnicodeDecodeError as error:
        byte = line.raw[error.start]
        reason = f"the line is not UTF-8: byte 0x{byte:02x} at {error.start:,}"
        raise BadRow(reason=reason) from error
    except json.JSONDecodeError as error:
        reason = f"the line is not JSON: {error.msg} (column {error.colno})"
        raise BadRow(reason=reason) from error
    except (ValueError, RecursionError) as error:
        reason = "the line has too large a number, or is nested too deeply"
        raise BadRow(reason=reason) from error
    if not isinstance(found, dict):
        raise BadRow(reason="the line is not an object of JSON, {...}")
    return found


def _form_of(given: Mapping[str, object]) -> Form:
    """Return the form of OpenAI's that a line has; chat, if it is none of them."""
    return _URLS.get(str(given.get("url")), "chat")


def _id_of(given: Mapping[str, object], name: str, line: Line) -> Id:
    found = given.get(name)
    if found is None and name == "id":
        return line.number
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise BadRow(
            reason=f"{name}: expected a text or a whole number, got {found!r:.80}"
        )
    return found


def _from_kvc(bare: Row, given: Mapping[str, object]) -> Row:
    """Return a row with the fields of kvc's form.

    Raises:
        BadRow: a field is unknown, or has an impossible value.
    """
    for name in given:
        if name not in _KNOWN:
            hint = " (it belongs into sampling_params)" * (name in _SETTINGS)
            reason = f"unknown field {name!r:.80}{hint or meant(name, _KNOWN)}"
            raise BadRow(reason=reason)
    messages = _messages(given)
    if given.get("system") is not None:
        if messages is None:
            raise BadRow(reason="system goes with messages, not with a prompt")
        messages = [{"role": "system", "content": given["system"]}, *messages]
    return replace(
        bare,
        prompt=_prompt(given.get("prompt")),
        messages=messages,
        params=_object(given, "sampling_params"),
        adapter=_text(given, "adapter"),
        tools=_tools(given),
        variables=_object(given, "chat_template_kwargs"),
    )


_SETTINGS: Final = frozenset(
    ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_strings")
)


def _from_openai(bare: Row, given: Mapping[str, object]) -> Row:
    """Return a row with the fields of OpenAI's form.

    Raises:
        BadRow: a field has an impossible value.
    """
    url, method = given.get("url"), given.get("method", "POST")
    if not isinstance(url, str) or url not in _URLS:
        reason = f"url: expected one of {', '.join(_URLS)}, got {url!r:.80}"
        raise BadRow(reason=reason)
    if method != "POST":
        raise BadRow(reason=f"method: expected 'POST', got {method!r:.80}")
    body = _object(given, "body")
    is_chat = bare.form == "chat"
    if (other := "prompt" if is_chat else "messages") in body:
        raise BadRow(reason=f"body: {url} takes no {other}")
    return replace(
        bare,
        prompt=_prompt(body.get("prompt")),
        messages=_messages(body),
        params={name: body[name] for name in body if name not in _OF_BODY},
        tools=_tools(body),
        variables=_object(body, "chat_template_kwargs"),
        model=_text(body, "model") or "",
    )


def _checked(row: Row) -> Row:
    """Return a row.

    Raises:
        BadRow: it has no prompt, or two.
    """
    if (row.prompt is None) == (row.messages is None):
        found = "neither" if row.prompt is None else "both"
        raise BadRow(reason=f"expected a prompt or messages, found {found}")
    return row


def _prompt(found: object) -> str | tuple[int, ...] | None:
    if found is None or isinstance(found, str):
        return found
    tokens = check_tokens("prompt", found)
    if not tokens:
        raise BadRow(reason="prompt: expected at least one token, got none")
    return tokens


def _messages(given: Mapping[str, object]) -> Messages | None:
    found = given.get("messages")
    if found is None:
        return None
    is_list = isinstance(found, list) and found
    if not is_list or not all(
        isinstance(one, dict) for one in cast("list[object]", found)
    ):
        raise BadRow(
            reason="messages: expected a list of objects with role and content"
        )
    return cast(Messages, found)


def _tools(given: Mapping[str, object]) -> Sequence[Mapping[str, object]] | None:
    found = given.get("tools")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadRow(reason="tools: expected a list of objects")
    return found or None


def _object(given: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = given.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRow(reason=f"{name}: expected an object, got {found!r:.80}")
    return found


def _text(given: Mapping[str, object], name: str) -> str | None:
    found = given.get(name)
    if found is not None and not isinstance(found, str):
        raise BadRow(reason=f"{name}: expected a text, got {found!r:.80}")
    return found
