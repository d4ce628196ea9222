"""Prefill of n tokens and decode of m, for all n + m <= 48, in every kind of cache.

Each step is compared with one forward over all tokens without any cache. The quick
test takes some n, the exhaustive one all; both decode up to 48 from each.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import (
    SLOTS,
    VOCAB,
    WIDTH,
    Append,
    IndexCopy,
    IndexPut,
    Linear,
    OneLayer,
    Recurrent,
    RecurrentWhereTold,
    Shifting,
    Slices,
    SlicesWhereTold,
    append_methods,
    placed_methods,
    simple_methods,
    told_methods,
)
from daily import only
from state_runs import opened

from kvc.compiler import Method
from kvc.runtime import Program
from kvc.runtime.memory.growing import GrowingArray
from kvc.schema.model import CursorKind, StateKind

TEXT = np.random.default_rng(5).integers(0, VOCAB, (1, SLOTS))
Feed = Callable[[np.ndarray], np.ndarray]


class OfSession:
    """Feeds tokens to a session; one token goes to `decode`, more to `prefill`."""

    def __init__(self, program: Program) -> None:
        self.session = program.session()

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        name = "decode" if tokens.shape[1] == 1 else "prefill"
        return self.logits(self.session.call(name, tokens))

    def logits(self, result: object) -> np.ndarray:
        return result

    def reset(self) -> None:
        self.session.reset()


class OfCarriedPast(OfSession):
    """The past is carried, so that logits alone come back, in a dict."""

    def logits(self, result: object) -> np.ndarray:
        assert list(result) == ["logits"]
        return result["logits"]


class BegunWithoutPast(OfCarriedPast):
    """The first tokens go to the method that takes no past."""

    begun = False

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        if self.begun:
            return super().feed(tokens)
        self.begun = True
        return self.logits(self.session.start(tokens))

    def reset(self) -> None:
        super().reset()
        self.begun = False


class OfCaller:
    """The caller owns arrays with room after their end, which calls extend."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reset()

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        name = "decode" if tokens.shape[1] == 1 else "prefill"
        result = self.program.call(name, tokens, self.k, self.v)
        assert result["k"] is self.k
        return result["logits"]

    def reset(self) -> None:
        self.k, self.v = (
            GrowingArray("float32", (1, 1, 0, WIDTH), 2, SLOTS) for _ in "kv"
        )


class OfPlainArrays(OfCaller):
    """The caller passes what the last call gave back."""

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        name = "decode" if tokens.shape[1] == 1 else "prefill"
        result = self.program.call(name, tokens, self.k, self.v)
        self.k, self.v = result["k"], result["v"]
        return result["logits"]

    def reset(self) -> None:
        self.k = self.v = np.zeros((1, 1, 0, WIDTH), np.float32)


KINDS: dict[str, tuple[type[OneLayer], list[Method], type]] = {
    "linear": (Linear, simple_methods(), OfSession),
    "index_copy": (IndexCopy, placed_methods(), OfSession),
    "index_put": (IndexPut, placed_methods(), OfSession),
    "slices": (Slices, simple_methods(), OfSession),
    "slices where told": (SlicesWhereTold, told_methods(), OfSession),
    "append": (Append, append_methods(), OfCarriedPast),
    "append begun without past": (
        Append,
        append_methods(start=True),
        BegunWithoutPast,
    ),
    "shifting": (Shifting, simple_methods(), OfSession),
    "recurrent": (Recurrent, simple_methods(), OfSession),
    "recurrent where told": (RecurrentWhereTold, told_methods(), OfSession),
    "growing arrays of the caller": (Append, append_methods(False), OfCaller),
    "plain arrays of the caller": (Append, append_methods(False), OfPlainArrays),
}
# The others spell the same kinds of states in other ways.
DAILY = (
    "linear",
    "index_copy",
    "slices where told",
    "append begun without past",
    "shifting",
    "recurrent",
    "growing arrays of the caller",
)
pytestmark = only(kind=DAILY)
KEPT_OPEN = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _closing(backend: str) -> Iterator[None]:
    yield
    KEPT_OPEN.close()
    program_of.cache_clear()


@cache
def program_of(kind: str) -> Program:
    model, methods, _ = KINDS[kind]
    folder = Path(KEPT_OPEN.enter_context(tempfile.TemporaryDirectory()))
    return KEPT_OPEN.enter_context(opened(model(), methods, folder))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def feeder(kind: str) -> OfSession | OfCaller:
    return KINDS[kind][2](program_of(kind))


