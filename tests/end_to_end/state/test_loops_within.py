"""Loops in loops and branches that write a cache: the counter says how far."""

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

from kvc.compiler import Method
from kvc.runtime import KernelFailed, Program, Session
from kvc.schema.errors import CacheOverflow
from kvc.schema.model import Advance, StateKind
from kvc.tools.reports.memory import describe_copies

SLOTS = 24
COUNT = torch.tensor(2)
ROW = torch.ones(1, 1, 1, 4)
Turn = tuple[Tensor, Tensor, Tensor]  # turn, position, cache


class Within(nn.Module):
    """A cache [1, 1, SLOTS, 4]; each method writes tokens as `count` says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def in_loop(self, x: Tensor, count: Tensor) -> Tensor:
        """Turn after turn, as many tokens as turns have been: 0, 1, 2 ..."""

        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Turn:
            end, cache = self.write(x, i, place.clone(), cache.clone())
            return i + 1, end.clone(), cache.clone()

        first = torch.zeros((), dtype=torch.int64)
        start = first, self.position.clone(), self.cache.clone()
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        return self.leave(end, cache)

    def in_scan(self, x: Tensor, count: Tensor) -> Tensor:
        """In each of three turns so many tokens, then one."""

        def turn(carry: tuple[Tensor, Tensor], more: Tensor) -> tuple[object, Tensor]:
            end, cache = self.write(x, count + more, carry[0].clone(), carry[1].clone())
            cache = self.put(cache, x * 2, end)
            return (end + 1, cache), more * 2

        start = self.position.clone(), self.cache.clone()
        (end, cache), _ = scan(turn, start, torch.tensor([0, 2, 1]), dim=0)
        return self.leave(end, cache)

    def in_branch(self, x: Tensor, count: Tensor) -> Tensor:
        """So many tokens, or none where they are too many; and one."""

        def yes(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            end, cache = self.write(x, count, place.clone(), cache.clone())
            return end.clone(), cache.clone()

        def no(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            return place.clone(), cache.clone()

        start = self.position.clone(), self.cache.clone()
        end, cache = torch.cond(count < 5, yes, no, start)
        cache = self.put(cache, x * 3, end)
        return self.leave(end + 1, cache)

    def branches(self, x: Tensor, count: Tensor) -> Tensor:
        """One token, or two; no loop."""

        def one(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            return place + 1, self.put(cache, x, place)

        def two(place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            return place + 2, self.put(cache, torch.cat([x, x * 2], 2), place)

        start = self.position.clone(), self.cache.clone()
        end, cache = torch.cond(count < 2, one, two, start)
        return self.leave(end, cache)

    def branch_in_loop(self, x: Tensor, count: Tensor) -> Tensor:
        """In each second turn as many tokens as turns have been; in others one."""

        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Turn:
            def yes(i: Tensor, place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
                end, cache = self.write(x, i, place.clone(), cache.clone())
                return end.clone(), cache.clone()

            def no(i: Tensor, place: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
                return place + 1, self.put(cache, x * 5, place)

            given = i, place.clone(), cache.clone()
            end, cache = torch.cond(i % 2 == 0, yes, no, given)
            return i + 1, end.clone(), cache.clone()

        first = torch.zeros((), dtype=torch.int64)
        start = first, self.position.clone(), self.cache.clone()
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        return self.leave(end, cache)

    def write(
        self, x: Tensor, count: Tensor, place: Tensor, cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        def turn(i: Tensor, place: Tensor, cache: Tensor) -> Turn:
            cache = self.put(cache, x + i, place)
            seen = torch.ops.kvc.attention(x, cache, cache, place + 1)
            return i + 1, place + 1, self.put(cache, x + i + seen, place)

        start = torch.zeros((), dtype=torch.int64), place, cache
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        return end, cache

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        return torch.ops.kvc.cache_update(cache, x, place, 2, "linear")

    def leave(self, end: Tensor, cache: Tensor) -> Tensor:
        self.cache.copy_(cache)
        self.position.copy_(end)
        return end * 1


NAMES = ("in_loop", "in_scan", "in_branch", "branches", "branch_in_loop")
pytestmark = only(case=["in_scan", "branches", "branch_in_loop"])
# For how much each leaves behind, and then.
COUNTS = {
    "in_loop": ((4, 6), (0, 0), (5, 10)),
    "in_scan": ((1, 9), (0, 6)),
    "in_branch": ((4, 5), (7, 1), (0, 1), (2, 3)),
    "branches": ((1, 1), (2, 2), (0, 1)),
    "branch_in_loop": ((4, 4), (1, 0), (5, 8)),
}


Case = tuple[Program, str]


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[dict[str, Program]]:
    with ExitStack() as stack:

        def make(name: str) -> Program:
            folder = tmp_path_factory.mktemp(name)
            opening = opened(Within(), [Method(name, (ROW, COUNT))], folder)
            return stack.enter_context(opening)

        yield MadeOnce(make)


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest, made: dict[str, Program]) -> Case:
    return made[request.param], request.param


def call(session: Session, model: Within, name: str, count: int) -> None:
    """Run a method and its model, and compare what they give and leave."""
    found = session.call(name, ROW.numpy(), np.array(count))
    with torch.no_grad():
        expected = getattr(model, name)(ROW, torch.tensor(count))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(session.state["cache"], model.cache, atol=1e-5)
    assert session.position.tolist() == model.position.tolist()


def test_the_cache_is_at_the_counter_and_no_write_copies_it(case: Case) -> None:
    program, _ = case
    state = program.states["cache"]
    assert (state.kind, state.cursor) == (StateKind.LINEAR, 0)
    whole = program._engine.program
    assert whole.methods[0].advances == (Advance(0, None),)
    writes = [r for r in describe_copies(whole) if r.state == "cache"]
    assert writes
    # A place may be copied, where a partition reads it after it has moved on.
    assert all(write.bytes_per_call < ROW.nbytes for write in writes)


def test_the_position_is_right_after_each_call(case: Case) -> None:
    program, name = case
    session, model = program.session(), Within()
    for count, added in COUNTS[name]:
        before = model.position.item()
        call(session, model, name, count)
        assert session.position.tolist() == [before + added]


def test_a_rewind_forgets_a_part(case: Case, tmp_path: Path) -> None:
    program, name = case
    session, model = program.session(), Within()
    for count, _ in COUNTS[name]:
        call(session, model, name, count)
    held = session.position.tolist()[0] - 3
    fork = session.fork()
    session.save(tmp_path / "s")
    with program.restore(tmp_path / "s") as again:
        for other in (session, fork, again):
            other.rewind(3)
            model.position.fill_(held)
            model.cache[:, :, held:] = 0
            np.testing.assert_allclose(other.state["cache"], model.cache, atol=1e-5)
            call(other, model, name, 1)


def test_a_call_that_runs_out_of_room_changes_nothing(case: Case) -> None:
    program, name = case
    session = program.session(capacity=5)
    for count in (2, 4, 4, 4):
        before = snapshot(session)
        try:
            session.call(name, ROW.numpy(), np.array(count))
        except CacheOverflow:
            break
    else:
        pytest.fail("all of it had room")
    for key, content in snapshot(session).items():
        np.testing.assert_array_equal(content, before[key])


def test_a_failure_in_any_turn_changes_nothing(case: Case) -> None:
    program, name = case
    session, model = program.session(), Within()
    call(session, model, name, 2)
    before, failed = snapshot(session), 0
    for number in range(1000):
        with broken_step(number, after=True, error=Broken):
            try:
                session.call(name, ROW.numpy(), np.array(2))
            except KernelFailed:
                failed += 1
            else:
                break
        for key, content in snapshot(session).items():
            np.testing.assert_array_equal(content, before[key])
    assert failed
