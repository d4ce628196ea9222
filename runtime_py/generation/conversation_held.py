"""`Held`: which tokens of a conversation its session holds.

In: the tokens of the next prompt, with a negative mark for each of a picture's image
tokens. Out: a session that has gone back to the tokens that both have in common. States
that cannot go back to any position, such as recurrent ones, are copied within each
prompt, where the next turn is expected to differ; the session then goes back to the
nearest copy.
"""

from collections.abc import Sequence
from typing import Final

from kvc.runtime.generation.generation import Generation
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import (
    CannotRewind,
    Closed,
    NoPosition,
    NotRewindable,
    Poisoned,
)

_MOST: Final = 4  # turns whose copies are kept, such as those of a few calls of tools


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
        end inside a picture. If the session cannot be rewound to their end, it goes
        back to the nearest copy of its states; without one, reset it and return 0.
        """
        common = self.common(tokens)
        try:
            self.session.check_usable()
            if common < len(self.tokens):
                common = self._back_to(self.session, common)
        except (NoPosition, NotRewindable, CannotRewind, Poisoned):
            self.forget()
            return 0
        del self.tokens[common:]
        return common

    def common(self, tokens: Sequence[int]) -> int:
        """Return how many of new tokens, but for the last, the session holds."""
        common = 0
        for one, other in zip(self.tokens, tokens[:-1], strict=False):
            if one != other:
                break
            common += 1
        mark = next((one for one in reversed(tokens[:common]) if one < 0), None)
        if mark is not None and mark in tokens[common:]:
            common = tokens.index(mark)
        return common

    def _back_to(self, session: Session, common: int) -> int:
        """Rewind a session to a position, or to the nearest copy before; return it.

        Raises:
            NoPosition, NotRewindable, CannotRewind, Poisoned: as `Session.rewind`.
        """
        way = session.going_back
        copies = [at for at in way.kept if at < common]
        if not copies:
            session.rewind(len(self.tokens) - common)
            return common
        return way.to_one_of([[common, *copies]])[0]

    @property
    def needs_copies(self) -> bool:
        """Tell whether the session can only go back to where it was copied."""
        return self.session.going_back.needs_copies

    def keep_at(self, position: int | None) -> None:
        """Have the next prompt copy the states at a position, None for nowhere."""
        self.session.going_back.keep_at(position, _MOST)

    def before(self, expected: Sequence[int]) -> tuple[Session, list[int]]:
        """Return a session that has gone back to what the next turn will share.

        Args:
            expected: the tokens of a turn like the next, none if it is unknown.

        Returns:
            A fork that the caller closes, and its tokens; or this session, if it does
            not need to go back, or cannot.
        """
        common = self.common([*expected, 0])
        if not expected or common == len(self.tokens):
            return self.session, self.tokens
        fork = self.session.fork()
        try:
            end = self._back_to(fork, common)
        except (NoPosition, NotRewindable, CannotRewind):
            fork.close()
            return self.session, self.tokens
        return fork, self.tokens[:end]

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
            stops = answer.settings.stop_tokens
            pending = sum(token not in stops for token in answer.pending)
            self.tokens = list(tokens[: len(tokens) - pending])
        except (Closed, Poisoned):
            self.tokens = []
