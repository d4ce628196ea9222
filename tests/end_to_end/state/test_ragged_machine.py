"""Anything that may be done with the rows of a session, in any order, beside a model.

The model is a list of tokens for each row. What a call gives must be what one forward
over each row's tokens gives, whatever happened to it or to the others before.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from ragged_models import RAGGED, SLOTS, VOCAB, Ragged, RaggedRings, alone
from state_backends import examples

from kvc.runtime import CacheOverflow, InputMismatch, NotRewindable, Program, Session

ROWS = 3
KINDS = ("state", "told", "rings", "kept rings")
SETTINGS = settings(
    max_examples=3,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=9)
EACH = st.tuples(*[TOKENS] * ROWS)


class Batches(RuleBasedStateMachine):
    """Sessions of three rows, and everything that was saved of them."""

    program: Program
    model: type[Ragged]

    @initialize(capacity=st.integers(12, SLOTS))
    def open(self, capacity: int) -> None:
        self.capacity = capacity
        self.session = self.program.session(batch=ROWS, capacity=capacity)
        self.held: list[tuple[int, ...]] = [()] * ROWS
        self.others: list[tuple[Session, list[tuple[int, ...]]]] = []
        self.saved: list[tuple[Path, list[tuple[int, ...]]]] = []
        self.folder = tempfile.TemporaryDirectory()

    @rule(new=EACH, padding=st.integers(0, 3), garbage=st.integers(0, VOCAB - 1))
    def prefill(self, new: tuple[list[int], ...], padding: int, garbage: int) -> None:
        counts = np.array([len(tokens) for tokens in new])
        tokens = np.full((ROWS, max(1, counts.max()) + padding), garbage)
        for row, some in enumerate(new):
            tokens[row, : len(some)] = some
        ends = [len(old) + len(some) for old, some in zip(self.held, new, strict=True)]
        if max(ends) > self.capacity:
            with pytest.raises(CacheOverflow) as caught:
                self.session.prefill(tokens, counts)
            row = caught.value.row
            assert caught.value.start == len(self.held[row])
            assert ends[row] > self.capacity
            return
        self.check(self.session.prefill(tokens, counts), [tuple(x) for x in new])

    @rule(
        token=st.integers(0, VOCAB - 1),
        active=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
    )
    def decode(self, token: int, active: list[bool]) -> None:
        tokens = np.array([[(token + row) % VOCAB] for row in range(ROWS)])
        new = [tuple(tokens[row]) if on else () for row, on in enumerate(active)]
        full = [len(x) == self.capacity for x in self.held]
        if any(on and done for on, done in zip(active, full, strict=True)):
            with pytest.raises(CacheOverflow):
                self.session.decode(tokens, np.array(active))
            return
        self.check(self.session.decode(tokens, np.array(active)), new)

    def check(self, found: np.ndarray, new: list[tuple[int, ...]]) -> None:
        """Compare a call's logits, and count what it has added."""
        self.held = [(*old, *some) for old, some in zip(self.held, new, strict=True)]
        for row, some in enumerate(new):
            if some:
                expected = alone(self.model, tuple(map(int, self.held[row])))
                np.testing.assert_allclose(found[row], expected, rtol=3e-3, atol=3e-4)

    @rule(parts=st.lists(st.floats(0, 1), min_size=ROWS, max_size=ROWS))
    def rewind(self, parts: list[float]) -> None:
        most = self.session.rewindable.tolist()
        counts = [int(part * some) for part, some in zip(parts, most, strict=True)]
        self.session.rewind(np.array(counts))
        pairs = zip(self.held, counts, strict=True)
        self.held = [tokens[: len(tokens) - n] for tokens, n in pairs]

    @rule(row=st.integers(0, ROWS - 1))
    def rewind_too_far(self, row: int) -> None:
        counts = np.zeros(ROWS, np.int64)
        counts[row] = self.session.rewindable[row] + 1
        if counts[row] < len(self.held[row]):
            with pytest.raises(NotRewindable):
                self.session.rewind(counts)

    @rule(row=st.integers(0, ROWS - 1), count=st.sampled_from((-1, 5, 1 << 40)))
    def count_what_is_not_there(self, row: int, count: int) -> None:
        counts = np.ones(ROWS, np.int64)
        counts[row] = count
        with pytest.raises(InputMismatch):
            self.session.prefill(np.zeros((ROWS, 4), np.int64), counts)

    @rule()
    def fork(self) -> None:
        self.others.append((self.session.fork(), list(self.held)))

    @rule()
    def take_turns(self) -> None:
        if self.others:
            mine = self.session, self.held
            self.session, self.held = self.others.pop(0)
            self.others.append(mine)

    @rule()
    def save(self) -> None:
        path = Path(self.folder.name) / f"{len(self.saved)}.kvcs"
        self.session.save(path)
        self.saved.append((path, list(self.held)))

    @rule(which=st.integers(0, 9))
    def restore(self, which: int) -> None:
        if self.saved:
            path, held = self.saved[which % len(self.saved)]
            self.session.close()
            self.session, self.held = self.program.restore(path), list(held)

    @rule()
    def trim(self) -> None:
        self.session.trim()

    @rule()
    def reset(self) -> None:
        self.session.reset()
        self.held = [()] * ROWS

    @invariant()
    def stands_where_its_rows_are(self) -> None:
        if hasattr(self, "session"):
            assert self.session.position.tolist() == [len(x) for x in self.held]

    @invariant()
    def holds_nothing_behind_them(self) -> None:
        if hasattr(self, "session") and not issubclass(self.model, RaggedRings):
            values = self.session.state[f"layers.{self.model.depth - 1}.v"]
            for row, tokens in enumerate(self.held):
                assert not values[row, :, len(tokens) :].any()

    def teardown(self) -> None:
        if hasattr(self, "session"):
            for session in (self.session, *(other for other, _ in self.others)):
                session.close()
            self.folder.cleanup()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_what_happened_to_them(
    ragged: Callable[[str], Program], kind: str
) -> None:
    class Here(Batches):
        program, model = ragged(kind), RAGGED[kind]

    run_state_machine_as_test(Here, settings=SETTINGS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_what_happened_to_them_for_long(
    ragged: Callable[[str], Program], kind: str, backend: str
) -> None:
    class Here(Batches):
        program, model = ragged(kind), RAGGED[kind]

    number = examples(300, backend)
    many = settings(SETTINGS, max_examples=number, stateful_step_count=60)
    run_state_machine_as_test(Here, settings=many)
