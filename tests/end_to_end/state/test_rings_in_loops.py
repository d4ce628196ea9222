"""Rings that loops and branches write have a window: they go back, fail and fork."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from broken_steps import Broken, broken_step
from daily import only
from made_once import MadeOnce
from state_runs import opened, snapshot
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Dim, Method
from kvc.runtime import CacheOverflow, KernelFailed, NotRewindable, Program, Session
from kvc.schema.model import StateKind
from kvc.schema.rings import Window
from kvc.tools.reports.memory import describe_copies

SLOTS, WINDOW = 10, 4
LONGEST = SLOTS - WINDOW + 1
Turn = tuple[Tensor, ...]


class Wheel(nn.Module):
    """A ring [1, 1, SLOTS, 4]; token p is (1 + p % 7) / 4 in all columns.

    So what a call gives says nothing but where it ended.
    """

    keep = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def turn(
        self, place: Tensor, ring: Tensor, count: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Write so many tokens; return what the last one attends to, and the ring."""
        places = place + torch.arange(count)
        x = (0.25 * (1 + places % 7)).view(1, 1, count, 1) * torch.ones(1, 1, count, 4)
        ring = torch.ops.kvc.cache_update(ring, x, place, 2, "circular", keep=self.keep)
        seen = torch.ops.kvc.attention(
            x, ring, ring, place + count, layout="circular", window_left=WINDOW - 1,
            keep=self.keep,
        )  # fmt: skip
        return seen[:, :, -1, 0].reshape(()) * 1, ring

    def leave(self, end: Tensor, ring: Tensor) -> None:
        self.ring.copy_(ring)
        self.position.copy_(end)

    def by_while(self, count: Tensor) -> Tensor:
        """So many turns of one token."""

        def turn(i: Tensor, place: Tensor, seen: Tensor, ring: Tensor) -> Turn:
            seen, ring = self.turn(place, ring)
            return i + 1, place + 1, seen, ring

        start = (
            torch.zeros((), dtype=torch.int64), self.position.clone(),
            torch.zeros(()), self.ring.clone(),
        )  # fmt: skip
        _, end, seen, ring = while_loop(lambda i, *_: i < count, turn, start)
        self.leave(end, ring)
        return seen * 1

    def by_scan(self, xs: Tensor) -> Tensor:
        """For each of xs two tokens, then one more."""

        def turn(
            carry: tuple[Tensor, Tensor], x: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Tensor]:
            seen, ring = self.turn(carry[0], carry[1], 2)
            return (carry[0] + 2, ring), seen + x * 0

        start = self.position.clone(), self.ring.clone()
        (end, ring), _ = scan(turn, start, xs, dim=0)
        seen, ring = self.turn(end, ring)
        self.leave(end + 1, ring)
        return seen

    def by_branch(self, count: Tensor) -> Tensor:
        """One token or two."""

        def one(place: Tensor, ring: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return place + 1, *self.turn(place, ring)

        def two(place: Tensor, ring: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return place + 2, *self.turn(place, ring, 2)

        start = self.position.clone(), self.ring.clone()
        end, seen, ring = torch.cond(count < 2, one, two, start)
        self.leave(end, ring)
        return seen * 1

    def by_both(self, count: Tensor) -> Tensor:
        """Two tokens, then in each turn as many as turns have been, then one."""

        def inner(i: Tensor, n: Tensor, place: Tensor, ring: Tensor) -> Turn:
            _, ring = self.turn(place, ring)
            return i + 1, n * 1, place + 1, ring

        def turn(i: Tensor, place: Tensor, ring: Tensor) -> Turn:
            zero = torch.zeros((), dtype=torch.int64)
            start = zero, i.clone(), place.clone(), ring.clone()
            *_, end, ring = while_loop(lambda i, n, *_: i < n, inner, start)
            return i + 1, end.clone(), ring.clone()

        _, ring = self.turn(self.position, self.ring, 2)
        start = torch.zeros((), dtype=torch.int64), self.position + 2, ring
        _, end, ring = while_loop(lambda i, *_: i < count, turn, start)
        seen, ring = self.turn(end, ring)
        self.leave(end + 1, ring)
        return seen


class Kept(Wheel):
    """Keeps its first two positions."""

    keep = 2


XS = torch.zeros(3)
METHODS = {
    "while": Method("by_while", (torch.tensor(2),)),
    "scan": Method("by_scan", (XS,), dynamic={"xs": {0: Dim("turns", 2, 12)}}),
    "branch": Method("by_branch", (torch.tensor(1),)),
    "both": Method("by_both", (torch.tensor(2),)),
}
pytestmark = only(case=["scan", "both", "while kept"])
# Of each, what calls are given, and how many tokens they add.
CALLS = {
    "while": ((3, 3), (17, 17), (1, 1), (4, 4)),
    "scan": ((2, 5), (11, 23), (2, 5)),
    "branch": ((1, 1), (2, 2)) * 8,
    "both": ((4, 9), (1, 3), (6, 18), (2, 4)),
}
Case = tuple[Program, str, int]


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[dict[str, Program]]:
    with ExitStack() as stack:

        def make(name: str) -> Program:
            kind, keeps = name.split()
            model = Kept() if keeps == "kept" else Wheel()
            folder = tmp_path_factory.mktemp(kind)
            return stack.enter_context(opened(model, [METHODS[kind]], folder))

        yield MadeOnce(make)


@pytest.fixture(params=[*METHODS, "while kept"])
def case(request: pytest.FixtureRequest, made: dict[str, Program]) -> Case:
    kind, keeps = [*request.param.split(), ""][:2]
    return made[f"{kind} {keeps or '-'}"], kind, 2 if keeps else 0


def expected(last: int, keep: int) -> float:
    """Return what a query at a position attends to."""
    seen = {*range(min(keep, last + 1)), *range(max(0, last - WINDOW + 1), last + 1)}
    values = np.array([0.25 * (1 + p % 7) for p in seen])
    weights = np.exp(0.5 * 4 * 0.25 * (1 + last % 7) * values)
    return float(weights @ values / weights.sum())


def call(session: Session, case: Case, given: int, added: int) -> None:
    """Run the method of a case, and check what it gives and where it ends."""
    _, kind, keep = case
    start = session.position.item()
    argument = np.zeros(given, np.float32) if kind == "scan" else np.array(given)
    found = session.call(METHODS[kind].name, argument)
    found = np.asarray(found).reshape(-1)[-1]
    assert session.position.item() == start + added
    np.testing.assert_allclose(found, expected(start + added - 1, keep), rtol=1e-5)


def test_it_has_a_window_and_no_write_copies_it(case: Case) -> None:
    program, _, keep = case
    state = program.states["ring"]
    assert (state.kind, state.cursor) == (StateKind.RING, 0)
    assert state.window == Window(WINDOW, keep)
    writes = [r for r in describe_copies(program._engine.program) if r.state == "ring"]
    assert writes
    assert not any(write.bytes_per_call for write in writes)


def test_calls_of_any_length_go_round_it(case: Case) -> None:
    program, kind, _ = case
    session = program.session()
    for given, added in CALLS[kind]:
        call(session, case, given, added)


def test_a_rewind_goes_as_far_as_the_window_is_there(case: Case) -> None:
    program, kind, keep = case
    session = program.session()
    for given, added in CALLS[kind]:
        call(session, case, given, added)
    most = LONGEST - keep
    assert session.rewindable.tolist() == [most]
    with pytest.raises(NotRewindable):
        session.rewind(most + 1)
    session.rewind(2)
    call(session, case, *CALLS[kind][-1])
    session.rewind(session.rewindable)
    for given, added in CALLS[kind]:
        call(session, case, given, added)
    session.rewind(session.position)
    assert not np.asarray(session.state["ring"]).any()
    call(session, case, *CALLS[kind][0])


def test_forks_and_files_go_on_by_themselves(case: Case, tmp_path: Path) -> None:
    program, kind, _ = case
    session = program.session()
    for given, added in CALLS[kind][:3]:
        call(session, case, given, added)
    session.save(tmp_path / "s")
    fork = session.fork()
    call(session, case, *CALLS[kind][0])
    fork.rewind(2)
    with program.restore(tmp_path / "s") as again:
        for other in (session, fork, again):
            for given, added in CALLS[kind]:
                call(other, case, given, added)


@pytest.mark.parametrize("before", [0, 2])
def test_a_failure_in_any_turn_changes_nothing(case: Case, before: int) -> None:
    program, kind, _ = case
    session = program.session()
    for given, added in CALLS[kind][:before]:
        call(session, case, given, added)
    longest = max(CALLS[kind], key=lambda one: one[1])
    contents, number = snapshot(session), 0
    while True:
        with broken_step(number, after=True, error=Broken):
            try:
                call(session, case, *longest)
            except KernelFailed:
                pass
            else:
                break
        for name, content in snapshot(session).items():
            np.testing.assert_array_equal(content, contents[name])
        number += 5
    assert number
    call(session, case, *CALLS[kind][-1])


def test_a_call_that_runs_out_of_room_changes_nothing(case: Case) -> None:
    program, kind, _ = case
    given, added = CALLS[kind][1]
    session = program.session(capacity=2 * added + 1)
    call(session, case, given, added)
    call(session, case, given, added)
    before = snapshot(session)
    with pytest.raises(CacheOverflow):
        call(session, case, given, added)
    for name, content in snapshot(session).items():
        np.testing.assert_array_equal(content, before[name])
