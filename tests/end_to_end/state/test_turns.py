"""Scans that write a cache in each turn, where the turn before has stopped."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import only
from state_runs import opened
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from kvc.compiler import Dim, Method
from kvc.runtime import Program, Session
from kvc.schema.errors import CacheOverflow
from kvc.schema.model import StateKind

SLOTS = 12
TURNS = torch.ones(3, 1, 1, 2, 4)  # [turns, batch, heads, tokens of a turn, width]
START = torch.zeros(1, dtype=torch.int64)
SIZES = {"xs": {0: Dim("turns", 2, 8)}}


class Turns(nn.Module):
    """A cache [1, 1, SLOTS, 4], to which each turn adds two rows."""

    mode = "linear"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def counted(self, xs: Tensor) -> Tensor:
        end, seen = self.run(xs, self.position.clone())
        self.position.copy_(end)
        return seen

    def told(self, xs: Tensor, at: Tensor) -> Tensor:
        return self.run(xs, at)[1]

    def run(self, xs: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the last turn ends, and what each turn attends to."""

        def turn(
            carry: tuple[Tensor, Tensor], x: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Tensor]:
            place, cache = carry
            cache = self.put(cache, x, place)
            end = place + self.step
            seen = torch.ops.kvc.attention(x, cache, cache, place + 2, layout=self.mode)
            return (end, cache), seen

        (end, cache), seen = scan(turn, (start, self.cache.clone()), xs, dim=0)
        self.cache.copy_(cache)
        return end, seen

    step = 2

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        return torch.ops.kvc.cache_update(cache, x, place, 2, self.mode)


class InTwo(Turns):
    """Writes the two rows of a turn one after the other."""

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        cache = super().put(cache, x[:, :, :1], place)
        return super().put(cache, x[:, :, 1:], place + 1)


class Overlapping(Turns):
    """Goes on by one row, where it has written two."""

    step = 1


class Wheel(Turns):
    """Its cache is a ring."""

    mode = "circular"


MODELS = {"once": Turns, "in two": InTwo}
pytestmark = only(case=[("once", "told"), ("in two", "counted")])


@pytest.fixture(
    scope="module", params=[(n, m) for n in MODELS for m in ("counted", "told")]
)
def case(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
) -> Iterator[tuple[Program, Turns, str]]:
    kind, name = request.param
    method = Method("counted", (TURNS,), dynamic=SIZES)
    if name == "told":
        method = Method("told", (TURNS, START), dynamic=SIZES, position="at")
    with opened(MODELS[kind](), [method], tmp_path_factory.mktemp("turns")) as made:
        yield made, MODELS[kind](), name


Case = tuple[Program, Turns, str]


def call(session: Session, model: Turns, name: str, turns: int) -> None:
    xs = torch.randn(turns, 1, 1, 2, 4)
    found = session.call(name, xs.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(found, model.counted(xs), atol=1e-5)
    np.testing.assert_array_equal(session.state["cache"], model.cache)


def test_turns_write_at_the_cursor(case: Case) -> None:
    program, _, _ = case
    state = program.states["cache"]
    assert (state.kind, state.cursor) == (StateKind.LINEAR, 0)
    (method,) = program._engine.program.methods
    assert str(method.advance) == "2*turns"


def test_the_position_counts_all_turns(case: Case, tmp_path: Path) -> None:
    program, _, name = case
    session, model = program.session(), Turns()
    call(session, model, name, 2)
    call(session, model, name, 3)
    assert session.position.tolist() == [10]
    fork = session.fork()
    session.save(tmp_path / "s")
    with program.restore(tmp_path / "s") as again:
        assert again.position.tolist() == [10]
        np.testing.assert_array_equal(again.state["cache"], fork.state["cache"])


def test_a_rewind_forgets_a_part_of_a_turn(case: Case) -> None:
    program, _, name = case
    session, model = program.session(), Turns()
    call(session, model, name, 3)
    session.rewind(3)
    assert session.position.tolist() == [3]
    assert not session.state["cache"][:, :, 3:].any()
    model.position.fill_(3)
    model.cache[:, :, 3:] = 0
    call(session, model, name, 4)


def test_turns_that_do_not_all_fit_write_nothing(case: Case) -> None:
    program, _, name = case
    session, model = program.session(), Turns()
    call(session, model, name, 4)
    before = np.array(session.state["cache"])
    with pytest.raises(CacheOverflow):
        session.call(name, np.ones((3, 1, 1, 2, 4), np.float32))
    np.testing.assert_array_equal(session.state["cache"], before)
    call(session, model, name, 2)


def test_turns_that_go_on_by_less_than_they_write_are_at_no_cursor(
    tmp_path: Path,
) -> None:
    method = Method("counted", (TURNS,), dynamic=SIZES)
    with opened(Overlapping(), [method], tmp_path) as program:
        assert program.states["cache"].cursor is None


def test_a_ring_that_turns_write_is_at_the_cursor(tmp_path: Path) -> None:
    method = Method("counted", (TURNS,), dynamic=SIZES)
    with opened(Wheel(), [method], tmp_path) as program:
        state = program.states["cache"]
        assert (state.kind, state.cursor) == (StateKind.RING, 0)
        session, model = program.session(), Wheel()
        for turns in (4, 3, 5):
            call(session, model, "counted", turns)
        assert session.position.tolist() == [24]
        assert session.fork().position.tolist() == [24]
