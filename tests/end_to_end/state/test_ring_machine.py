"""Anything that may be done with a session of rings, in any order."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from broken_steps import broken_step
from cached_models import SLOTS, Linear, simple_methods
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ring_models import RingDecoder, Shape, ring_methods
from session_kinds import Kind
from session_machine import SETTINGS, TOKENS, Conversations
from state_backends import examples

from kvc.compiler import compile_program
from kvc.runtime import KernelFailed, NotRewindable, Program, load

SHAPES = {"rings": Shape((4, 3), 9), "kept": Shape((4, 3), 11, keep=2)}


@cache
def _last_of_rings(shape: Shape, tokens: tuple[int, ...]) -> np.ndarray:
    return RingDecoder(shape).reference(np.array([tokens]))[:, -1]


class Held(list[int]):
    """Tokens that a session holds, and how far its rings were ever written."""

    reached = 0


class RingConversations(Conversations):
    """The same over rings, which forget: how far a session goes back is modelled too.

    A prefill that is longer than the rings allow is taken in pieces.
    """

    shape: Shape

    def nothing(self) -> Held:
        return Held()

    def _feed(self, name: str, tokens: list[int], kept: bool) -> None:
        before = len(self.talk.tokens)
        super()._feed(name, tokens, kept)
        if len(self.talk.tokens) > before:
            self.talk.tokens.reached = max(
                self.talk.tokens.reached, len(self.talk.tokens)
            )

    def expected(self, count: int) -> np.ndarray:
        return _last_of_rings(self.shape, tuple(self.talk.tokens))

    def most(self) -> int:
        """Return how many tokens the session can forget."""
        held = len(self.talk.tokens)
        if self.talk.tokens.reached <= self.shape.slots:
            return held
        return min(held, self.shape.longest - (self.talk.tokens.reached - held))

    @precondition(lambda self: self.talk is not None)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        count, held = round(share * len(self.talk.tokens)), len(self.talk.tokens)
        assert self.talk.session.rewindable.tolist() == [self.most()]
        end = held - count
        if self.most() < count and end > self.shape.keep:
            with pytest.raises(NotRewindable):
                self.talk.session.rewind(count)
            return
        self.talk.session.rewind(count)
        del self.talk.tokens[end:]
        if self.talk.tokens.reached <= self.shape.slots or (
            count and end <= self.shape.keep
        ):
            self.talk.tokens.reached = len(self.talk.tokens)

    @precondition(lambda self: self.talk is not None)
    @rule(
        tokens=TOKENS, kept=st.booleans(), step=st.integers(0, 40), after=st.booleans()
    )
    def fail(self, tokens: list[int], kept: bool, step: int, after: bool) -> None:
        del tokens[self.shape.longest :]
        end = len(self.talk.tokens) + len(tokens)
        if end > self.talk.capacity:
            return
        with broken_step(step, after), suppress(KernelFailed):
            self._feed("prefill", tokens, kept)
        if end > self.shape.slots:
            self.talk.tokens.reached = max(self.talk.tokens.reached, end)

    @invariant()
    def slots_behind_the_position_are_as_they_were_at_first(self) -> None:
        for talk in self.open_ones():
            for name, state in talk.session.state.items():
                if state.ndim == 4 and talk.tokens.reached <= self.shape.slots:
                    assert not state[:, :, len(talk.tokens) :].any(), name


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    path = tmp_path_factory.mktemp("other") / "other.kvc"
    compile_program(Linear(), simple_methods()).save(path)
    with load(path) as program:
        yield program


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, other: Program
) -> Iterator[list[Program]]:
    path = tmp_path_factory.mktemp("rings") / "rings.kvc"
    methods = ring_methods(6)[:2]
    compile_program(RingDecoder(shape), methods, max_length=SLOTS).save(path)
    with load(path) as rings:
        yield [rings, other]


def test_a_session_of_rings_is_what_its_tokens_are(
    programs: list[Program], shape: Shape, tmp_path: Path
) -> None:
    _run(programs, shape, tmp_path, SETTINGS)


@pytest.mark.exhaustive
def test_a_session_of_rings_is_what_its_tokens_are_at_length(
    programs: list[Program], shape: Shape, tmp_path: Path, backend: str
) -> None:
    many = settings(SETTINGS, max_examples=examples(1000, backend))
    _run(programs, shape, tmp_path, many)


def _run(programs: list[Program], shape: Shape, folder: Path, how: settings) -> None:
    class Here(RingConversations):
        program, other = programs
        kind = Kind(lambda: RingDecoder(shape), ring_methods(6)[:2])

    Here.folder, Here.shape = folder, shape
    run_state_machine_as_test(Here, settings=how)
