"""The variables of chat templates, as `apply_chat_template` of transformers gives them.

In: messages, tools, documents, other arguments, special tokens. Out: the variables, by
name; and the rendered text up to where the last message is to be continued. Keys whose
value is None are left out of messages; reasoning has all names that templates use.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.tokenizers.function_schemas import schema_of
from kvc.schema.errors import BadChatTemplate, BadSetting

# "role": "system", "user", "assistant" or "tool"; "content": a text, or a list of
# parts.
Message = Mapping[str, object]
# A tool's JSON schema, or a function that has type hints and a docstring.
Tool = Mapping[str, object] | Callable[..., object]
Document = Mapping[str, object]

REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_OWN: Final = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
)
_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "


def told_of(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return copies of messages.

    Raises:
        BadSetting: a message is not a mapping.
    """
    try:
        return [dict(message) for message in messages]
    except (TypeError, ValueError) as error:
        expected = 'mappings with the texts "role" and "content"'
        found = repr(messages)[:80]
        raise BadSetting(name="messages", expected=expected, found=found) from error


def schemas_of(tools: Sequence[Tool] | None) -> list[dict[str, object]] | None:
    """Return the JSON schemas of tools, None for None.

    Raises:
        BadSetting: the tools are not a list, a tool is neither a mapping nor a
            function, or a function cannot be described.
    """
    if tools is None:
        return None
    if not _is_list(tools):
        raise _bad_tool(tools)
    return [_schema_of(tool) for tool in tools]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _schema_of(tool: object) -> dict[str, object]:
    if isinstance(tool, Mapping):
        return dict(tool)
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return schema_of(tool)
    raise _bad_tool(tool)


def _bad_tool(found: object) -> BadSetting:
    expected = "a list of JSON schemas, or of functions with type hints and docstrings"
    return BadSetting(name="tools", expected=expected, found=repr(found)[:80])


def checked_documents(
    documents: Sequence[Document] | None,
) -> list[dict[str, object]] | None:
    """Return copies of documents, None for None.

    Raises:
        BadSetting: the documents are not a list of mappings.
    """
    if documents is None:
        return None
    if _is_list(documents) and all(map(_is_mapping, documents)):
        return [dict(one) for one in documents]
    expected = 'a list of mappings with "title" and "text"'
    raise BadSetting(name="documents", expected=expected, found=repr(documents)[:80])


def checked_arguments(arguments: Mapping[str, object] | None) -> dict[str, object]:
    """Return a copy of the further arguments of a template.

    Raises:
        BadSetting: they are not a mapping, or one has a name that is no text, or the
            name of a variable that is always there.
    """
    given = {} if arguments is None else arguments
    if _is_mapping(given) and all(map(_is_free, given)):
        return dict(given)
    expected = f"a mapping of names that are not {', '.join(_OWN)}"
    found = repr(arguments)[:80]
    raise BadSetting(name="template_arguments", expected=expected, found=found)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_free(name: object) -> bool:
    return isinstance(name, str) and name not in _OWN


def clean_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return messages without values that are None, and with reasoning by all names.

    Raises:
        BadSetting: a message is not a mapping.
    """
    return [_clean(message) for message in told_of(messages)]


def _clean(message: Mapping[str, object]) -> dict[str, object]:
    made = {key: value for key, value in message.items() if value is not None}
    thought = next((made[key] for key in REASONING if key in made), None)
    if thought is None:
        return made
    return {"thinking": thought, **made, "reasoning_content": thought}


class Continuing:
    """Marks where the last message ends, so that the text can end there."""

    def __init__(
        self, messages: list[dict[str, object]], field: bool | str, template: str
    ) -> None:
        """Mark the end of a field of the last message; `messages` is changed.

        Args:
            messages: copies of the messages.
            field: the name of the field, True for "content".
            template: the text of the template.

        Raises:
            BadSetting: the last message has no text in the field, or the template does
                not read the field.
        """
        self._field = field if isinstance(field, str) else "content"
        last = messages[-1] if messages else {}
        found = last.get(self._field)
        names = [self._field]
        if self._field in REASONING:
            names = [name for name in REASONING if last.get(name) == found]
        if found is None or not any(name in template for name in names):
            raise self._bad(
                f"a last message with {self._field!r}, which templates read"
            )
        if isinstance(found, str):
            self._text = found
            last |= dict.fromkeys(names, found + _TAG)
        else:
            last[self._field] = self._marked_parts(found)

    def _marked_parts(self, parts: object) -> list[object]:
        """Return copies of a message's parts, with a mark behind the last text."""
        made = list(parts) if isinstance(parts, Sequence) else []
        for number in reversed(range(len(made))):
            one = made[number]
            if isinstance(one, Mapping) and isinstance(one.get("text"), str):
                self._text = one["text"]
                made[number] = {**one, "text": self._text + _TAG}
                return made
        raise self._bad("a last message that has a text")

    def cut(self, rendered: str, file: str) -> str:
        """Return the rendered text up to the mark.

        Raises:
            BadChatTemplate: the template leaves out a part of the last message.
        """
        tag = _TAG.strip()
        if self._text.strip() not in rendered or tag not in rendered:
            reason = "it changes the last message, which therefore cannot be continued"
            raise BadChatTemplate(file=file, reason=reason)
        at = rendered.rindex(tag)
        kept = rendered[at : at + len(_TAG)] == _TAG
        return rendered[:at] if kept else rendered[:at].rstrip()

    def _bad(self, expected: str) -> BadSetting:
        name, found = "continue_final_message", repr(self._field)
        return BadSetting(name=name, expected=expected, found=found)
