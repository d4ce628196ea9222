"""`Drafting`: several tokens are guessed; one call of the target checks them.

In: the session of the target, which is the model that the caller wants tokens of, and
a guesser: a smaller model with a session of the same tokens, or the text itself. Out:
the tokens that the target samples, several per call of the target if the guesses are
right. Rows of a batch have guesses of their own, and one call checks those of all
rows. This is speculative decoding as in Leviathan et al. 2023
and Chen et al. 2023, except for sampling: a draft samples with the same random numbers
as the target, and a guess is accepted if the target samples the same token. So the
target samples the same tokens as without a draft, in the same order and from the same
logits; nothing needs to be corrected, and a seed gives the same tokens with and without
a draft. In exchange, some guesses are rejected that rejection sampling would accept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from kvc.runtime.calls.chunks import ChunkSizes
from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.checking import CheckingCalls
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.drafted_rows import DraftedRow, choose_checked
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.guessing import Guesser
from kvc.schema.errors import (
    Busy,
    Closed,
    Forked,
    NotRewindable,
    Poisoned,
)

_LOST: Final = (Closed, Forked, Poisoned)  # errors of unusable sessions


class Drafting(Decoding):
    """Tokens of a target session, guessed in groups.

    After a check, the target's session holds accepted tokens that the caller has not
    received yet. If other code uses one of the two sessions, `settle` first rewinds the
    two sessions to the tokens that the caller has received.

    A check runs when a row has no accepted token left. Other rows take part and get
    further ahead, up to `reach`. So there are as few calls as the row with the worst
    guesses needs.

    Some states can only be rewound to the start of a call, if the session has copied
    the states at that time. A row of a session with such states is rewound to the start
    of its last call, and runs the accepted tokens again.
    """

    def __init__(
        self,
        target: Feeder,
        checks: ChunkSizes,
        guesser: Guesser,
        leads: Sequence[Sequence[int]],
        draft_tokens: int,
        reach: int = 0,
    ) -> None:
        """Use a target that can be rewound, of several rows each by its own count.

        Args:
            target: the feeder of the target, which samples the answers.
            checks: the numbers of tokens that one call of the target's method with the
                role "prefill_all" can take.
            guesser: guesses the next tokens.
            leads: for each row the tokens that the target's session holds and the
                guesser's session lacks.
            draft_tokens: the greatest number of guesses per check; `checks` must take
                one token more.
            reach: how many tokens after those that the caller has received a row may
                run, if it does so for the sake of other rows.
        """
        super().__init__(target)
        self._drafted = [
            DraftedRow(replace(row), len(lead), [*lead])
            for row, lead in zip(target.rows, leads, strict=True)
        ]
        self.rows = [drafted.row for drafted in self._drafted]
        self._target, self._guesser = target, guesser
        self._checks = CheckingCalls(target, checks)
        self._draft_tokens = draft_tokens
        self._reach = reach if len(self.rows) > 1 else 0
        # Tokens to run next.
        self._pending: Sequence[Sequence[int]] = ((),) * len(self._drafted)
        self._at_work = self._over = False
        # The sessions refer to this list, so that they are settled even if the caller
        # drops the generation; it is empty when nothing is left to settle.
        self._unsettled: list[Drafting] = []

    def begin(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Run the prompts in both sessions; return the first token after each."""
        with self._working():
            for drafted, answer in zip(self._drafted, answers, strict=True):
                drafted.sequence += answer.prompt
                drafted.prompt_length = len(answer.prompt)
            self._guesser.reset()
            self._watch()
            # The guesser first, so that it is never behind if the target's run fails.
            self._guesser.begin(self._sequences)
            try:
                prompts = [answer.prompt for answer in answers]
                logits = self._target.feed_prompts(prompts)
            finally:
                for drafted, row in zip(self._drafted, self._target.rows, strict=True):
                    drafted.row.fed = row.fed
            tokens = list(map(Answer.choose, answers, logits))
            for drafted, token in zip(self._drafted, tokens, strict=True):
                assert token is not None, "the answer has not begun"
                drafted.sequence.append(token)
        return tokens

    def follow(self, answers: Sequence[Answer]) -> Sequence[int | None]:
        """Return the next token of each answer.

        If an answer has no accepted token left, new guesses are checked.
        """
        tokens: list[int | None] = [None] * len(answers)
        with self._working():
            going = [row for row, one in enumerate(answers) if one.reason is None]
            ahead = [row for row in going if self._drafted[row].ahead]
            self._make_up(answers, going, ahead)
            if len(ahead) < len(going):
                self._check(answers, self._taking_part(answers, going))
            for row in ahead:
                self._drafted[row].row.fed += 1
            for row in going:
                tokens[row] = self._drafted[row].ahead.popleft()
        return tokens

    def settle(self) -> None:
        """Bring the two sessions to the tokens that the caller has received.

        `rows` has the numbers of these tokens. The target's session is rewound. The
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

    @property
    def _sequences(self) -> Sequence[Sequence[int]]:
        return [drafted.sequence for drafted in self._drafted]

    def _make_up(
        self, answers: Sequence[Answer], going: Sequence[int], ahead: Sequence[int]
    ) -> None:
        """Run handed-out tokens that the target's session lacks after a rewind.

        Args:
            answers: the answers.
            going: the rows whose answers go on.
            ahead: those rows that have accepted tokens left.
        """
        late = {row: list(answers[row].pending[:-1]) for row in going}
        while any(late.values()):  # a previous settle was incomplete
            fed = {row: tokens.pop(0) for row, tokens in late.items() if tokens}
            self._target.feed([fed.get(row) for row in range(len(answers))])
            for row in fed:
                self._drafted[row].row.fed += 1
        held = self._target.rows
        behind = {r for r in ahead if held[r].fed == self._drafted[r].row.fed}
        if behind:  # settled in the meantime
            self._target.feed(
                [one.last if row in behind else None for row, one in enumerate(answers)]
            )

    def _level_target(self) -> None:
        """Bring the target's session to the token counts in `rows`.

        The session is rewound to these counts. If the states cannot be rewound to
        exactly a count, the row is rewound to a nearby one, and runs missing tokens
        again. Afterwards `rows` has the counts of tokens that the session holds.
        """
        counts = [(one.row.fed, one.known) for one in self._drafted]
        if not self._go_back(self._target, counts):
            return
        held = self._target.rows
        missing = [
            one.sequence[one.lead :][row.fed : one.row.fed]
            for one, row in zip(self._drafted, held, strict=True)
        ]
        try:
            while any(missing):
                self._target.feed([part[0] if part else None for part in missing])
                missing = [part[1:] for part in missing]
        finally:
            for one, row in zip(self._drafted, held, strict=True):
                one.row.fed = row.fed
        self._target.leave_pending(self._pending)

    def _level_guesser(self) -> None:
        """Bring the guesser's session to the target's tokens if it lacks only a few."""
        feeder, most = self._guesser.feeder, self._draft_tokens + 1 + self._reach
        counts = [
            (one.lead + one.row.fed, one.lead + one.known) for one in self._drafted
        ]
        if feeder is None or not self._go_back(feeder, counts):
            return
        missing = [
            one.sequence[row.fed : one.lead + one.row.fed]
            for one, row in zip(self._drafted, feeder.rows, strict=True)
        ]
        self._guesser.follow([part if len(part) <= most else () for part in missing])

    def _go_back(self, feeder: Feeder, counts: Sequence[tuple[int, int]]) -> bool:
        """Rewind a session, or bring it near to what its states allow.

        Args:
            feeder: the feeder of the session.
            counts: for each row the wanted number of tokens, and the greatest number to
                accept if that cannot be reached.

        Returns:
            Whether the session has been rewound. False if other code has used the
            session, or if a row can reach no such count; in the second case the session
            is poisoned.

        Raises:
            KvcError: as `Feeder.go_back`, except for `NotRewindable`.
        """
        below = self._draft_tokens + 1
        wanted = [
            (*range(fed, max(0, fed - below) - 1, -1), *range(fed + 1, known + 1))
            for fed, known in counts
        ]
        try:
            return feeder.go_back(wanted)
        except NotRewindable:
            feeder.session.going_back.give_up(self._checks.method)
            return False

    def _taking_part(
        self, answers: Sequence[Answer], going: Sequence[int]
    ) -> list[int]:
        """Return the rows that can take part in a check.

        They are those without an accepted token, and those that may get further ahead.
        """
        found = []
        for row in going:
            drafted, held = self._drafted[row], self._target.rows[row].fed
            if drafted.ahead:
                ends = drafted.ahead[-1] in answers[row].stop_tokens
                behind = held < drafted.row.fed + len(drafted.ahead)
                if ends or behind or self._limit(answers[row], row) < 1:
                    continue
            found.append(row)
        return found

    def _check(self, answers: Sequence[Answer], rows: Sequence[int]) -> None:
        """Let the guesser guess and the target check the next tokens of some rows.

        Each of the rows has at least one accepted token afterwards.
        """
        guesses = self._guess(answers, rows)
        before = list(map(len, self._sequences))
        held = [row.fed for row in self._target.rows]
        fed: list[Sequence[int]] = [()] * len(answers)
        for row in rows:
            fed[row] = (self._drafted[row].sequence[-1], *guesses[row])
        logits = self._checks.run(fed)
        for row in rows:
            self._drafted[row].row.fed += not self._drafted[row].ahead
        right, accepted = [*fed], [0] * len(answers)
        for row in rows:
            drafted = self._drafted[row]
            may_fail = bool(drafted.ahead)
            chosen = choose_checked(answers[row], logits[row], guesses[row], may_fail)
            drafted.sequence += chosen
            drafted.ahead.extend(chosen)
            right[row], accepted[row] = fed[row][: len(chosen)], len(chosen) - 1
            self.accepted += max(accepted[row], 0)
        self.drafted += sum(map(len, guesses))
        self._keep(held, right)
        self._guesser.keep(before, accepted, list(map(len, guesses)))

    def _keep(self, begins: Sequence[int], right: Sequence[Sequence[int]]) -> None:
        """Rewind the target's session to the accepted tokens of its last call.

        A rewind to the start of the call drops accepted tokens too. They run again; if
        one call does not take them, all but the first run with the caller's next
        requests.

        Args:
            begins: how many tokens each row held before the call.
            right: the accepted tokens of each row.
        """
        ends = [begin + len(part) for begin, part in zip(begins, right, strict=True)]
        pairs = zip(begins, ends, strict=True)
        self._target.go_back([range(end, begin - 1, -1) for begin, end in pairs])
        held = [row.fed for row in self._target.rows]
        rows = zip(right, ends, held, strict=True)
        missing = [part[len(part) - (end - now) :] for part, end, now in rows]
        if any(missing):
            self._checks.run_again(missing)

    def _guess(self, answers: Sequence[Answer], rows: Sequence[int]) -> list[list[int]]:
        """Return guesses of the next tokens, none for a row that is full."""
        counts = [0] * len(answers)
        for row in rows:
            most = self._limit(answers[row], row) - 1
            counts[row] = self._checks.most_guesses(most)
        if not any(counts):
            return [[] for _ in answers]
        guesses = self._guesser.guess(answers, self._sequences, counts)
        return [some[: self._checks.most_guesses(len(some))] for some in guesses]

    def _limit(self, answer: Answer, row: int) -> int:
        """Return how many tokens of a row a check may have, by all limits."""
        ahead, room = len(self._drafted[row].ahead), self._target.rows[row].room
        limits = [self._draft_tokens + 1]
        if answer.wanted is not None:
            limits.append(answer.wanted - ahead)
        if room is not None:
            limits.append(room)
        if ahead:
            limits.append(self._reach - ahead)
        return min(limits)

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
