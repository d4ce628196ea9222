"""`Drafting`: several tokens are guessed; one call of the target checks them.

In: the session of the target, which is the model that the caller wants tokens of, and
a guesser: a smaller model with a session of the same tokens, or the text itself. Out:
the tokens that the target samples, several per call of the target if the guesses are
right. This is speculative decoding as in Leviathan et al. 2023 and Chen et al. 2023,
except for sampling: a draft samples with the same random numbers as the target, and a
guess is accepted if the target samples the same token. So the target samples the same
tokens as without a draft, in the same order and from the same logits; nothing needs to
be corrected, and a seed gives the same tokens with and without a draft. In exchange,
some guesses are rejected that rejection sampling would accept.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from kvc.runtime.calls.chunks import ChunkSizes
from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.guessing import Guesser
from kvc.runtime.generation.logits import Logits
from kvc.schema.errors import (
    Busy,
    Closed,
    Forked,
    NotRewindable,
    Poisoned,
    UnusableLogits,
)

_LOST: Final = (Closed, Forked, Poisoned)  # errors of unusable sessions


class Drafting(Decoding):
    """Tokens of a target session of one row, guessed in groups.

    After a check, the target's session holds accepted tokens that the caller has not
    received yet. If other code then uses one of the two sessions, `settle` first
    rewinds the two sessions to the tokens that the caller has received.

    Some states can only be rewound to the start of a call, if the session has copied
    the states at that time. A session with such states is rewound to the start of its
    last call, and runs the accepted tokens again.
    """

    def __init__(
        self,
        target: Feeder,
        checks: ChunkSizes,
        guesser: Guesser,
        lead: Sequence[int],
        draft_tokens: int,
    ) -> None:
        """Use a target of one row, which can be rewound.

        Args:
            target: the feeder of the target, which samples the answer.
            checks: the numbers of tokens that one call of the target's method with the
                role "prefill_all" can take.
            guesser: guesses the next tokens.
            lead: the tokens that the target's session holds and the guesser's session
                lacks.
            draft_tokens: the greatest number of guesses per check; `checks` must take
                one token more.
        """
        super().__init__(target)
        self._row = replace(target.rows[0])  # counts the tokens that were returned
        self.rows = (self._row,)
        self._target, self._checks, self._guesser = target, checks, guesser
        self._draft_tokens, self._lead_length = draft_tokens, len(lead)
        self._prompt_length = 0
        self._sequence = [*lead]  # the draft's lacking tokens, then prompt and answer
        self._ahead: deque[int] = deque()  # sampled tokens that were not handed out yet
        self._pending: Sequence[Sequence[int]] = ((),)  # tokens to run next
        self._at_work = self._over = False
        # The sessions refer to this list, so that they are settled even if the caller
        # drops the generation; it is empty when nothing is left to settle.
        self._unsettled: list[Drafting] = []

    def begin(self, answers: Sequence[Answer]) -> list[int]:
        """Run the prompt in both sessions; return the first token after the prompt."""
        (answer,) = answers
        with self._working():
            self._sequence += answer.prompt
            self._prompt_length = len(answer.prompt)
            self._guesser.reset()
            self._watch()
            # The guesser first, so that it is never behind if the target's run fails.
            self._guesser.begin(self._sequence)
            try:
                (logits,) = self._target.feed_prompts([answer.prompt])
            finally:
                self._row.fed = self._target.rows[0].fed
            token = answer.choose(logits)
            assert token is not None, "the answer has not begun"
            self._sequence.append(token)
        return [token]

    def follow(self, answers: Sequence[Answer]) -> list[int]:
        """Return the next token; if no accepted token is left, check new guesses."""
        (answer,) = answers
        with self._working():
            for token in answer.pending[:-1]:  # a previous settle was incomplete
                self._target.feed([token])
                self._row.fed += 1
            if not self._ahead:
                return [self._check(answer)]
            if self._target.rows[0].fed == self._row.fed:  # settled in the meantime
                self._target.feed([answer.last])
            self._row.fed += 1
        return [self._ahead.popleft()]

    def settle(self) -> None:
        """Bring the two sessions to the tokens that the caller has received.

        `rows` has the number of these tokens. The target's session is rewound. The
        draft's session is rewound, or runs the tokens that it lacks if they are few and
        there is capacity for them. A session that is closed or cannot be used stays as
        it is. A session that cannot be rewound is poisoned, since it holds tokens that
        the caller has not received. A session that another thread is using is brought
        to the tokens later, before its next use.
        """
        if self._at_work or not self._unsettled:  # used here, or not begun
            return
        with self._working():
            target_done = guesser_done = False
            try:
                target_done = _is_done(self._level_target)
            finally:
                guesser_done = _is_done(self._level_guesser)
        if self._over and target_done and guesser_done:
            self._unsettled.clear()

    def end(self) -> None:
        """Bring the two sessions to the counts in `rows`, at the generation's end."""
        self._at_work, self._over = False, True
        self.settle()

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store in the target's session the tokens to run next.

        `settle` stores these tokens again after a rewind.
        """
        self._pending = tokens
        super().leave_pending(tokens)

    def _level_target(self) -> None:
        """Bring the target's session to the token count in `rows`.

        The session is rewound to that count. If the states cannot be rewound to exactly
        that count, the session is rewound to a nearby one, and runs missing tokens
        again. Afterwards `rows` has the count of tokens that the session holds.
        """
        fed = self._row.fed
        known = max(self._prompt_length, fed + 1)  # tokens that were handed out
        if not self._go_back(self._target, fed, known):
            return
        (row,) = self._target.rows
        try:
            for token in self._sequence[self._lead_length :][row.fed : fed]:
                self._target.feed([token])
        finally:
            self._row.fed = row.fed
        self._target.leave_pending(self._pending)

    def _level_guesser(self) -> None:
        """Bring the guesser's session to the target's tokens if it lacks only a few."""
        count = self._lead_length + self._row.fed
        known = max(self._lead_length + self._prompt_length, count + 1)
        feeder = self._guesser.feeder
        if feeder is not None and self._go_back(feeder, count, known):
            missing = self._sequence[feeder.rows[0].fed : count]
            if len(missing) <= self._draft_tokens + 1:
                self._guesser.follow(missing)

    def _go_back(self, feeder: Feeder, fed: int, known: int) -> bool:
        """Rewind a session to `fed` tokens, or to a nearby count that its states allow.

        Args:
            feeder: the feeder of the session.
            fed: the wanted number of tokens.
            known: the greatest number of tokens to accept if `fed` cannot be reached.

        Returns:
            Whether the session has been rewound. False if other code has used the
            session, or if the session can reach no such count; in the second case it is
            poisoned.

        Raises:
            KvcError: as `Feeder.go_back`, except for `NotRewindable`.
        """
        least = max(0, fed - self._draft_tokens - 1)
        try:
            return feeder.go_back(fed, least, known)
        except NotRewindable:
            feeder.session.going_back.give_up(self._checks.method)
            return False

    def _check(self, answer: Answer) -> int:
        """Let the draft guess and the target check; return the target's first token.

        Further accepted tokens are stored for the caller's next requests.
        """
        guesses = self._guess(answer)
        before = len(self._sequence)
        fed = (answer.tokens[-1], *guesses)
        check = self._checks.method
        logits = self._target.run(check, [fed]) if guesses else self._target.feed(fed)
        self._row.fed += 1
        chosen = _choose(answer, logits, guesses)
        accepted = len(chosen) - 1
        self._sequence += chosen
        self._ahead.extend(chosen[1:])
        self.drafted += len(guesses)
        self.accepted += accepted
        self._keep(fed[: accepted + 1])
        self._guesser.keep(before, accepted, len(guesses))
        return chosen[0]

    def _keep(self, right: Sequence[int]) -> None:
        """Rewind the target's session to the accepted tokens of its last call.

        A rewind to the start of the call drops accepted tokens too. They run again: in
        one call if the method that checks takes that many tokens. If not, only the
        first dropped token runs now, and the others run with the caller's next
        requests.
        """
        end, (row,) = self._row.fed + len(right) - 1, self._target.rows
        self._target.go_back(end, self._row.fed - 1, end)
        if row.fed == end:
            return
        missing = right[row.fed - end :]
        size = len(missing)
        at_once = size >= self._checks.least and self._checks.greatest(size) == size
        if size > 1 and at_once:
            self._target.run(self._checks.method, [missing])
        else:
            self._target.feed(missing[:1])

    def _guess(self, answer: Answer) -> list[int]:
        """Return guesses of the next tokens, none if either session is full."""
        # As many as the sessions have room for, up to the limits.
        limits = [self._draft_tokens + 1, answer.wanted, self._target.rows[0].room]
        count = self._that_fit(min(limit for limit in limits if limit is not None) - 1)
        if count < 1:
            return []
        guesses = self._guesser.guess(answer, self._sequence, count)
        return guesses[: self._that_fit(len(guesses))]

    def _that_fit(self, count: int) -> int:
        """Return how many guesses one checking call can take, at most `count`."""
        fits = count + 1 >= self._checks.least
        return self._checks.greatest(count + 1) - 1 if fits else 0

    def _watch(self) -> None:
        """Make the sessions call `settle` before other code uses one of them."""
        self._unsettled.append(self)
        unsettled = self._unsettled

        def settle() -> None:
            for drafting in [*unsettled]:
                drafting.settle()

        for feeder in (self._target, self._guesser.feeder):
            if feeder is not None:
                feeder.session.before_use(settle)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Make `settle` do nothing in the `with` block, which uses the sessions."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False


def _is_done(level: Callable[[], None]) -> bool:
    """Call `level`, which rewinds one session; return False if a thread is using it.

    A session that is closed or unusable counts as done.
    """
    try:
        level()
    except _LOST:
        pass
    except Busy:
        return False
    return True


def _choose(answer: Answer, logits: Logits, guesses: Sequence[int]) -> list[int]:
    """Return the tokens that the target samples at the guesses.

    The list ends with the first token that differs from its guess. If all guesses are
    right, it ends with the token after the last guess.

    Args:
        answer: the answer whose chooser samples.
        logits: float32 [guesses + 1, vocab].
        guesses: the tokens that the draft guessed.
    """
    chosen: list[int] = []
    for row, guess in zip(logits, (*guesses, None), strict=True):
        try:
            token = answer.choose(row)
            assert token is not None, "no token has been handed out yet"
            chosen.append(token)
        except UnusableLogits:
            if not chosen:
                raise
            break  # raised again once these tokens have been handed out
        if chosen[-1] != guess:
            break
    return chosen
