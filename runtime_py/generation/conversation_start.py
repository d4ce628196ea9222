"""What a `Conversation` is given: at its beginning, and at each turn.

In: a session, its history and messages, and results of tools, as the caller gives them.
Out: the tokens that the session holds, the system message, and new messages, checked.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.generation.prompts import histories_of
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import ChatTemplate, Message
from kvc.runtime.tokenizers.template_arguments import told_of
from kvc.schema.errors import BadSetting, NoPosition

_ROLES: Final = frozenset({"user", "assistant", "system", "developer", "tool"})


def held_of(session: Session, history: Sequence[int] | None) -> list[int]:
    """Check and return the tokens that a session holds, as given by the caller.

    The result is an empty list if the session is empty.

    Raises:
        BadSetting: `history` is missing, or has more or fewer tokens than the session.
    """
    (given,) = histories_of(() if history is None else history, None)
    if history is None and session.holds_nothing:
        return []
    try:
        count: int | None = int(session.position[0])
    except NoPosition:
        count = None
    if history is not None and count in (None, len(given)):
        return list(given)
    found = "an unknown number of tokens" if count is None else f"{count} tokens"
    if history is not None:
        expected = f"the {found} that the session holds"
        raise BadSetting(name="history", expected=expected, found=f"{len(given)}")
    raise BadSetting(
        name="session",
        expected="an empty one (session.reset() empties it), or history=, "
        "the tokens that it holds, with messages=, their messages",
        found=f"a session that holds {found}",
    )


def system_of(
    system: str | None, messages: Sequence[Message], template: ChatTemplate | None
) -> str | Message | None:
    """Return the system message, which `Conversation.reset` does not remove.

    Raises:
        BadSetting: the system message is given twice; or messages are given without a
            chat template, or are not mappings.
    """
    if not messages:
        return system
    if system is not None or template is None:
        name = "messages" if system is None else "system"
        expected = (
            "none, as there is no chat template: history= has the text"
            if template is None
            else "nothing beside messages=, which begin with it"
        )
        raise BadSetting(name=name, expected=expected, found=f"{len(messages)} of them")
    first = told_of(messages)[0]
    return first if first.get("role") == "system" else None


def said_of(said: object, template: ChatTemplate | None) -> list[Message]:
    """Return copies of new messages; none for a text.

    Raises:
        BadSetting: they are no messages, there are none, or no text without a template.
    """
    if isinstance(said, str):
        return []
    if isinstance(said, Mapping):
        said = [said]
    if template is None or not isinstance(said, Sequence) or not said:
        expected = "a text" if template is None else "a text, or at least one message"
        raise BadSetting(name="said", expected=expected, found=repr(said)[:80])
    return [*told_of(said)]


def check_read(said: Sequence[Message], text: str) -> None:
    """Check that a template has not left out a message because of its role.

    Args:
        said: new messages.
        text: the text that the template has rendered.

    Raises:
        BadSetting: a message of an unusual role is not in the text.
    """
    for message in said:
        role, content = message.get("role"), message.get("content")
        if role in _ROLES or not isinstance(content, str):
            continue
        if content.strip() not in text:
            expected = "a role that the chat template knows, such as 'user'"
            raise BadSetting(name="role", expected=expected, found=repr(role))


def tool_message(
    content: object, name: str | None, call_id: str | None, last: Message
) -> Message:
    """Return the message that gives the result of a tool's call.

    Args:
        content: a text, or anything that becomes JSON.
        name: the name of the tool, None for that of the only call of `last`.
        call_id: the id of the call, None for that of the only call of `last`.
        last: the message before.

    Raises:
        BadSetting: the content cannot be written as JSON.
    """
    try:
        text = (
            content
            if isinstance(content, str)
            else json.dumps(content, ensure_ascii=False)
        )
    except (TypeError, ValueError, RecursionError) as error:
        found = repr(content)[:80]
        raise BadSetting(name="content", expected="JSON", found=found) from error
    only = _only_call(last)
    function = only.get("function", only)
    known = function.get("name") if isinstance(function, Mapping) else None
    message = {"role": "tool", "name": name or known, "content": text}
    message["tool_call_id"] = call_id or only.get("id")
    return {key: value for key, value in message.items() if value is not None}


def _only_call(message: Message) -> Mapping[str, object]:
    """Return the only call of a message, an empty mapping for none or several."""
    match message.get("tool_calls"):
        case [Mapping() as only]:
            return only
    return {}
