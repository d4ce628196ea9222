"""Rings of several windows: prefill of n tokens and decode of m, past every window.

Each step is compared with one forward of the model that keeps everything and masks by
the window. A prefill that is longer than the ring allows is taken in pieces.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY
from ring_models import RingDecoder, Shape, ring_methods, text
from state_runs import opened

from kvc.runtime import Program
from kvc.schema.model import StateKind
from kvc.schema.rings import Window

LENGTH = 48
# By windows and slots: the least ring there can be, none to spare, some, several.
SHAPES = {
    "window 1, slots 1": Shape((1,), 1),
    "window 1, slots 4": Shape((1,), 4),
    "window 6, slots 6": Shape((6, 6), 6),
    "window 6, slots 7": Shape((6, 6), 7),
    "window 6, slots 11": Shape((6, 6), 11),
    "window 6, slots 20": Shape((6, 6), 20),
    "window 16, slots 40": Shape((16,), 40),
    "windows 3 and 8, slots 10": Shape((3, 8), 10),
    "window 5 beside all": Shape((5, None), 9, length=LENGTH),
    "window 1 and the first, slots 2": Shape((1,), 2, keep=1),
    "window 6 and the first, slots 12": Shape((6, 6), 12, keep=1),
    "windows 3 and 8 and the first 4, slots 14": Shape((3, 8), 14, keep=4),
    "window 4 and the first 7, slots 11": Shape((4,), 11, keep=7),
}
QUICK = ("windows 3 and 8 and the first 4, slots 14",)
SOME = [n if n in QUICK else pytest.param(n, marks=RARELY) for n in SHAPES]
TEXT = text(LENGTH)
OPEN = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _closing(backend: str) -> Iterator[None]:
    yield
    OPEN.close()
    program_of.cache_clear()
    expected_of.cache_clear()


@cache
def program_of(name: str) -> Program:
    folder = Path(OPEN.enter_context(tempfile.TemporaryDirectory()))
    shape = SHAPES[name]
    methods = ring_methods(max(shape.longest, 2))
    if shape.longest == 1:
        methods = methods[1:2]
    return OPEN.enter_context(opened(RingDecoder(shape), methods, folder))


@cache
def expected_of(name: str) -> np.ndarray:
    return RingDecoder(SHAPES[name]).reference(TEXT)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, 0, 1e-5 * expected.std())


def check_splits(name: str, splits: Iterable[int]) -> None:
    """Assert that prefill of n tokens and decode of all others equal one forward."""
    expected = expected_of(name)
    with program_of(name).session() as session:
        for n in splits:
            session.reset()
            if n and "prefill" in session.methods:
                assert near(session.prefill(TEXT[:, :n]), expected[:, n - 1]), n
            for m in range(session.position.item(), LENGTH):
                found = session.decode(TEXT[:, m : m + 1])
                assert near(found, expected[:, m]), (n, m)


@pytest.mark.parametrize("name", SOME)
def test_prefill_then_decode_equals_one_forward(name: str) -> None:
    check_splits(name, (0, 2, SHAPES[name].longest, 33))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHAPES)
def test_prefill_then_decode_equals_one_forward_at_every_split(name: str) -> None:
    check_splits(name, range(LENGTH + 1))


@pytest.mark.parametrize("name", SOME)
def test_calls_of_any_length_equal_one_forward(name: str) -> None:
    if SHAPES[name].longest == 1:
        pytest.skip("its calls have one token")
    expected, dice = expected_of(name), np.random.default_rng(1)
    with program_of(name).session() as session:
        assert session.longest_call == SHAPES[name].longest
        for _ in range(4):
            session.reset()
            while (start := session.position.item()) < LENGTH:
                count = int(dice.integers(1, session.longest_call + 1))
                tokens = TEXT[:, start : start + count]
                found = session.score(tokens)
                assert near(found, expected[:, start : start + tokens.shape[1]])


def test_a_ring_of_the_window_alone_would_be_wrong_for_two_tokens() -> None:
    """The control: what is compared would show it."""
    model = RingDecoder(Shape((6, 6), 6))
    expected = model.reference(TEXT)
    with torch.no_grad():
        for start in range(0, 20, 2):
            found = model.score(torch.from_numpy(TEXT[:, start : start + 2])).numpy()
    assert not near(found, expected[:, 18:20])


def test_a_lost_token_is_noticed() -> None:
    (name,) = QUICK
    with program_of(name).session() as session:
        session.prefill(TEXT[:, :20])
        assert not near(session.decode(TEXT[:, 21:22]), expected_of(name)[:, 21])


@pytest.mark.parametrize("name", SOME)
def test_rings_know_their_windows(name: str) -> None:
    states = program_of(name).states
    for i, window in enumerate(SHAPES[name].windows):
        kind = StateKind.LINEAR if window is None else StateKind.RING
        for part in ("keys", "values"):
            state = states[f"layers.{i}.{part}"]
            seen = None if window is None else Window(window, SHAPES[name].keep)
            assert (state.kind, state.window) == (kind, seen)
