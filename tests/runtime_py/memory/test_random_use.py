"""Families of sessions in any order of use, however their forks come about.

Slots are 256 bytes, 16 of them a page: tokens end within pages and at their borders,
and some runs are long enough to be mapped while others are copied.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from broken_steps import broken_step
from fork_ways import WAYS
from hand_built import write_bundle
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from stateful_programs import carry_program, linear_program
from wide_caches import (
    SLOTS,
    Cached,
    Grown,
    Plain,
    cached_method,
    grown_method,
    rows_of,
)

from kvc.compiler import compile_program
from kvc.runtime import KernelFailed, NotRewindable, load

MOST_SESSIONS = 6
SETTINGS = settings(
    max_examples=5,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
WHICH = st.integers(0, MOST_SESSIONS - 1)
COUNTS = st.sampled_from([1, 3, 15, 16, 17, 64])
# Programs made by hand keep rows alone; the others have states of every kind.
BY_HAND = {
    "linear": linear_program(2, capacity=SLOTS),
    "turned": linear_program(2, layout=(0, 2, 1, 3), capacity=SLOTS),
    "append": carry_program(),
}
COMPILED = {
    "cached": (Cached, cached_method),
    "plain": (Plain, cached_method),
    "grown": (Grown, grown_method),
}


class Families(RuleBasedStateMachine):
    """Some sessions, and the tokens that each should hold."""

    program, kind, folder, small = None, "", None, False

    def __init__(self):
        super().__init__()
        self.alive = []
        self.next = self.saves = 0

    @property
    def goes_back(self):
        return self.kind != "plain"

    @initialize()
    def begin(self):
        sized = {} if self.kind in COMPILED else {"capacity": SLOTS}
        opened = self.program.session(transactional=not self.goes_back, **sized)
        self.alive.append((opened, []))

    def pick(self, which):
        return self.alive[which % len(self.alive)]

    def add(self, session, tokens):
        self.alive.append((session, list(tokens)))

    def call(self, session, count, left):
        """Let a session read new tokens; return them."""
        new = list(range(self.next, self.next + count))
        self.next += count
        if self.kind in COMPILED:
            session.write(rows_of(new), np.array(left))
        else:
            session.call("grow" if self.kind == "append" else "write", rows_of(new))
        return new

    def room(self, tokens, count):
        return min(count, SLOTS - len(tokens), 3 if self.small else SLOTS)

    @rule(which=WHICH, count=COUNTS, left=st.booleans())
    def write(self, which, count, left):
        session, tokens = self.pick(which)
        if count := self.room(tokens, count):
            tokens += self.call(session, count, left)

    @rule(which=WHICH, count=COUNTS, step=st.integers(0, 9), after=st.booleans())
    def fail(self, which, count, step, after):
        session, tokens = self.pick(which)
        if count := self.room(tokens, count):
            with broken_step(step, after), suppress(KernelFailed):
                tokens += self.call(session, count, left=True)

    @rule(which=WHICH)
    def fork(self, which):
        session, tokens = self.pick(which)
        if len(self.alive) < MOST_SESSIONS:
            self.add(session.fork(), tokens)

    @rule(which=WHICH)
    def save_and_restore(self, which):
        session, tokens = self.pick(which)
        if len(self.alive) < MOST_SESSIONS:
            self.saves += 1
            path = Path(self.folder) / f"{self.saves}.kvcs"
            session.save(path)
            how = {"transactional": not self.goes_back}
            self.add(self.program.restore(path, **how), tokens)

    @rule(which=WHICH, count=st.sampled_from([0, 1, 16, 50, SLOTS]))
    def rewind(self, which, count):
        session, tokens = self.pick(which)
        count = min(count, len(tokens))
        if not self.goes_back:
            with pytest.raises(NotRewindable):
                session.rewind(count)
            return
        session.rewind(count)
        del tokens[len(tokens) - count :]

    @rule(which=WHICH)
    def trim(self, which):
        self.pick(which)[0].trim()

    @rule(which=WHICH)
    def reset(self, which):
        session, tokens = self.pick(which)
        session.reset()
        tokens.clear()

    @rule(which=WHICH)
    def close(self, which):
        if len(self.alive) > 1:
            self.alive.pop(which % len(self.alive))[0].close()

    @invariant()
    def every_session_holds_its_own_tokens(self):
        for session, tokens in self.alive:
            assert session.position.tolist() == [len(tokens)]
            for name, expected in self.held(session, tokens).items():
                state = session.state[name]
                if state.shape != expected.shape:
                    assert not state[:, :, len(tokens) :].any(), name
                    state = state[:, :, : len(tokens)]
                assert np.array_equal(state, expected), name

    def held(self, session, tokens):
        if self.kind in COMPILED:
            return COMPILED[self.kind][0].held(tokens)
        rows = rows_of(tokens)
        return {name: rows for name, state in session.state.items() if state.ndim == 4}

    def teardown(self):
        for session, _ in self.alive:
            session.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    paths = {k: write_bundle(folder / f"{k}.kvc", b) for k, b in BY_HAND.items()}
    for kind, (model, method) in COMPILED.items():
        paths[kind] = folder / f"{kind}.kvc"
        compile_program(model(), [method()]).save(paths[kind])
    made = {kind: load(path) for kind, path in paths.items()}
    yield made
    for program in made.values():
        program.close()


CASES = [("linear", way) for way in WAYS]
CASES += [(kind, "apart") for kind in ("turned", "append", *COMPILED)]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_fork_holds_what_its_tokens_are(programs, monkeypatch, tmp_path, kind, way):
    run(programs, monkeypatch, tmp_path, kind, way, SETTINGS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [*BY_HAND, *COMPILED])
@pytest.mark.parametrize("way", WAYS)
def test_a_fork_holds_what_its_tokens_are_at_length(
    programs, monkeypatch, tmp_path, kind, way
):
    longer = settings(SETTINGS, max_examples=400, stateful_step_count=40)
    run(programs, monkeypatch, tmp_path, kind, way, longer)


@pytest.mark.parametrize("way", WAYS)
def test_so_does_one_of_caches_smaller_than_a_page(
    programs, monkeypatch, tmp_path, way
):
    less = settings(SETTINGS, max_examples=3)
    run(programs, monkeypatch, tmp_path, "linear", way, less, small=True)


def run(programs, monkeypatch, tmp_path, kind, way, how, small=False):
    class Here(Families):
        program = programs[kind]

    Here.kind, Here.small, Here.folder = kind, small, tmp_path
    WAYS[way](monkeypatch)
    run_state_machine_as_test(Here, settings=how)
