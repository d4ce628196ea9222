"""How answers are read: `FreeReply`, and `ForcedCalls` where the answer must be calls.

In: the text of an answer as it is made. Out: pieces of content and reasoning, and calls
of tools. What an answer must be is asked of the model as a JSON schema, so that a
forced call can be read whatever marks the model would use by itself.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from kvc.runtime.generation.conversation_reply import Reply
from kvc.runtime.tokenizers.reply_forms import CALLS
from kvc.runtime.tokenizers.reply_parser import Piece
from kvc.schema.frozen import frozen
from kvc.serving.models.chat_prompts import ChatPrompt


@frozen
class Call:
    """A call of a tool.

    Attributes:
        name: the name of the tool.
        arguments: its arguments, as JSON text.
        id: the id that the model gave, "" if it gave none.
    """

    name: str
    arguments: str
    id: str = ""


@frozen
class Forced:
    """What an answer must be: calls of tools.

    Attributes:
        tools: the name of each tool that may be called -> the JSON schema of its
            arguments.
        several: whether there may be more than one call.
    """

    tools: Mapping[str, object]
    several: bool = True

    @property
    def schema(self) -> Mapping[str, object]:
        """Return the JSON schema of the answer."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": schema},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name, schema in self.tools.items()
        ]
        one = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if not self.several:
            return one
        return {"type": "array", "items": one, "minItems": 1}


class ReadReply(Protocol):
    """Reads one answer, piece by piece."""

    def push(self, text: str, tokens: Sequence[int]) -> Sequence[Piece]:
        """Add text; return the pieces that later text cannot change."""
        ...

    def finish(self) -> Sequence[Piece]:
        """End the answer; return the rest of the pieces."""
        ...

    @property
    def calls(self) -> Sequence[Call]:
        """Return the calls that have been read so far."""
        ...


class FreeReply:
    """Reads an answer in the form of the model's family."""

    def __init__(self, prompt: ChatPrompt) -> None:
        """Begin the answer to a prompt."""
        self._reply = Reply(prompt.script, prompt.form, prompt.turn)

    def push(self, text: str, tokens: Sequence[int]) -> Sequence[Piece]:
        """Add text; return the pieces that later text cannot change."""
        return self._reply.push(text, tokens)

    def finish(self) -> Sequence[Piece]:
        """End the answer; return the rest of the pieces."""
        return self._reply.finish()

    @property
    def calls(self) -> Sequence[Call]:
        """Return the calls that have been read so far."""
        return [_call_of(one) for one in self._reply.calls]


class ForcedCalls:
    """Reads an answer that is the JSON of one call, or of a list of calls."""

    def __init__(self) -> None:
        """Begin the answer."""
        self._text = ""
        self.calls: Sequence[Call] = ()

    def push(self, text: str, tokens: Sequence[int]) -> Sequence[Piece]:
        """Add text; there are no pieces before the end."""
        self._text += text
        return ()

    def finish(self) -> Sequence[Piece]:
        """Read the calls; an answer that was cut off is content as it stands."""
        text, self._text = self._text, ""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return [Piece(text)] if text else ()
        listed = found if isinstance(found, list) else [found]
        self.calls = [_call_of({"function": one}) for one in listed]
        return [Piece(text, CALLS)]


def _call_of(found: object) -> Call:
    """Return a call that is in the form of chat templates."""
    one = found if isinstance(found, Mapping) else {}
    function = one.get("function", one)
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Call(str(function.get("name", "")), arguments, str(one.get("id", "")))