def reference(kind: str, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return KINDS[kind][0]().reference(torch.from_numpy(tokens)).numpy()


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and np.allclose(found, expected, 1e-4, 1e-5)


def check_splits(kind: str, splits: Iterable[int]) -> None:
    """Assert that prefill of n tokens and decode of all others equal one forward."""
    expected = reference(kind, TEXT)
    session = feeder(kind)
    for n in splits:
        session.reset()
        if n:
            assert close(session.feed(TEXT[:, :n]), expected[:, :n]), n
        for m in range(n, SLOTS):
            found = session.feed(TEXT[:, m : m + 1])
            assert close(found, expected[:, m : m + 1]), (n, m)


def test_prefill_then_decode_equals_one_forward(kind: str) -> None:
    check_splits(kind, [0, 1, 2, 7, 20, 47, 48])


@pytest.mark.exhaustive
def test_prefill_then_decode_equals_one_forward_at_every_split(kind: str) -> None:
    check_splits(kind, range(SLOTS + 1))


def test_a_lost_token_is_noticed(kind: str) -> None:
    expected = reference(kind, TEXT)
    session = feeder(kind)
    session.feed(TEXT[:, :3])
    assert not close(session.feed(TEXT[:, 4:5]), expected[:, 4:5])


@pytest.mark.parametrize(
    "ends", [(5, 6, 13, 43, 48), (1, 2, 3, 40), (24, 48), (7, 14, 21, 28, 35, 42)]
)
def test_prefill_in_pieces_equals_prefill_at_once(
    kind: str, ends: tuple[int, ...]
) -> None:
    session = feeder(kind)
    whole = session.feed(TEXT[:, : ends[-1]])
    session.reset()
    starts = (0, *ends[:-1])
    pieces = [session.feed(TEXT[:, i:j]) for i, j in zip(starts, ends, strict=True)]
    assert close(np.concatenate(pieces, 1), whole)


def test_interleaved_sessions_agree_with_serial_ones_bit_for_bit(kind: str) -> None:
    ends = (4, 5, 6, 12, 13, 20)
    pieces = [slice(i, j) for i, j in zip((0, *ends[:-1]), ends, strict=True)]
    one, two = feeder(kind), feeder(kind)
    alone = [one.feed(TEXT[:, piece]) for piece in pieces]
    two_alone = [two.feed(TEXT[:, ::-1][:, piece]) for piece in pieces]
    one.reset()
    two.reset()
    for i, piece in enumerate(pieces):
        assert np.array_equal(one.feed(TEXT[:, piece]), alone[i])
        assert np.array_equal(two.feed(TEXT[:, ::-1][:, piece]), two_alone[i])


EXPECTED_KINDS = {
    "linear": {StateKind.LINEAR: 2, StateKind.COUNTER: 1},
    "index_copy": {StateKind.LINEAR: 2},
    "slices": {StateKind.LINEAR: 2, StateKind.COUNTER: 1},
    "slices where told": {StateKind.LINEAR: 2},
    "append": {StateKind.APPEND: 2},
    "shifting": {StateKind.PLAIN: 3},
    "recurrent": {StateKind.PLAIN: 2},
    "growing arrays of the caller": {},
}
EXPECTED_POSITIONS = {
    "linear": CursorKind.STATE,
    "index_copy": CursorKind.SESSION,
    "slices": CursorKind.STATE,
    "slices where told": CursorKind.SESSION,
    "append": CursorKind.LENGTH,
    "append begun without past": CursorKind.LENGTH,
}


@pytest.mark.parametrize("kind", EXPECTED_KINDS)
def test_each_kind_of_state_is_told_apart(kind: str) -> None:
    states = program_of(kind).states.values()
    found = [state.kind for state in states]
    assert {k: found.count(k) for k in set(found)} == EXPECTED_KINDS[kind]


@pytest.mark.parametrize("kind", EXPECTED_POSITIONS)
def test_the_position_counts_the_tokens(kind: str) -> None:
    program = program_of(kind)
    with program.session() as session:
        assert program_of(kind).states
        assert session.position.tolist() == [0]
        assert session.capacity == SLOTS
        session.call("prefill", TEXT[:, :5])
        session.call("decode", TEXT[:, 5:6])
        assert session.position.tolist() == [6]
        session.rewind(2)
        assert session.position.tolist() == [4]


@pytest.mark.parametrize("kind", EXPECTED_POSITIONS)
def test_caches_are_written_in_place(kind: str) -> None:
    methods = program_of(kind).methods
    for name in ("prefill", "decode"):
        assert [u.reason for u in methods[name].updates] == ["", ""] + [""] * (
            kind in ("linear", "slices")  # their position is a state
        )
