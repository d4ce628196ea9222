"""Messages of OpenAI's API become messages as chat templates take them.

In: the field `messages`. Out: messages whose content is a text or a list of parts, with
the arguments of calls as objects, and the pictures in order.
"""

import json
from typing import TYPE_CHECKING, Final

from kvc.schema.pictures import MOST_PIXELS
from kvc.serving.openai.data_urls import picture_at
from kvc.serving.openai.fields import Fields, bad

if TYPE_CHECKING:
    from PIL.Image import Image

Message = dict[str, object]

_ROLES: Final = ("user", "assistant", "system", "developer", "tool")
_KEPT: Final = ("name", "tool_call_id", "reasoning_content")
_MOST: Final = 10_000
_MOST_PICTURES: Final = 64  # of a request; together they have the pixels of one


def messages_in(fields: Fields) -> tuple[list[Message], "list[Image]"]:
    """Return the messages of a request, and their pictures.

    Raises:
        BadSetting: a message is not one that a model can read.
        BadPicture, MissingPackage: a picture cannot be read.
    """
    listed = fields.listed("messages")
    if not listed or len(listed) > _MOST:
        raise fields.bad("messages", f"a list of one to {_MOST} messages")
    pictures: list[Image] = []
    made = [
        _message(Fields(one, f"messages[{number}]"), pictures)
        for number, one in enumerate(listed)
    ]
    return made, pictures


def _message(fields: Fields, pictures: "list[Image]") -> Message:
    role = fields.one_of("role", _ROLES)
    if role is None:
        raise fields.bad("role", f"one of {', '.join(_ROLES)}")
    calls = fields.listed("tool_calls") if role == "assistant" else None
    made: Message = {"role": role, "content": _content(fields, bool(calls), pictures)}
    for name in _KEPT:
        if (text := fields.text(name)) is not None:
            made[name] = text
    if calls:
        places = (f"{fields.where}.tool_calls[{n}]" for n in range(len(calls)))
        made["tool_calls"] = [
            _call(Fields(one, place)) for one, place in zip(calls, places, strict=True)
        ]
    return made


def _content(fields: Fields, calls: bool, pictures: "list[Image]") -> object:
    found = fields.get("content")
    if isinstance(found, str):
        return found
    if found is None and (calls or fields.get("role") == "assistant"):
        return fields.text("refusal") or ""
    if not isinstance(found, list):
        raise fields.bad("content", "a text, or a list of parts")
    place = fields.name("content")
    return [
        _part(Fields(one, f"{place}[{number}]"), pictures)
        for number, one in enumerate(found)
    ]


def _part(fields: Fields, pictures: "list[Image]") -> dict[str, str]:
    match fields.get("type"):
        case "text":
            return {"type": "text", "text": fields.needed_text("text")}
        case "refusal":
            return {"type": "text", "text": fields.needed_text("refusal")}
        case "image_url":
            inner = fields.inner("image_url")
            if inner is None:
                raise fields.bad("image_url", 'an object with "url"')
            url = inner.needed_text("url")
            pictures.append(_picture(url, inner.name("url"), pictures))
            return {"type": "image"}
    raise fields.bad("type", "text or image_url, the parts that this server reads")


def _picture(url: str, name: str, before: "list[Image]") -> "Image":
    """Return a picture, which together with those before it may not be too large.

    Raises:
        BadSetting, BadPicture, MissingPackage: as `picture_at`; or there are too many.
    """
    if len(before) >= _MOST_PICTURES:
        raise bad(name, f"at most {_MOST_PICTURES} pictures", "one more")
    taken = sum(one.width * one.height for one in before)
    return picture_at(url, name, MOST_PIXELS - taken)


def _call(fields: Fields) -> Message:
    function = fields.inner("function")
    if function is None:
        raise fields.bad("function", 'an object with "name" and "arguments"')
    told = function.text("arguments") or "{}"
    try:
        arguments: object = json.loads(told)
    except (ValueError, RecursionError):
        arguments = told  # of a model that wrote no JSON; the template may take it
    called = {"name": function.needed_text("name"), "arguments": arguments}
    call_id = fields.text("id")
    named = {} if call_id is None else {"id": call_id}
    return {**named, "type": "function", "function": called}
