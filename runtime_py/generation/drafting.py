"""`Drafting`: a small model guesses the next tokens, the target checks them at once.

In: two sessions that hold the same tokens. Out: the target's own tokens, several for
each of its calls where the guesses are right. Speculative decoding as in Leviathan et
al. 2023 and Chen et al. 2023, but for how chance comes in: the draft is asked which
token it would choose by the very chance that the target chooses by, and a guess counts
when the target's own choice is the same. What comes out is what the target chooses, in
the same order and from the same logits as without a draft, whatever the draft says; it
needs no correction, and a seed gives the same tokens with and without. In exchange some
guesses miss that rejection sampling would take.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from weakref import ref

from kvc.runtime.chunks import ChunkSizes
from kvc.runtime.generation.chances import Logits
from kvc.runtime.generation.choosing import Chooser
from kvc.runtime.generation.feeding import Feeder, Pace
from kvc.runtime.generation.sources import Drafted
from kvc.schema.errors import (
    Busy,
    Closed,
    Forked,
    NotRewindable,
    Poisoned,
    UnusableLogits,
)

# A session that is so is left as it is. A ring does not forget an interrupted prompt.
_LEFT: Final = (Busy, Closed, Forked, NotRewindable, Poisoned)


class Drafting:
    """Tokens of a target session, several at a time where a draft guesses them.

    While tokens are handed out that the target has taken already, its session is ahead.
    Who else uses it meanwhile finds it settled.

    Attributes:
        drafted: what the draft has guessed so far.
    """

    def __init__(
        self,
        target: Feeder,
        checks: ChunkSizes,
        draft: Feeder,
        lead: Sequence[int],
        count: int,
        chooser: Chooser,
        stop_tokens: frozenset[int],
    ) -> None:
        """Take two sessions that can go back.

        Args:
            target: whose tokens are wanted.
            checks: its method of the role "prefill_all".
            draft: guesses them.
            lead: what the target holds and the draft does not.
            count: the most guesses at a time, which `checks` takes with one more.
            chooser: of the target.
            stop_tokens: are not worth a check.
        """
        self.drafted = Drafted()
        self._target, self._checks, self._draft = target, checks, draft
        self._count, self._chooser, self._stops = count, chooser, stop_tokens
        self._lead = tuple(lead)
        self._text = [*lead]  # what the draft is to hold, and all that was chosen
        self._chosen: deque[int] = deque()  # and have not been asked for yet
        self._held: int | None = None  # None while the prompt runs
        self._pending: tuple[int, ...] = ()  # after what is held
        self._at_work = False

    @property
    def start(self) -> int | None:
        """Return the position before the prompt."""
        return self._target.start

    @property
    def held(self) -> int:
        """Return how many tokens the target holds, or will when it is settled."""
        return self._target.fed if self._held is None else self._held

    @property
    def room(self) -> int | None:
        """Return how many more tokens the target takes, None for no limit."""
        room = self._target.room
        return None if room is None else room + self._target.fed - self.held

    @property
    def prefill(self) -> Pace:
        """Return the pace of the prompt in the target."""
        return self._target.prefill

    def begin(self, prompt: Sequence[int]) -> int:
        """Run the prompt in both; return the token after it."""
        with self._working():
            self._text += prompt
            self._draft.go_back(0)
            if _fits(self._text, self._draft):
                # First, so that the draft is never behind when this breaks off.
                self._draft.feed_prompt(self._text)
            token = self._chooser.choose(self._target.feed_prompt(prompt))
            self._held = self._target.fed
            self._text.append(token)
            self._watch()
        return token

    def follow(self, token: int, wanted: int | None) -> int:
        """Return the token after the last one, by a check if none is left of one."""
        with self._working():
            if not self._chosen:
                return self._check(token, wanted)
            if self._target.fed == self._held:  # settled since
                self._target.feed(token)
            assert self._held is not None
            self._held += 1
        return self._chosen.popleft()

    def settle(self) -> None:
        """Leave both sessions with what `held` says.

        The draft may be behind by a few tokens, which it takes now. One that is full
        stays behind. A session that cannot be used any more is left as it is.
        """
        if self._at_work:  # the session is being used by this very generation
            return
        with self._working(), suppress(*_LEFT):
            self._target.go_back(self.held)
            self._target.leave_pending(self._pending)
            self._level_draft(len(self._lead) + self.held)

    def leave_pending(self, tokens: Sequence[int]) -> None:
        """Have the target say which tokens it does not hold when it is settled."""
        self._pending = tuple(tokens)
        self._target.leave_pending(tokens)

    def _level_draft(self, count: int) -> None:
        """Have the draft hold `count` tokens of the text, if they are few to run."""
        if not self._draft.go_back(count):
            return
        missing = self._text[self._draft.fed : count]
        if 0 < len(missing) <= self._count + 1 and _fits(missing, self._draft):
            self._run_draft(missing)

    def _run_draft(self, tokens: Sequence[int]) -> Logits:
        """Return the draft's logits after tokens; one alone is what decode is for."""
        one = len(tokens) == 1
        return self._draft.feed(tokens[0]) if one else self._draft.feed_prompt(tokens)

    def _check(self, token: int, wanted: int | None) -> int:
        """Have guesses made and checked; return the first token that was chosen."""
        guesses = self._guess(wanted)
        before = len(self._text)
        if guesses:
            logits = self._target.feed_all(self._checks, (token, *guesses))
        else:
            logits = self._target.feed(token).reshape(1, -1)
        assert self._held is not None
        self._held += 1
        chosen = self._choose(logits, guesses)
        accepted = len(chosen) - 1
        self._text += chosen
        self._chosen.extend(chosen[1:])
        self._target.go_back(self._held + accepted)
        self._draft.go_back(before + accepted)
        self.drafted.tokens += len(guesses)
        self.drafted.accepted += accepted
        return chosen[0]

    def _choose(self, logits: Logits, guesses: Sequence[int]) -> list[int]:
        """Return the target's tokens up to the first that was not guessed."""
        chosen: list[int] = []
        for row, guess in zip(logits, (*guesses, None), strict=True):
            try:
                chosen.append(self._chooser.choose(row))
            except UnusableLogits:
                if not chosen:
                    raise
                break  # comes again when these tokens have been handed out
            if chosen[-1] != guess:
                break
        return chosen

    def _guess(self, wanted: int | None) -> list[int]:
        """Return what the draft would choose next, nothing where it cannot say."""
        count = self._most_guesses(wanted)
        if count < 1:
            return []
        chooser = self._chooser.copy()
        logits = self._run_draft(self._text[self._draft.fed :])
        guesses = [chooser.choose(logits)]
        while len(guesses) < count and guesses[-1] not in self._stops:
            guesses.append(chooser.choose(self._draft.feed(guesses[-1])))
        if guesses[-1] in self._stops:  # is chosen without being fed
            guesses.pop()
        return guesses[: self._that_fit(len(guesses))]

    def _most_guesses(self, wanted: int | None) -> int:
        """Return how many guesses there is room and use for."""
        most = [self._count]
        if self._target.room is not None:
            most.append(self._target.room - 1)
        if wanted is not None:
            most.append(wanted - 1)
        if self._draft.room is not None:
            missing = len(self._text) - self._draft.fed
            most.append(self._draft.room - missing + 1)
        return self._that_fit(min(most))

    def _that_fit(self, count: int) -> int:
        """Return the most guesses that can be checked together with a token before."""
        if count + 1 < self._checks.least:
            return 0
        return self._checks.greatest(count + 1) - 1

    def _watch(self) -> None:
        """Settle before anything else uses the target."""
        myself = ref(self)

        def settle() -> None:
            drafting = myself()
            if drafting is not None:
                drafting.settle()

        self._target.session.before_use(settle)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Let this generation use the sessions as they are."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False


def _fits(tokens: Sequence[int], feeder: Feeder) -> bool:
    return feeder.room is None or len(tokens) <= feeder.room
