"""Server-sent events of a stream: JSON that is prebuilt around the new text.

In: deltas of answers. Out: bytes to send. What all chunks of a request share is written
once, so that a chunk costs the escaping of its text and a few joins.
"""

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Final

from kvc.serving.openai.chat_answers import Delta
from kvc.serving.openai.usage import Usage

DONE: Final = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    """Return a server-sent event of a JSON value."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


class Chunks:
    """Writes the chunks of one request."""

    def __init__(self, kind: str, call_id: str, created: int, model: str) -> None:
        """Write what all chunks begin with.

        Args:
            kind: "chat.completion.chunk" or "text_completion".
            call_id: the id of the answers.
            created: the time, in seconds since 1970.
            model: the name of the model.
        """
        shared = {"id": call_id, "object": kind, "created": created, "model": model}
        self._head = "data: " + json.dumps(shared, separators=(",", ":"))[:-1]
        self._head += ',"choices":['
        self._tail = "]}\n\n"

    def with_usage(self) -> None:
        """Tell in each chunk that the numbers of tokens come later."""
        self._tail = '],"usage":null}\n\n'

    def with_usage_so_far(self, usage: Usage) -> None:
        """Tell in the next chunks the numbers of tokens until now."""
        self._tail = f'],"usage":{json.dumps(usage.told)}}}\n\n'

    def role(self, index: int) -> str:
        """Return the first chunk of an answer in a chat."""
        delta = '"delta":{"role":"assistant","content":""}'
        return self._chunk(index, delta, "null", "null")

    def chat(self, index: int, delta: Delta) -> str:
        """Return the chunks of what is new of an answer in a chat, "" for nothing."""
        made = ""
        logs = "null"
        if delta.logprobs:
            logs = json.dumps({"content": delta.logprobs, "refusal": None})
        if delta.reasoning:
            told = f'"delta":{{"reasoning_content":{quoted(delta.reasoning)}}}'
            made += self._chunk(index, told, "null", "null")
        if delta.content or delta.logprobs:
            told = f'"delta":{{"content":{quoted(delta.content)}}}'
            made += self._chunk(index, told, logs, "null")
        if delta.calls:
            told = f'"delta":{{"tool_calls":{json.dumps(delta.calls)}}}'
            made += self._chunk(index, told, "null", "null")
        if delta.finish is not None:
            made += self._chunk(index, '"delta":{}', "null", f'"{delta.finish}"')
        return made

    def text(self, index: int, text: str, logs: object, finish: str | None) -> str:
        """Return the chunk of new text of a completion."""
        reason = "null" if finish is None else f'"{finish}"'
        return self._chunk(index, f'"text":{quoted(text)}', json.dumps(logs), reason)

    def usage(self, usage: Usage) -> str:
        """Return the last chunk, which tells the numbers of tokens."""
        return f'{self._head}],"usage":{json.dumps(usage.told)}}}\n\n'

    def _chunk(self, index: int, told: str, logs: str, finish: str) -> str:
        return (
            f'{self._head}{{"index":{index},{told},"logprobs":{logs},'
            f'"finish_reason":{finish}}}{self._tail}'
        )
