"""`turns_of`: a chat template as the fixed texts around messages.

In: a chat template. Out: JSON that a runtime without jinja2 makes conversations with,
such as libkvc's `kvc-run --chat`. Most templates put the same texts around each
message; one that does not is refused. The texts are found by rendering conversations
whose messages are marks.
"""

from collections.abc import Sequence
from typing import Final

from kvc.runtime.tokenizers.chat_template import ChatTemplate
from kvc.runtime.tokenizers.template_arguments import Message
from kvc.schema.errors import BadChatTemplate, BadSetting

_MARKS: Final = ("KVCalpha", "KVCbeta", "KVCgamma", "KVCdelta", "KVCepsilon")
_SYSTEM: Final = "KVCsystem"
_ROLES: Final = ("user", "assistant")


def turns_of(template: ChatTemplate, stop_tokens: Sequence[int]) -> dict[str, object]:
    """Return the texts around messages.

    Args:
        template: the chat template.
        stop_tokens: the tokens that end an answer.

    Returns:
        "first": the texts before and after the first message of the user; "between":
        the text between an answer and the next message of the user, after which comes
        the text that comes after the first; "system": the texts before and after a
        system message, ahead of the first message, or None if the template has no such
        message; "trims": whether spaces around a message of the user are left out;
        "stop_tokens": as given.

    Raises:
        BadChatTemplate: the template does not put the same texts around each message,
            or fails.
        TemplateLimit: rendering exceeds a limit.
    """
    before, after = _around(template.render(_said(1)), _MARKS[0], template)
    start = before + _MARKS[0] + after + _MARKS[1]
    three = template.render(_said(3))
    if not three.startswith(start):
        raise _uneven(template)
    between, _ = _around(three[len(start) :], _MARKS[2], template)
    made: dict[str, object] = {
        "first": [before, after],
        "between": between,
        "system": _system(template, after),
        "trims": _trims(template, before, after),
        "stop_tokens": list(stop_tokens),
    }
    expected = start + between + _MARKS[2] + after
    if three != expected:
        raise _uneven(template)
    if template.render(_said(5)) != expected + _MARKS[3] + between + _MARKS[4] + after:
        raise _uneven(template)
    return made


def _said(count: int) -> list[Message]:
    """Return a conversation of marks, whose user begins."""
    return [_message(_ROLES[i % 2], _MARKS[i]) for i in range(count)]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _around(text: str, mark: str, template: ChatTemplate) -> tuple[str, str]:
    """Return the texts before and after a mark, which a text must have once."""
    if text.count(mark) != 1:
        raise _uneven(template)
    before, _, after = text.partition(mark)
    return before, after


def _system(template: ChatTemplate, after: str) -> list[str] | None:
    """Return the texts around a system message, None if the template has none."""
    messages = [_message("system", _SYSTEM), *_said(1)]
    try:
        text = template.render(messages)
    except (BadChatTemplate, BadSetting):
        return None
    if text.count(_SYSTEM) != 1 or not text.endswith(_MARKS[0] + after):
        return None
    ahead, _, rest = text.removesuffix(_MARKS[0] + after).partition(_SYSTEM)
    return [ahead, rest]


def _trims(template: ChatTemplate, before: str, after: str) -> bool:
    """Tell whether the template leaves out the spaces around a message.

    Raises:
        BadChatTemplate: it changes the message in another way.
    """
    spaced = f" \n{_MARKS[0]} \n"
    text = template.render([_message("user", spaced)])
    if text == before + spaced + after:
        return False
    if text == before + _MARKS[0] + after:
        return True
    raise _uneven(template)


def _uneven(template: ChatTemplate) -> BadChatTemplate:
    reason = "it does not put the same texts around each message, so it takes jinja2"
    return BadChatTemplate(file=template.file, reason=reason)
