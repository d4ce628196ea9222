"""Anything that may be done with a session, in any order, beside a model of it.

The model is the list of tokens that the session should hold: what a call gives must
be what one forward over all of them gives, whatever happened before.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import (
    SLOTS,
    VOCAB,
    Append,
    IndexCopy,
    Linear,
    OneLayer,
    append_methods,
    placed_methods,
    simple_methods,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ring_models import RingDecoder, Shape, ring_methods

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.spec import StateSpec
from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    Closed,
    KernelFailed,
    NotRewindable,
    Program,
    Session,
    load,
)
from kvc.runtime.executor import Frame
from kvc.schema.errors import BadSnapshot, InputMismatch, KvcError

SIZED = [StateSpec("[kv]", axis=2, capacity=Dim("capacity", 2, SLOTS))]
WINDOW = 4
RINGS = Shape((WINDOW, 3), 9)
MAKERS: dict[str, Callable[[], tuple[OneLayer, list[Method], list[StateSpec]]]] = {
    "linear": lambda: (Linear(), simple_methods(), SIZED),
    "append": lambda: (Append(), append_methods(), []),
    "index_copy": lambda: (IndexCopy(), placed_methods(), []),
    "rings": lambda: (RingDecoder(RINGS), ring_methods(6), []),
}
SETTINGS = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7)


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Program]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: Path(folder) / f"{kind}.kvc" for kind in MAKERS}
        for kind, make in MAKERS.items():
            model, methods, states = make()
            limit = SLOTS if kind == "rings" else None
            made = compile_program(model, methods, states=states, max_length=limit)
            made.save(paths[kind])
        with ExitStack() as stack:
            yield {k: stack.enter_context(load(path)) for k, path in paths.items()}


@cache
def _forward(tokens: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        return OneLayer().reference(torch.tensor([tokens])).numpy()


@cache
def _last_of_rings(tokens: tuple[int, ...]) -> np.ndarray:
    return RingDecoder(RINGS).reference(np.array([tokens]))[:, -1]


class Conversations(RuleBasedStateMachine):
    """Sessions, what they should hold, and everything that was saved of them.

    One of them is used; its forks wait until it is their turn.
    """

    program: Program
    other: Program
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[Path, list[int], int]] = []
        self.tokens: list[int] = self.nothing()
        self.session: Session | None = None
        self.waiting: list[tuple[Session, list[int], int]] = []

    def nothing(self) -> list[int]:
        """Return what a new session holds."""
        return []

    @initialize(capacity=st.integers(2, SLOTS))
    def begin(self, capacity: int) -> None:
        self._open(capacity)

    @precondition(lambda self: self.session is None)
    @rule(capacity=st.integers(2, SLOTS), transactional=st.booleans())
    def open_another(self, capacity: int, transactional: bool) -> None:
        self._open(capacity, transactional)

    def _open(self, capacity: int, transactional: bool = False) -> None:
        self.session = self.program.session(
            capacity=capacity, transactional=transactional
        )
        self.tokens, self.capacity = self.nothing(), capacity

    @precondition(lambda self: self.session is not None)
    @rule(tokens=TOKENS)
    def prefill(self, tokens: list[int]) -> None:
        self._feed("prefill", tokens)

    @precondition(lambda self: self.session is not None)
    @rule(token=st.integers(0, VOCAB - 1))
    def decode(self, token: int) -> None:
        self._feed("decode", [token])

    def _feed(self, name: str, tokens: list[int]) -> None:
        given = np.array([tokens])
        if len(self.tokens) + len(tokens) > self.capacity:
            with pytest.raises(CacheOverflow):
                self.session.call(name, given)
            return
        result = self.session.call(name, given)
        logits = result["logits"] if isinstance(result, dict) else result
        self.tokens += tokens
        expected = self.expected(len(tokens))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)

    def expected(self, count: int) -> np.ndarray:
        """Return what the call gives that added the last tokens."""
        return _forward(tuple(self.tokens))[:, -count:]

    @precondition(lambda self: self.session is not None)
    @rule(tokens=st.sampled_from([[[1.0]], [1], "x", [["a"]]]))
    def feed_nonsense(self, tokens: object) -> None:
        with pytest.raises(KvcError):
            self.session.prefill(np.array(tokens))

    @precondition(lambda self: self.session is not None)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        count = round(share * len(self.tokens))
        self.session.rewind(count)
        del self.tokens[len(self.tokens) - count :]

    @precondition(lambda self: self.session is not None)
    @rule(beyond=st.integers(1, 9))
    def rewind_too_far(self, beyond: int) -> None:
        for count in (len(self.tokens) + beyond, -beyond):
            with pytest.raises(BadSetting):
                self.session.rewind(count)

    @precondition(lambda self: self.session is not None)
    @rule()
    def reset(self) -> None:
        self.session.reset()
        self.tokens = self.nothing()

    @precondition(lambda self: self.session is not None)
    @rule()
    def trim(self) -> None:
        self.session.trim()

    @precondition(lambda self: self.session is not None)
    @rule()
    def save(self) -> None:
        path = self.folder / f"{len(self.saved)}.kvcs"
        self.session.save(path)
        self.saved.append((path, copy(self.tokens), self.capacity))

    @precondition(lambda self: self.session is not None and len(self.waiting) < 4)
    @rule(transactional=st.sampled_from([None, False, True]))
    def fork(self, transactional: bool | None) -> None:
        forked = self.session.fork(transactional)
        self.waiting.append((forked, copy(self.tokens), self.capacity))

    @precondition(lambda self: self.session is not None and self.waiting)
    @rule(which=st.integers(0, 99))
    def go_on_with_a_fork(self, which: int) -> None:
        chosen = self.waiting.pop(which % len(self.waiting))
        self.waiting.append((self.session, self.tokens, self.capacity))
        self.session, self.tokens, self.capacity = chosen

    @precondition(lambda self: self.session is None and self.waiting)
    @rule(which=st.integers(0, 99))
    def outlive_the_one_that_was_closed(self, which: int) -> None:
        chosen = self.waiting.pop(which % len(self.waiting))
        self.session, self.tokens, self.capacity = chosen

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 99), transactional=st.booleans())
    def restore(self, which: int, transactional: bool) -> None:
        path, tokens, capacity = self.saved[which % len(self.saved)]
        if self.session is not None:
            self.session.close()
        self.session = self.program.restore(path, transactional=transactional)
        self.tokens, self.capacity = copy(tokens), capacity

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 99), place=st.floats(0, 1, exclude_max=True))
    def restore_damaged(self, which: int, place: float) -> None:
        content = bytearray(self.saved[which % len(self.saved)][0].read_bytes())
        content[int(place * len(content))] ^= 0x10
        path = self.folder / "damaged.kvcs"
        path.write_bytes(content)
        with pytest.raises(BadSnapshot):
            self.program.restore(path)

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 99))
    def restore_into_another_program(self, which: int) -> None:
        with pytest.raises(BadSnapshot):
            self.other.restore(self.saved[which % len(self.saved)][0])

    @precondition(lambda self: self.session is not None)
    @rule()
    def close(self) -> None:
        session, self.session = self.session, None
        session.close()
        session.close()
        for use in (
            lambda: session.decode(np.array([[1]])),
            lambda: session.rewind(0),
            lambda: session.position,
            lambda: session.save(self.folder / "never.kvcs"),
            session.fork,
            session.reset,
            session.trim,
        ):
            with pytest.raises(Closed):
                use()

    def open_ones(self) -> list[tuple[Session, list[int], int]]:
        if self.session is None:
            return self.waiting
        return [*self.waiting, (self.session, self.tokens, self.capacity)]

    @invariant()
    def the_position_is_the_number_of_tokens(self) -> None:
        for session, tokens, capacity in self.open_ones():
            assert session.position.tolist() == [len(tokens)]
            assert session.capacity == capacity

    @invariant()
    def slots_behind_the_position_are_as_they_were_at_first(self) -> None:
        for session, tokens, _ in self.open_ones():
            for name, state in session.state.items():
                if state.ndim == 4:
                    assert not state[:, :, len(tokens) :].any(), name

    def teardown(self) -> None:
        for session, _, _ in self.open_ones():
            session.close()


class Held(list[int]):
    """Tokens that a session holds, and how far its rings were ever written."""

    reached = 0


class RingConversations(Conversations):
    """The same over rings, which forget: how far a session goes back is modelled too.

    A prefill that is longer than the rings allow is taken in parts.
    """

    slots, longest = RINGS.slots, RINGS.slots - WINDOW + 1

    def nothing(self) -> Held:
        return Held()

    def _feed(self, name: str, tokens: list[int]) -> None:
        before = len(self.tokens)
        super()._feed(name, tokens)
        if len(self.tokens) > before:
            self.tokens.reached = max(self.tokens.reached, len(self.tokens))

    def expected(self, count: int) -> np.ndarray:
        return _last_of_rings(tuple(self.tokens))

    def most(self) -> int:
        """Return how many tokens the session can forget."""
        held = len(self.tokens)
        if self.tokens.reached <= self.slots:
            return held
        return min(held, self.longest - (self.tokens.reached - held))

    @precondition(lambda self: self.session is not None)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        count, held = round(share * len(self.tokens)), len(self.tokens)
        assert self.session.rewindable.tolist() == [self.most()]
        if self.most() < count < held:
            with pytest.raises(NotRewindable):
                self.session.rewind(count)
            return
        self.session.rewind(count)
        del self.tokens[held - count :]
        if self.tokens.reached <= self.slots or (count and not self.tokens):
            self.tokens.reached = len(self.tokens)

    @precondition(lambda self: self.session is not None)
    @rule(tokens=TOKENS, share=st.floats(0, 1, exclude_max=True))
    def break_off(self, tokens: list[int], share: float) -> None:
        given = np.array([tokens[: self.longest]])
        end = len(self.tokens) + given.shape[1]
        if end > self.capacity:
            return
        with pytest.MonkeyPatch.context() as patch:
            _break_runs(patch, share)
            with pytest.raises(KernelFailed):
                self.session.prefill(given)
        if end > self.slots:
            self.tokens.reached = max(self.tokens.reached, end)

    @invariant()
    def slots_behind_the_position_are_as_they_were_at_first(self) -> None:
        for session, tokens, _ in self.open_ones():
            for name, state in session.state.items():
                if state.ndim == 4 and tokens.reached <= self.slots:
                    assert not state[:, :, len(tokens) :].any(), name


def _break_runs(patch: pytest.MonkeyPatch, share: float) -> None:
    """Make runs fail behind one of their steps, a share of them on."""
    run = Frame.run

    def broken(self: Frame, *args: object) -> None:
        at = int(share * len(self.steps))
        function, arguments = self.steps[at]

        def fail(*given: object) -> None:
            function(*given)
            raise RuntimeError

        steps = (*self.steps[:at], (fail, arguments), *self.steps[at + 1 :])
        run(replace(self, steps=steps), *args)

    patch.setattr(Frame, "run", broken)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_session_is_what_its_tokens_are(
    programs: dict[str, Program], tmp_path: Path, kind: str
) -> None:
    _run(programs, tmp_path, kind, SETTINGS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MAKERS)
def test_a_session_is_what_its_tokens_are_at_length(
    programs: dict[str, Program], tmp_path: Path, kind: str
) -> None:
    _run(programs, tmp_path, kind, settings(SETTINGS, max_examples=1000))


def _run(programs: dict[str, Program], folder: Path, kind: str, how: settings) -> None:
    others = [name for name in programs if name != kind]

    class Here(RingConversations if kind == "rings" else Conversations):
        program, other = programs[kind], programs[others[0]]

    Here.folder = folder
    run_state_machine_as_test(Here, settings=how)


def test_a_wrong_input_is_told_before_anything_runs(
    programs: dict[str, Program],
) -> None:
    with programs["linear"].session() as session:
        with pytest.raises(InputMismatch):
            session.prefill(np.array([[1.0]]))
        assert session.position.tolist() == [0]
