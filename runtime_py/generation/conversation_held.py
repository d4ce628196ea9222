"""`Held`: which tokens of a conversation its session holds.

In: the tokens of the next prompt, with a negative mark for each of a picture's image
tokens. Out: a session that has gone back to the tokens that both have in common.
"""

from collections.abc import Sequence

from kvc.runtime.generation.generation import Generation
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import (
    CannotRewind,
    Closed,
    NoPosition,
    NotRewindable,
    Poisoned,
)


class Held:
    """The content of a session.

    Attributes:
        session: the session.
        tokens: the tokens that it holds, and marks in place of image tokens.
    """

    def __init__(self, session: Session, tokens: Sequence[int]) -> None:
        """Take over a session that holds the given tokens."""
        self.session, self.tokens = session, list(tokens)

    def keep_common(self, tokens: Sequence[int]) -> int:
        """Rewind the session to the tokens that it has in common with new tokens.

        Return the number of tokens that the session keeps. At least the last of
        `tokens` is left to run, since only a run returns logits. The kept tokens do not
        end inside a picture. If the session cannot be rewound, reset it and return 0.
        """
        common = self._common(tokens)
        try:
            self.session.check_usable()
            if common < len(self.tokens):
                self.session.rewind(len(self.tokens) - common)
        except (NoPosition, NotRewindable, CannotRewind, Poisoned):
            self.forget()
            return 0
        del self.tokens[common:]
        return common

    def _common(self, tokens: Sequence[int]) -> int:
        common = 0
        for one, other in zip(self.tokens, tokens[:-1], strict=False):
            if one != other:
                break
            common += 1
        mark = next((one for one in reversed(tokens[:common]) if one < 0), None)
        if mark is not None and mark in tokens[common:]:
            common = tokens.index(mark)
        return common

    def forget(self) -> None:
        """Reset the session."""
        self.session.reset()
        self.tokens = []

    def settle(self, answer: Generation, tokens: Sequence[int]) -> None:
        """Record which of the given tokens the session holds after an answer."""
        try:
            self.tokens = list(tokens[: int(self.session.position[0])])
        except NoPosition:
            if answer.reason is None:  # the content of the session is unknown
                self.forget()
                return
            # A stop token is pending, too, but is not in `tokens`.
            pending = len(answer.pending) - (answer.reason == "stop")
            self.tokens = list(tokens[: len(tokens) - pending])
        except (Closed, Poisoned):
            self.tokens = []
