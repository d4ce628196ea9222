"""`Drafting`: a draft model guesses several tokens, the target checks them in one call.

In: two sessions that hold the same tokens. Out: the tokens that the target samples,
several per call of the target if the guesses are right. This is speculative decoding as
in Leviathan et al. 2023 and Chen et al. 2023, except for sampling: the draft samples
with the same random numbers as the target, and a guess is accepted if the target
samples the same token. So the target samples the same tokens as without a draft, in the
same order and from the same logits; nothing needs to be corrected, and a seed gives the
same tokens with and without a draft. In exchange, some guesses are rejected that
rejection sampling would accept.
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
from kvc.runtime.generation.sampling import Logits
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
    """Tokens of a target session of one row, guessed in groups by a draft model.

    After a check, the target's session holds accepted tokens that the caller has not
    received yet. If other code uses one of the two sessions at that time, both sessions
    are first brought to the tokens that the caller has received (`settle`).

    Some states can only be rewound to the start of a call, of which the session has a
    copy. A session with such states is rewound to before its last call, and runs the
    accepted tokens again.
    """

    def __init__(
        self,
        target: Feeder,
        checks: ChunkSizes,
        draft: Feeder,
        lead: Sequence[int],
        draft_tokens: int,
    ) -> None:
        """Use two sessions of one row each, both of which can be rewound.

        Args:
            target: the feeder of the target, which samples the answer.
            checks: the token counts of the target's method with the role "prefill_all".
            draft: the feeder of the draft, which guesses.
            lead: the tokens that the target holds and the draft does not.
            draft_tokens: the greatest number of guesses per check; `checks` must take
                one token more.
        """
        super().__init__(target)
        self._row = replace(target.rows[0])  # counts the tokens that were returned
        self.rows = (self._row,)
        self._target, self._checks, self._draft = target, checks, draft
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
            self._draft.go_back(0, 0, 0)
            self._watch()
            if self._draft_takes(self._sequence):
                # The draft first, so that it is never behind if the target's run fails.
                self._draft.feed_prompts([self._sequence])
            try:
                (logits,) = self._target.feed_prompts([answer.prompt])
            finally:
                self._row.fed = self._target.rows[0].fed
            token = answer.chooser.choose(logits)
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
        """Bring both sessions to the token counts in `rows`.

        If the draft lacks a few of the tokens, it runs these tokens, if it has room. An
        unusable session stays as it is. A session that cannot be rewound is poisoned,
        since it holds tokens that the caller has not received. A session that another
        thread is using is brought to the counts before its next use.
        """
        if self._at_work or not self._unsettled:  # used here, or not begun
            return
        with self._working():
            target_done = draft_done = False
            try:
                target_done = _is_done(self._level_target)
            finally:
                draft_done = _is_done(self._level_draft)
        if self._over and target_done and draft_done:
            self._unsettled.clear()

    def end(self) -> None:
        """Bring both sessions to the counts in `rows` at the generation's end."""
        self._at_work, self._over = False, True
        self.settle()

    def leave_pending(self, tokens: Sequence[Sequence[int]]) -> None:
        """Store the tokens to run next in the target's session, after `settle`."""
        self._pending = tokens
        super().leave_pending(tokens)

    def _level_target(self) -> None:
        """Bring the target to the token count in `rows`.

        The target is rewound, to a nearby count if its states cannot reach the count in
        `rows`, and runs missing tokens again. Afterwards `rows` has the count that the
        target holds.
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

    def _level_draft(self) -> None:
        """Bring the draft to the tokens of the target, unless it lacks many tokens."""
        count = self._lead_length + self._row.fed
        known = max(self._lead_length + self._prompt_length, count + 1)
        if not self._go_back(self._draft, count, known):
            return
        missing = self._sequence[self._draft.rows[0].fed : count]
        if 0 < len(missing) <= self._draft_tokens + 1 and self._draft_takes(missing):
            self._run_draft(missing)

    def _go_back(self, feeder: Feeder, fed: int, known: int) -> bool:
        """Rewind a session to `fed` tokens, or to a nearby count that its states allow.

        If the session can reach no such count, it is poisoned. Returns False if other
        code has used the session.

        Raises:
            KvcError: as `Feeder.go_back`, except for `NotRewindable`.
        """
        least = max(0, fed - self._draft_tokens - 1)
        try:
            return feeder.go_back(fed, least, known)
        except NotRewindable:
            feeder.session.going_back.give_up(self._checks.method)
            return False

    def _run_draft(self, tokens: Sequence[int]) -> Logits:
        one = len(tokens) == 1
        logits = self._draft.feed(tokens) if one else self._draft.feed_prompts([tokens])
        return logits.reshape(-1)

    def _check(self, answer: Answer) -> int:
        """Let the draft guess and the target check; return the target's first token."""
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
        self._draft.go_back(before + accepted, before - 1, before + accepted)
        return chosen[0]

    def _keep(self, right: Sequence[int]) -> None:
        """Rewind the target to the accepted tokens of its last call.

        If the rewind dropped accepted tokens too, these run again: in one call if the
        checking method takes that many tokens; if not, the first token at once, and the
        others with the next requests.
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
        """Return the draft's guesses; none if a session has no room for them."""
        # As many as the sessions have room for, up to the limits.
        (row,) = self._draft.rows
        limits = [self._draft_tokens + 1, answer.wanted, self._target.rows[0].room]
        if row.room is not None:
            limits.append(row.room + row.fed - len(self._sequence) + 2)
        count = self._that_fit(min(limit for limit in limits if limit is not None) - 1)
        if count < 1:
            return []
        chooser, stop_tokens = answer.chooser.copy(), answer.stop_tokens
        logits = self._run_draft(self._sequence[self._draft.rows[0].fed :])
        guesses = [chooser.choose(logits)]
        while len(guesses) < count and guesses[-1] not in stop_tokens:
            guesses.append(chooser.choose(self._draft.feed(guesses[-1:])[0]))
        if guesses[-1] in stop_tokens:  # the target samples it without running it
            guesses.pop()
        return guesses[: self._that_fit(len(guesses))]

    def _that_fit(self, count: int) -> int:
        """Return how many guesses, at most `count`, one checking call takes."""
        fits = count + 1 >= self._checks.least
        return self._checks.greatest(count + 1) - 1 if fits else 0

    def _draft_takes(self, tokens: Sequence[int]) -> bool:
        room = self._draft.rows[0].room
        return room is None or len(tokens) <= room

    def _watch(self) -> None:
        """Make both sessions call `settle` before other code uses them."""
        self._unsettled.append(self)
        unsettled = self._unsettled

        def settle() -> None:
            for drafting in [*unsettled]:
                drafting.settle()

        for feeder in (self._target, self._draft):
            feeder.session.before_use(settle)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Make `settle` do nothing: the generation itself uses the sessions."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False


def _is_done(level: Callable[[], None]) -> bool:
    """Bring one session to its tokens; return False if another thread is using it."""
    try:
        level()
    except _LOST:
        pass
    except Busy:
        return False
    return True


def _choose(answer: Answer, logits: Logits, guesses: Sequence[int]) -> list[int]:
    """Return the tokens that the target samples, up to the first wrong guess."""
    chosen: list[int] = []
    for row, guess in zip(logits, (*guesses, None), strict=True):
        try:
            chosen.append(answer.chooser.choose(row))
        except UnusableLogits:
            if not chosen:
                raise
            break  # raised again once these tokens have been handed out
        if chosen[-1] != guess:
            break
    return chosen
