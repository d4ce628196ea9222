"""`Room`: which turns of a conversation are read where not all of them fit.

In: messages, the capacity of the session, how long an answer may be. Out: a turn that
leaves room for its answer. The oldest turns are left out, each as a whole: a message of
the user with all that answers it. The system message stays, as do tools. What of the
rest has to run again is up to `conversation_held.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from kvc.runtime.generation.conversation_script import Script, Turn
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import Message
from kvc.schema.errors import BadSetting, PromptTooLong

OnFull = Literal["stop", "drop", "sinks"]

_FREE: Final = (
    16  # an answer of any length begins if a sixteenth of the capacity is free
)
_FREED: Final = 4  # where turns are left out, a fourth of the capacity becomes free


class Room:
    """What of a conversation is read.

    Attributes:
        on_full: what happens where the session is full: "stop" ends the answer, "drop"
            leaves out the oldest turns; "sinks": it never is, since its caches keep the
            first positions and a window of the last ones.
        dropped: how many messages after the system message are no longer read.
        read_again: how many tokens the last answer has read again, since turns before
            them were left out.
    """

    def __init__(
        self, script: Script, session: Session, on_full: OnFull, most: int | None
    ) -> None:
        """Begin with all messages.

        Args:
            script: turns messages into tokens.
            session: the session, whose capacity is the limit.
            on_full: "stop", "drop" or "sinks".
            most: the greatest number of tokens of an answer, None for no limit.

        Raises:
            BadSetting: `on_full` is none of these, or "drop" without a chat template,
                or "sinks" where a session has a limit.
        """
        if on_full not in get_args(OnFull):
            expected = "'stop', 'drop' or 'sinks'"
            raise BadSetting(name="on_full", expected=expected, found=repr(on_full))
        if on_full == "sinks" and session.capacity is not None:
            expected = (
                f"'stop' or 'drop', as this session is full at {session.capacity} "
                "tokens; a model compiled with kvc compile --window N --keep K "
                "(CacheConfig(window=N, keep=K)) never is, unless it looks positions "
                "up in a table, or a session is given a capacity"
            )
            raise BadSetting(name="on_full", expected=expected, found="'sinks'")
        if on_full == "drop" and script.template is None:
            expected = "'stop', as without a chat template there are no turns to drop"
            raise BadSetting(name="on_full", expected=expected, found="'drop'")
        self.on_full: OnFull = on_full
        self.dropped = self.read_again = 0
        self._script, self._session, self._most = script, session, most

    @property
    def capacity(self) -> int | None:
        """Return the limit above which turns are left out, None for no limit."""
        return self._session.capacity if self.on_full == "drop" else None

    def read(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return those of the messages that are still read."""
        return without(messages, self.dropped)

    def fitting(self, before: Sequence[Message], turn: Turn) -> Turn:
        """Return a turn with room for its answer: without the oldest turns, if need be.

        If fewer tokens than an answer may have are free, at most half of the capacity,
        turns are left out until as many are free, and a fourth of the capacity. Where
        an answer has no limit, it is a sixteenth that has to be free. If nothing more
        can be left out, less room will do.

        Args:
            before: all messages before the turn.
            turn: the turn that leaves out no more than earlier ones.

        Raises:
            PromptTooLong: the new messages alone do not fit.
            BadChatTemplate, TemplateLimit, BadSetting: as `Script.turn`.
        """
        capacity = self.capacity
        if capacity is None:
            return turn
        least = capacity // _FREE if self._most is None else self._most
        least = min(least, capacity // 2)
        if len(turn.tokens) + least > capacity:
            turn = self._shorter(
                before, turn, capacity - max(least, capacity // _FREED)
            )
        count = len(turn.tokens)
        if count > capacity:
            raise PromptTooLong(
                row=0, start=0, count=count, capacity=capacity, room=capacity
            )
        return turn

    def again(self, before: Sequence[Message], turn: Turn, made: int) -> Turn | None:
        """Return the turn of an answer that has filled the session, without old turns.

        None if nothing more can be left out.

        Args:
            before: all messages before the turn.
            turn: the turn as it was read.
            made: how many tokens the answer has.
        """
        capacity = self.capacity
        if capacity is None:
            return None
        shorter = self._shorter(before, turn, capacity - capacity // _FREED - made)
        fits = len(shorter.tokens) + made <= capacity
        return shorter if fits and shorter.dropped > turn.dropped else None

    def _shorter(self, before: Sequence[Message], turn: Turn, most: int) -> Turn:
        """Leave out old turns until at most `most` tokens are left, or the new turn."""
        shorter = turn
        for dropped in _ends(before, turn):
            gone = before[_heading(before) :][turn.dropped : dropped]
            shown = turn.shown[sum(map(self._script.pictures_in, gone)) :]
            left = without(before, dropped)
            shorter = replace(
                self._script.turn(left, turn.said, shown), dropped=dropped
            )
            if len(shorter.tokens) <= most:
                break
        return shorter


def _ends(before: Sequence[Message], turn: Turn) -> list[int]:
    """Return after how many messages each turn ends that can still be left out.

    The new messages keep what they answer, such as calls of tools.
    """
    begun = [*before[_heading(before) :], *turn.said[:1]]
    starts = [at for at, one in enumerate(begun) if one.get("role") == "user"]
    return [at for at in starts if at > turn.dropped]


def without(messages: Sequence[Message], dropped: int) -> Sequence[Message]:
    """Return messages without the first ones after the system message."""
    heading = _heading(messages)
    return [*messages[:heading], *messages[heading + dropped :]]


def _heading(messages: Sequence[Message]) -> int:
    """Return 1 if the messages begin with a system message, 0 if not."""
    return int(bool(messages) and messages[0].get("role") in {"system", "developer"})
