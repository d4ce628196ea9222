"""The session and the system message at the beginning of a `Conversation`.

In: a session, its history and messages, as the caller gives them. Out: the tokens that
the session holds, and the system message, both checked.
"""

from collections.abc import Sequence

from kvc.runtime.generation.prompts import histories_of
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import ChatTemplate, Message
from kvc.runtime.tokenizers.chat_template import told_of
from kvc.schema.errors import BadSetting, NoPosition


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
