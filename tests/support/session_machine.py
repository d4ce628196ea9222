"""A random test of sessions: operations in any order, compared with a simple model.

The model is the list of tokens that the session should hold. The results of a call must
be those of one forward over all these tokens, whatever happened before.
"""

from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from broken_steps import broken_step
from cached_models import SLOTS, VOCAB
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from session_kinds import KINDS, Kind
from state_runs import snapshot

from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    Closed,
    KernelFailed,
    NoPosition,
    NotRewindable,
    Program,
    Session,
)
from kvc.schema.errors import BadSnapshot, KvcError, Poisoned
from kvc.schema.model import StateKind

SETTINGS = settings(
    max_examples=4,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7)
WHICH = st.integers(0, 99)


@cache
def forward(kind: str, tokens: tuple[int, ...]) -> np.ndarray:
    return KINDS[kind].forward(tokens)


@dataclass(slots=True)
class Talk:
    session: Session
    tokens: list[int]
    capacity: int | None
    transactional: bool

    @property
    def room(self) -> int:
        """Return how many more tokens fit into the session."""
        return (self.capacity or SLOTS) - len(self.tokens)


def _speaks(machine: "Conversations") -> bool:
    return machine.talk is not None


class Conversations(RuleBasedStateMachine):
    """The sessions of one random test, and the files that they were saved to.

    One session is in use; its forks wait until it is their turn.
    """

    near = 1e-5  # how far logits may be from what is expected

    name: str
    kind: Kind
    program: Program
    other: Program
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[Path, list[int], int | None]] = []
        self.talk: Talk | None = None
        self.waiting: list[Talk] = []

    @initialize(capacity=st.integers(2, SLOTS), transactional=st.booleans())
    def begin(self, capacity: int, transactional: bool) -> None:
        self._open(capacity, transactional)

    @precondition(lambda self: self.talk is None)
    @rule(capacity=st.integers(2, SLOTS), transactional=st.booleans())
    def open_another(self, capacity: int, transactional: bool) -> None:
        self._open(capacity, transactional)

    def nothing(self) -> list[int]:
        """Return the tokens of a new session: none."""
        return []

    def _open(self, capacity: int, transactional: bool) -> None:
        chosen = capacity if self.kind.counts else None
        made = self.program.session(capacity=chosen, transactional=transactional)
        self.talk = Talk(made, self.nothing(), chosen, transactional)

    @precondition(_speaks)
    @rule(tokens=TOKENS, kept=st.booleans())
    def prefill(self, tokens: list[int], kept: bool) -> None:
        self._feed(self.kind.methods[0].name, tokens, kept)

    @precondition(_speaks)
    @rule(token=st.integers(0, VOCAB - 1), kept=st.booleans())
    def decode(self, token: int, kept: bool) -> None:
        self._feed(self.kind.methods[-1].name, [token], kept)

    def _feed(self, name: str, tokens: list[int], kept: bool) -> None:
        talk = self.talk
        if len(tokens) > talk.room:
            if talk.capacity is not None:
                with pytest.raises(CacheOverflow):
                    self._call(name, tokens, kept)
            return
        result = self._call(name, tokens, kept)
        logits = result["logits"] if isinstance(result, dict) else result
        lost = self.kind.loses and not kept
        talk.tokens += [~token for token in tokens] if lost else tokens
        expected = self.expected(len(tokens))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=self.near)

    def expected(self, count: int) -> np.ndarray:
        return forward(self.name, tuple(self.talk.tokens))[:, -count:]

    def _call(self, name: str, tokens: list[int], kept: bool) -> object:
        held = len(self.talk.tokens)
        given = self.kind.arguments(np.array([tokens]), held, kept)
        return self.talk.session.call(name, *given)

    @precondition(_speaks)
    @rule(
        tokens=TOKENS, kept=st.booleans(), step=st.integers(0, 40), after=st.booleans()
    )
    def fail(self, tokens: list[int], kept: bool, step: int, after: bool) -> None:
        talk, before = self.talk, snapshot(self.talk.session)
        if len(tokens) > talk.room:
            return
        with broken_step(step, after):
            try:
                self._feed(self.kind.methods[0].name, tokens, kept)
            except KernelFailed:
                pass
            else:
                return  # it has not so many steps
        try:
            talk.session.check_usable()
        except Poisoned:
            assert not self.kind.goes_back
            assert not talk.transactional
            self._begin_anew()
        else:
            for name, state in snapshot(talk.session).items():
                assert np.array_equal(state, before[name]), name

    def _begin_anew(self) -> None:
        session = self.talk.session
        for use in (
            lambda: self._call(self.kind.methods[-1].name, [1], True),
            lambda: session.save(self.folder / "never.kvcs"),
            session.fork,
        ):
            with pytest.raises(Poisoned):
                use()
        self.reset()

    @precondition(_speaks)
    @rule(tokens=st.sampled_from([[[1.0]], [1], "x", [["a"]]]))
    def feed_nonsense(self, tokens: object) -> None:
        with pytest.raises(KvcError):
            self.talk.session.call(self.kind.methods[0].name, np.array(tokens))

    @precondition(_speaks)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        talk = self.talk
        count = round(share * len(talk.tokens))
        if not self.kind.goes_back:
            with pytest.raises(NotRewindable if self.kind.counts else NoPosition):
                talk.session.rewind(count)
            return
        talk.session.rewind(count)
        del talk.tokens[len(talk.tokens) - count :]

    @precondition(lambda self: _speaks(self) and self.kind.goes_back)
    @rule(beyond=st.integers(1, 9))
    def rewind_too_far(self, beyond: int) -> None:
        for count in (len(self.talk.tokens) + beyond, -beyond):
            with pytest.raises(BadSetting):
                self.talk.session.rewind(count)

    @precondition(_speaks)
    @rule()
    def reset(self) -> None:
        self.talk.session.reset()
        self.talk.tokens = self.nothing()

    @precondition(_speaks)
    @rule()
    def trim(self) -> None:
        self.talk.session.trim()

    @precondition(_speaks)
    @rule()
    def save(self) -> None:
        path, talk = self.folder / f"{len(self.saved)}.kvcs", self.talk
        talk.session.save(path)
        self.saved.append((path, copy(talk.tokens), talk.capacity))

    @precondition(lambda self: _speaks(self) and len(self.waiting) < 4)
    @rule(transactional=st.sampled_from([None, False, True]))
    def fork(self, transactional: bool | None) -> None:
        talk = self.talk
        how = talk.transactional if transactional is None else transactional
        forked = talk.session.fork(transactional)
        self.waiting.append(Talk(forked, copy(talk.tokens), talk.capacity, how))

    @precondition(lambda self: _speaks(self) and self.waiting)
    @rule(which=WHICH)
    def go_on_with_a_fork(self, which: int) -> None:
        chosen = self.waiting.pop(which % len(self.waiting))
        self.waiting.append(self.talk)
        self.talk = chosen

    @precondition(lambda self: not _speaks(self) and self.waiting)
    @rule(which=WHICH)
    def outlive_the_one_that_was_closed(self, which: int) -> None:
        self.talk = self.waiting.pop(which % len(self.waiting))

    @precondition(lambda self: self.saved)
    @rule(which=WHICH, transactional=st.booleans())
    def restore(self, which: int, transactional: bool) -> None:
        path, tokens, capacity = self.saved[which % len(self.saved)]
        if self.talk is not None:
            self.talk.session.close()
        restored = self.program.restore(path, transactional=transactional)
        self.talk = Talk(restored, copy(tokens), capacity, transactional)

    @precondition(lambda self: self.saved)
    @rule(which=WHICH, place=st.floats(0, 1, exclude_max=True))
    def restore_damaged(self, which: int, place: float) -> None:
        content = bytearray(self.saved[which % len(self.saved)][0].read_bytes())
        content[int(place * len(content))] ^= 0x10
        path = self.folder / "damaged.kvcs"
        path.write_bytes(content)
        with pytest.raises(BadSnapshot):
            self.program.restore(path)

    @precondition(lambda self: self.saved)
    @rule(which=WHICH)
    def restore_into_another_program(self, which: int) -> None:
        with pytest.raises(BadSnapshot):
            self.other.restore(self.saved[which % len(self.saved)][0])

    @precondition(_speaks)
    @rule()
    def close(self) -> None:
        session, name = self.talk.session, self.kind.methods[-1].name
        self.talk = None
        session.close()
        session.close()
        for use in (
            lambda: session.call(name, np.array([[1]])),
            lambda: session.rewind(0),
            lambda: session.position,
            lambda: session.save(self.folder / "never.kvcs"),
            session.fork,
            session.reset,
            session.trim,
        ):
            with pytest.raises(Closed):
                use()

    def open_ones(self) -> list[Talk]:
        return [*self.waiting, *([self.talk] if self.talk else [])]

    @invariant()
    def the_position_is_the_number_of_tokens(self) -> None:
        for talk in self.open_ones():
            if self.kind.counts:
                assert set(talk.session.position.tolist()) == {len(talk.tokens)}
            assert talk.session.capacity == talk.capacity

    @invariant()
    def slots_behind_the_position_are_as_they_were_at_first(self) -> None:
        for talk in self.open_ones():
            for name, state in talk.session.state.items():
                declared = self.program.states[name]
                if declared.kind in (StateKind.LINEAR, StateKind.APPEND):
                    slots = np.moveaxis(state, declared.axis, 0)
                    assert not slots[len(talk.tokens) :].any(), name

    def teardown(self) -> None:
        for talk in self.open_ones():
            talk.session.close()
