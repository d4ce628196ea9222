"""Families of sessions in any order of use, however their forks come about.

Slots are 256 bytes, 16 of them a page: tokens end within pages and at their borders,
and some runs are long enough to be mapped while others are copied.
"""

import numpy as np
import pytest
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

from kvc.runtime import load

SLOTS, MOST_SESSIONS = 256, 6
SETTINGS = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
WHICH = st.integers(0, MOST_SESSIONS - 1)


def rows_of(tokens):
    """Return float32 [1, 3, seq, 64], no two tokens and heads alike."""
    numbers = np.array(tokens, np.float32)[None, None, :, None]
    heads = np.arange(3, dtype=np.float32)[None, :, None, None]
    return np.repeat(numbers * 4 + heads, 64, axis=3) + 1


class Families(RuleBasedStateMachine):
    """Some sessions, and the tokens that each should hold."""

    program, method, small = None, "write", False

    def __init__(self):
        super().__init__()
        self.alive = []
        self.next = 0

    @initialize()
    def begin(self):
        self.alive.append((self.program.session(capacity=SLOTS), []))

    def pick(self, which):
        return self.alive[which % len(self.alive)]

    @rule(which=WHICH, count=st.sampled_from([1, 3, 15, 16, 17, 64]))
    def write(self, which, count):
        session, tokens = self.pick(which)
        count = min(count, SLOTS - len(tokens), 3 if self.small else SLOTS)
        if count:
            new = list(range(self.next, self.next + count))
            self.next += count
            session.call(self.method, rows_of(new))
            tokens += new

    @rule(which=WHICH)
    def fork(self, which):
        session, tokens = self.pick(which)
        if len(self.alive) < MOST_SESSIONS:
            self.alive.append((session.fork(), list(tokens)))

    @rule(which=WHICH, count=st.sampled_from([0, 1, 16, 50, SLOTS]))
    def rewind(self, which, count):
        session, tokens = self.pick(which)
        count = min(count, len(tokens))
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
            for name, state in session.state.items():
                if state.ndim == 4:
                    held = state[:, :, : len(tokens)]
                    assert np.array_equal(held, rows_of(tokens)), name
                    assert not state[:, :, len(tokens) :].any(), name

    def teardown(self):
        for session, _ in self.alive:
            session.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    built = {
        "linear": linear_program(2, capacity=SLOTS),
        "turned": linear_program(2, layout=(0, 2, 1, 3), capacity=SLOTS),
        "append": carry_program(),
    }
    made = {k: load(write_bundle(folder / f"{k}.kvc", b)) for k, b in built.items()}
    yield made
    for program in made.values():
        program.close()


CASES = [("linear", way) for way in WAYS] + [("turned", "apart"), ("append", "apart")]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_fork_holds_what_its_tokens_are(programs, monkeypatch, kind, way):
    run(programs, monkeypatch, kind, way, SETTINGS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["linear", "turned", "append"])
@pytest.mark.parametrize("way", WAYS)
def test_a_fork_holds_what_its_tokens_are_at_length(programs, monkeypatch, kind, way):
    longer = settings(SETTINGS, max_examples=400, stateful_step_count=40)
    run(programs, monkeypatch, kind, way, longer)


@pytest.mark.parametrize("way", WAYS)
def test_so_does_one_of_caches_smaller_than_a_page(programs, monkeypatch, way):
    class Here(Families):
        program, small = programs["linear"], True

    WAYS[way](monkeypatch)
    run_state_machine_as_test(Here, settings=settings(SETTINGS, max_examples=6))


def run(programs, monkeypatch, kind, way, how):
    class Here(Families):
        program = programs[kind]
        method = "grow" if kind == "append" else "write"

    WAYS[way](monkeypatch)
    run_state_machine_as_test(Here, settings=how)
