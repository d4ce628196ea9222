"""`ChatChoice`: one answer of a chat, read from the updates of the scheduler.

In: updates. Out: a `Delta` for each, what is new; at the end the whole message.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.tokenizers.reply_forms import CALLS, REASONING
from kvc.runtime.tokenizers.reply_parser import Piece
from kvc.schema.frozen import frozen
from kvc.serving.models.replies import Call, ReadReply
from kvc.serving.models.token_texts import TokenTexts
from kvc.serving.openai.logprobs import chat_logprobs
from kvc.serving.scheduling import Update

_FINISHED: Final[Mapping[str, str]] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "max_tokens": "length",
    "cancelled": "length",  # by the limit of time, or as the server ends
}


def finish_reason(ending: str) -> str:
    """Return what OpenAI calls the end of an answer."""
    return _FINISHED[ending]


@frozen
class Delta:
    """What is new of an answer.

    Attributes:
        content: new text.
        reasoning: new text of the model's reasoning.
        calls: new calls of tools, in OpenAI's form.
        logprobs: the log probabilities of new tokens.
        finish: why the answer ended, None while it goes on.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[dict[str, object], ...] = ()
    logprobs: Sequence[dict[str, object]] = ()
    finish: str | None = None


class ChatChoice:
    """Reads one answer."""

    def __init__(self, reply: ReadReply, texts: TokenTexts | None) -> None:
        """Begin an answer.

        Args:
            reply: reads the text.
            texts: the texts of tokens, None without log probabilities.
        """
        self._reply, self._texts = reply, texts
        self._tokens: list[int] = []
        self._calls = 0  # those that are told
        self._whole: list[Delta] = []

    def take(self, update: Update) -> Delta:
        """Return what is new in an update, which is not of a failure."""
        pieces: list[Piece] = []
        self._tokens += update.tokens
        if update.text:
            pieces += self._reply.push(update.text, self._tokens)
        if update.ending is not None:
            pieces += self._reply.finish()
        calls: tuple[dict[str, object], ...] = ()
        if any(piece.part == CALLS for piece in pieces):
            calls = self._new_calls()
        return Delta(
            "".join(p for p in pieces if p.part not in (REASONING, CALLS)),
            "".join(p for p in pieces if p.part == REASONING),
            calls,
            chat_logprobs(update.logprobs, self._texts) if self._texts else (),
            self._finish(update),
        )

    def keep(self, update: Update) -> None:
        """Keep what is new in an update for `choice`."""
        self._whole.append(self.take(update))

    def _new_calls(self) -> tuple[dict[str, object], ...]:
        found = self._reply.calls
        new = tuple(map(_told, range(self._calls, len(found)), found[self._calls :]))
        self._calls = len(found)
        return new

    def _finish(self, update: Update) -> str | None:
        if update.ending is None:
            return None
        reason = finish_reason(update.ending)
        return "tool_calls" if self._calls and reason == "stop" else reason

    def choice(self, index: int) -> dict[str, object]:
        """Return the finished answer as a choice of an object chat.completion."""
        content = "".join(one.content for one in self._whole)
        reasoning = "".join(one.reasoning for one in self._whole)
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for one in self._whole
            for call in one.calls
        ]
        message: dict[str, object] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        logs = [entry for one in self._whole for entry in one.logprobs]
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": logs, "refusal": None} if self._texts else None,
            "finish_reason": self._whole[-1].finish if self._whole else None,
        }


def _told(index: int, call: Call) -> dict[str, object]:
    return {
        "index": index,
        "id": call.id or f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
