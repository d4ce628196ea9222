"""What `kvc chat` tells of a turn: calls, speed, what is no longer read, the end.

In: a conversation and its last answer. Out: lines.
"""

import json
from typing import TYPE_CHECKING

from kvc.schema.text import plural

if TYPE_CHECKING:
    from kvc.runtime import CacheOverflow, Conversation, Generation


def calls_of(conversation: "Conversation") -> str:
    """Return the calls of tools in the last answer, a line of JSON for each."""
    last = conversation.messages[-1] if conversation.messages else {}
    calls = last.get("tool_calls")
    lines = [json.dumps(one, ensure_ascii=False) for one in calls or ()]  # type: ignore[attr-defined]
    before = "\n" if lines and last.get("content") else ""
    return before + "\n".join(lines)


def figures_of_turn(
    conversation: "Conversation", answer: "Generation", capacity: int | None
) -> str:
    """Return the speed of an answer, and how much of the context is used."""
    copies = conversation.kept_nbytes
    kept = f"; copies {copies / 1e6:,.1f} MB" if copies else ""
    prefill, decode = answer.prefill, answer.decode
    limit = "" if capacity is None else f" of {capacity:,}"
    return (
        f"[{plural(len(answer.tokens), 'token')}, "
        f"{decode.tokens_per_second:.1f} tokens/s; "
        f"prompt {plural(prefill.tokens, 'token')}, "
        f"{prefill.tokens_per_second:.1f} tokens/s; "
        f"context {conversation.used:,}{limit}{kept}]"
    )


def dropped_of(conversation: "Conversation") -> str:
    """Return what was done to make room."""
    count, again = conversation.dropped, conversation.read_again
    messages = "first message is" if count == 1 else f"first {count} messages are"
    were = "was" if again == 1 else "were"
    return f"the {messages} no longer read; {plural(again, 'token')} {were} read again"


def end_of(answer: "Generation", stopped: bool, drops: bool) -> str:
    """Return why an answer ended unexpectedly, "" for an ordinary end.

    Args:
        answer: the answer.
        stopped: whether the user stopped it.
        drops: whether old messages are left out where the context is full.
    """
    cut = ", before the answer had its form" if answer.is_complete is False else ""
    if answer.reason == "length":
        return f"the context is full{cut}; {_ways_on(drops)}"
    if answer.reason == "max_tokens":
        return f"the limit of tokens was reached{cut}"
    return "stopped" if stopped else ""


def refusal_of(error: "CacheOverflow", drops: bool) -> str:
    """Return why a message that the context has no room for is refused."""
    count, capacity = plural(error.count, "token"), f"{error.capacity:,}"
    room = max(0, error.capacity - error.start)
    return (
        f"the message is refused: {count} are to be read, and the context has room for "
        f"{room:,} of {capacity}; {_ways_on(drops)}"
    )


def _ways_on(drops: bool) -> str:
    dropping = "" if drops else "--on-full drop leaves out the oldest messages, "
    return (
        f"/reset begins a new conversation, {dropping}--capacity N makes room for more "
        "in a new chat, where the bundle allows it"
    )
