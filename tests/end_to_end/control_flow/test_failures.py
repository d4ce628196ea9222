"""A failure at any step, also inside a branch or loop, for each kind of state.

States that the position alone can put back are as they were; others say `Poisoned`
until a reset, where anything was written; transactional sessions always go back.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from branching_caches import Merged, merged_method
from broken_steps import broken_step
from cached_models import VOCAB
from daily import every
from state_runs import opened, snapshot
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from viewing_branches import dense

from kvc.compiler import Method
from kvc.runtime import KernelFailed, Program, Session
from kvc.schema.errors import NoPosition, Poisoned
from kvc.schema.model import StateKind

YES, X = np.array(True), np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4) + 1
TEXT = np.random.default_rng(6).integers(0, VOCAB, (1, 8))
update = torch.ops.kvc.cache_update
Make = Callable[[Tensor], Tensor]


class Kept(nn.Module):
    """A state that one body updates; `count` says how many tokens there have been."""

    def __init__(self, kind: str, op: str) -> None:
        super().__init__()
        self.kind, self.op = kind, op
        self.register_buffer("kept", torch.zeros(1, 1, 12, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def step(self, x: Tensor, p: Tensor) -> Tensor:
        start = self.count.clone()
        makers: dict[str, Make] = {
            "linear": lambda s: update(s, x, start),
            "ring": lambda s: update(s, x, start, -2, "circular"),
            "plain": lambda s: (s * 0.5 + x.sum()).index_fill(2, start % 3, 2.0),
            "counter": lambda s: s + 2,
        }
        make = makers[self.kind]
        state = self.count if self.kind == "counter" else self.kept
        new = getattr(self, f"by_{self.op}")(p, make, state)
        if self.kind == "counter":
            self.kept.copy_(update(self.kept, x, start))
            self.count.copy_(new)
        else:
            self.kept.copy_(new)
            self.count.add_(2)
        return x.sum() + new.sum()

    def by_cond(self, p: Tensor, make: Make, state: Tensor) -> Tensor:
        other = make if self.kind == "counter" else dense
        return torch.cond(p, make, other, (state,))

    def by_while(self, p: Tensor, make: Make, state: Tensor) -> Tensor:
        def body(i: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, make(s)

        turns = 1 if self.kind == "counter" else 2
        start = torch.tensor(0)
        return torch.while_loop(lambda i, s: i < turns, body, (start, state))[1]

    def by_scan(self, p: Tensor, make: Make, state: Tensor) -> Tensor:
        def body(s: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return make(s), row * 2

        turns = 1 if self.kind == "counter" else 2
        return scan(body, state.clone(), torch.ones(turns, 3))[0]


def step_method() -> Method:
    return Method("step", args=(torch.from_numpy(X), torch.tensor(True)))


KINDS = ("linear", "ring", "plain", "counter")
OPS = ("cond", "while", "scan")


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, str], Program]]:
    made: dict[tuple[str, str], tuple[object, Program]] = {}

    def program(kind: str, op: str) -> Program:
        if (kind, op) not in made:
            folder = tmp_path_factory.mktemp("failing")
            model = Merged() if kind == "append" else Kept(kind, op)
            method = merged_method() if kind == "append" else step_method()
            opening = opened(model, [method], folder)
            made[kind, op] = opening, opening.__enter__()
        return made[kind, op][1]

    yield program
    for opening, _ in made.values():
        opening.__exit__(None, None, None)


def call(session: Session, kind: str, number: int) -> object:
    if kind == "append":
        return session.step(TEXT[:, number : number + 1], np.array(number > 0))
    return session.step(X * (number + 1), YES)


def failures(session: Session, kind: str, after: bool) -> Iterator[int]:
    """Yield each time that a step has failed, until none is left to."""
    for at in range(1000):
        with broken_step(at, after) as frames:
            try:
                call(session, kind, 1)
            except KernelFailed:
                pass
            else:
                assert len(frames) > 1, "no block has run"
                return
        yield at
    raise AssertionError("it never passes")


def position_of(session: Session) -> object:
    try:
        return session.position.tolist()
    except NoPosition:
        return None


def is_poisoned(session: Session) -> bool:
    try:
        session.check_usable()
    except Poisoned:
        return True
    return False


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


EVERY = [(kind, op) for kind in KINDS for op in OPS] + [("append", "cond")]
ROLLED_BACK = {StateKind.LINEAR, StateKind.APPEND, StateKind.COUNTER}
WRITTEN = {StateKind.LINEAR, StateKind.RING}  # which go back where they are at a cursor


@every(2, "kind", "op")
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize(("kind", "op"), EVERY)
def test_a_failure_inside_goes_back_or_poisons(
    programs: Callable[[str, str], Program],
    kind: str,
    op: str,
    after: bool,
) -> None:
    program = programs(kind, op)
    kinds = {
        StateKind.PLAIN
        if state.cursor is None and state.kind in WRITTEN
        else state.kind
        for state in program.states.values()
    }
    poisoned = 0
    with program.session() as session:
        call(session, kind, 0)
        before, position = snapshot(session), position_of(session)
        for _ in failures(session, kind, after):
            if is_poisoned(session):
                poisoned += 1
                assert not kinds <= ROLLED_BACK, "these can always go back"
                session.reset()
                call(session, kind, 0)
            assert same(before, snapshot(session))
            assert position_of(session) == position
    if kind == "plain" and after:
        assert poisoned, "a plain state that was written cannot go back"


@every(2, "kind", "op")
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize(("kind", "op"), EVERY)
def test_a_transactional_session_always_goes_back(
    programs: Callable[[str, str], Program],
    kind: str,
    op: str,
    after: bool,
) -> None:
    with programs(kind, op).session(transactional=True) as session:
        call(session, kind, 0)
        before = snapshot(session)
        for _ in failures(session, kind, after):
            assert same(before, snapshot(session))
