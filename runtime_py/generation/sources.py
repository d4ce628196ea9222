"""Where the next token comes from: `Source`, and `Feeding`, the plain way.

In: the prompt, then each token that was handed out. Out: the token that follows it,
chosen from the target's logits. `drafting.py` has the way with a second model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.feeding import Feeder, Pace


@dataclass(slots=True)
class Drafted:
    """Tokens that a draft has guessed.

    Attributes:
        tokens: that were checked.
        accepted: that the target has chosen, too.
    """

    tokens: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Return the share that was accepted, 0 when nothing was drafted."""
        return self.accepted / self.tokens if self.tokens else 0.0


class Source(Protocol):
    """Gives the tokens of one generation.

    Attributes:
        drafted: what a draft has guessed so far.
    """

    drafted: Drafted

    @property
    def start(self) -> int | None:
        """Return the position before the prompt, None where nothing counts."""
        ...

    @property
    def held(self) -> int:
        """Return how many tokens of prompt and answer the session holds.

        It may hold more until `settle`.
        """
        ...

    @property
    def room(self) -> int | None:
        """Return how many more tokens the session takes, None for no limit."""
        ...

    @property
    def prefill(self) -> Pace:
        """Return the pace of the prompt."""
        ...

    def begin(self, prompt: Sequence[int]) -> int:
        """Run the prompt; return the token after it.

        Raises:
            StateMismatch: something else has used a session.
            UnusableLogits: there is nothing to choose from.
            ExecutionError: as `Session.call`.
        """
        ...

    def follow(self, token: int, wanted: int | None) -> int:
        """Take the last token, which was handed out, and return the one after it.

        Args:
            token: the last one that was returned.
            wanted: how many more tokens there may be, None for no limit.

        Raises as `begin` does.
        """
        ...

    def settle(self) -> None:
        """Leave the session with what `held` says and no more."""
        ...

    def leave_pending(self, tokens: Sequence[int]) -> None:
        """Have the session say which tokens of the answer it does not hold."""
        ...


class Feeding:
    """Tokens one after the other, each fed to the session when the next is wanted."""

    def __init__(self, feeder: Feeder, chooser: Chooser) -> None:
        self._feeder, self._chooser = feeder, chooser
        self.drafted = Drafted()

    @property
    def start(self) -> int | None:
        """Return the position before the prompt, None where nothing counts."""
        return self._feeder.start

    @property
    def held(self) -> int:
        """Return how many tokens of prompt and answer the session holds."""
        return self._feeder.fed

    @property
    def room(self) -> int | None:
        """Return how many more tokens the session takes, None for no limit."""
        return self._feeder.room

    @property
    def prefill(self) -> Pace:
        """Return the pace of the prompt."""
        return self._feeder.prefill

    def begin(self, prompt: Sequence[int]) -> int:
        """Run the prompt; return the token after it."""
        return self._chooser.choose(self._feeder.feed_prompt(prompt))

    def follow(self, token: int, wanted: int | None) -> int:
        """Feed the last token; return the one after it."""
        return self._chooser.choose(self._feeder.feed(token))

    def settle(self) -> None:
        """Do nothing: the session is never ahead."""

    def leave_pending(self, tokens: Sequence[int]) -> None:
        """Have the session say which tokens of the answer it does not hold."""
        self._feeder.leave_pending(tokens)
