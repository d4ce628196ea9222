"""Loops of any number of turns that write a cache in each: the counter says how far."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from broken_steps import Broken, broken_step
from loops_within import write_in_scans
from state_runs import opened, snapshot
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Dim, Method
from kvc.runtime import KernelFailed, Program, Session
from kvc.schema.errors import BadSetting, CacheOverflow, StateMismatch
from kvc.schema.model import StateKind

SLOTS = 12
PROMPT = torch.zeros(1, 1, 2, 4)  # [batch, heads, tokens, width]
COUNT = torch.tensor(2)  # how many tokens a call makes
SIZES = {"x": {2: Dim("seq", 1, 6)}}
Loop = tuple[Tensor, Tensor, Tensor, Tensor]  # turn, position, last token, cache


class Writer(nn.Module):
    """A cache [1, 1, SLOTS, 4] that turns of a loop write, a token in each."""

    step = 1  # how far a turn moves the position

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.next = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(1, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def write(self, count: Tensor) -> Tensor:
        """Make tokens out of one another."""
        x = torch.ones(1, 1, 1, 4)
        return self.run(x, count, self.position.clone(), self.cache.clone())

    def read(self, x: Tensor) -> Tensor:
        """Take a prompt."""
        at = self.position.clone()
        self.cache.copy_(torch.ops.kvc.cache_update(self.cache, x, at, 2, "linear"))
        self.position.copy_(at + x.shape[2])
        return x.sum()

    def answer(self, x: Tensor, count: Tensor) -> Tensor:
        """Take two tokens, then make more, then take the last one."""
        at = self.position.clone()
        cache = torch.ops.kvc.cache_update(self.cache, x, at, 2, "linear")
        x = torch.ones(1, 1, 1, 4) * x.sum()
        return self.run(x, count, at + 2, cache, last=True)

    def run(
        self, x: Tensor, count: Tensor, start: Tensor, cache: Tensor, last: bool = False
    ) -> Tensor:
        def goes_on(i: Tensor, place: Tensor, x: Tensor, cache: Tensor) -> Tensor:
            return i < count

        def turn(i: Tensor, place: Tensor, x: Tensor, cache: Tensor) -> Loop:
            cache = self.put(cache, x, place)
            seen = torch.ops.kvc.attention(x, cache, cache, place + 1)
            return i + 1, place + self.step, self.next(seen), cache

        first = torch.zeros((), dtype=torch.int64)
        _, end, x, cache = while_loop(goes_on, turn, (first, start, x, cache))
        if last:
            cache = self.put(cache, x, end)
            end = end + 1
        self.cache.copy_(cache)
        self.position.copy_(end)
        return x

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        return torch.ops.kvc.cache_update(cache, x, place, 2, "linear")


METHODS = [
    Method("write", (COUNT,)),
    Method("read", (PROMPT,), dynamic=SIZES),
    Method("answer", (PROMPT, COUNT)),
]


@pytest.fixture(scope="module")
def program(
    tmp_path_factory: pytest.TempPathFactory, backend: str
) -> Iterator[Program]:
    with opened(Writer(), METHODS, tmp_path_factory.mktemp("loops")) as made:
        yield made


def call(session: Session, model: Writer, name: str, *args: Tensor) -> None:
    """Run a method and its model, and compare what they give and leave."""
    found = session.call(name, *(arg.numpy() for arg in args))
    with torch.no_grad():
        np.testing.assert_allclose(found, getattr(model, name)(*args), atol=1e-5)
    np.testing.assert_allclose(session.state["cache"], model.cache, atol=1e-5)
    assert session.position.tolist() == model.position.tolist()


def test_the_cache_is_at_the_counter(program: Program) -> None:
    state = program.states["cache"]
    assert (state.kind, state.cursor) == (StateKind.LINEAR, 0)
    advances = {m.name: m.advance_of(0) for m in program._engine.program.methods}
    assert advances["write"] is not None
    assert advances["write"].tokens is None
    assert advances["answer"] is not None
    assert advances["answer"].tokens is None


def test_the_position_is_right_after_each_call(program: Program) -> None:
    session, model = program.session(), Writer()
    call(session, model, "read", torch.randn(1, 1, 3, 4))
    call(session, model, "write", torch.tensor(0))
    call(session, model, "write", torch.tensor(4))
    call(session, model, "answer", torch.randn(1, 1, 2, 4), torch.tensor(1))
    assert session.position.tolist() == [11]
    session.reset()
    assert session.position.tolist() == [0]


def test_a_rewind_forgets_a_part_of_what_a_loop_wrote(program: Program) -> None:
    session, fresh, model = program.session(), program.session(), Writer()
    call(session, model, "read", torch.ones(1, 1, 2, 4))
    call(session, model, "write", torch.tensor(6))
    session.rewind(4)
    assert session.position.tolist() == [4]
    assert not np.asarray(session.state["cache"])[:, :, 4:].any()
    model = Writer()
    call(fresh, model, "read", torch.ones(1, 1, 2, 4))
    call(fresh, model, "write", torch.tensor(2))
    np.testing.assert_array_equal(session.state["cache"], fresh.state["cache"])
    call(session, model, "write", torch.tensor(3))


def test_forks_and_files_hold_what_a_loop_wrote(
    program: Program, tmp_path: Path
) -> None:
    session, model = program.session(), Writer()
    call(session, model, "write", torch.tensor(3))
    session.save(tmp_path / "short")
    fork = session.fork()
    call(session, model, "write", torch.tensor(5))
    assert fork.position.tolist() == [3]
    assert not np.asarray(fork.state["cache"])[:, :, 3:].any()
    session.rewind(5)
    with program.restore(tmp_path / "short") as again:
        for other in (session, fork, again):
            assert other.position.tolist() == [3]
            model.position.fill_(3)
            model.cache[:, :, 3:] = 0
            call(other, model, "write", torch.tensor(2))


def test_a_file_is_as_long_as_what_was_written(
    program: Program, tmp_path: Path
) -> None:
    session = program.session()
    session.write(np.array(3))
    session.save(tmp_path / "short")
    session.write(np.array(3))
    session.save(tmp_path / "long")
    sizes = [(tmp_path / name).stat().st_size for name in ("short", "long")]
    assert sizes[1] - sizes[0] == 3 * 4 * 4


def test_a_loop_that_runs_out_of_room_changes_nothing(program: Program) -> None:
    session, model = program.session(), Writer()
    call(session, model, "read", torch.ones(1, 1, 2, 4))
    before = np.array(session.state["cache"])
    with pytest.raises(CacheOverflow):
        session.write(np.array(11))
    assert session.position.tolist() == [2]
    np.testing.assert_array_equal(session.state["cache"], before)
    call(session, model, "write", torch.tensor(10))


def test_a_session_of_less_capacity_has_no_more_room(program: Program) -> None:
    session, model = program.session(capacity=5), Writer()
    call(session, model, "read", torch.ones(1, 1, 2, 4))
    with pytest.raises(CacheOverflow):
        session.write(np.array(4))
    np.testing.assert_array_equal(session.state["cache"], model.cache)
    call(session, model, "write", torch.tensor(3))


@pytest.mark.parametrize(
    ("error", "raised"),
    [(Broken, KernelFailed), (KeyboardInterrupt, KeyboardInterrupt)],
)
def test_a_failure_in_any_turn_changes_nothing(
    program: Program, error: type[BaseException], raised: type[BaseException]
) -> None:
    session, model = program.session(), Writer()
    call(session, model, "read", torch.ones(1, 1, 2, 4))
    before, failed = snapshot(session), 0
    for number in range(1000):
        with broken_step(number, after=True, error=error):
            try:
                session.write(np.array(3))
            except raised:
                failed += 1
            else:
                break
        for name, content in snapshot(session).items():
            np.testing.assert_array_equal(content, before[name])
    assert failed
    assert session.position.tolist() == [5]


def test_what_a_failed_loop_wrote_is_not_in_a_fork(program: Program) -> None:
    session = program.session()
    session.read(np.ones((1, 1, 2, 4), np.float32))
    first = session.fork()
    with pytest.raises(CacheOverflow):
        session.write(np.array(11))
    second = session.fork()
    session.write(np.array(3))
    for fork in (first, second):
        assert fork.position.tolist() == [2]
        assert not np.asarray(fork.state["cache"])[:, :, 2:].any()
        fork.write(np.array(3))
        np.testing.assert_array_equal(fork.state["cache"], session.state["cache"])


def test_a_rewind_goes_no_further_than_there_is(program: Program) -> None:
    session = program.session()
    session.write(np.array(3))
    with pytest.raises(BadSetting, match=r"0\.\.3"):
        session.rewind(4)
    session.rewind(3)
    assert session.position.tolist() == [0]
    assert not np.asarray(session.state["cache"]).any()


class Overlapping(Writer):
    """Writes two tokens, and goes on by one."""

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        return super().put(cache, x.repeat(1, 1, 2, 1), place)


class Skipping(Writer):
    """Writes every second position."""

    step = 2


def test_turns_that_write_more_than_they_go_on_are_at_no_cursor(
    tmp_path: Path,
) -> None:
    with opened(Overlapping(), METHODS[:1], tmp_path) as program:
        assert program.states["cache"].cursor is None


def test_turns_may_leave_positions_out(tmp_path: Path) -> None:
    with opened(Skipping(), METHODS[:2], tmp_path) as program:
        session, model = program.session(), Skipping()
        call(session, model, "write", torch.tensor(3))
        assert session.position.tolist() == [6]
        session.rewind(3)
        model.position.fill_(3)
        model.cache[:, :, 3:] = 0
        call(session, model, "write", torch.tensor(2))


class InBranches(Writer):
    """A branch in each turn writes where it is told, one further than the turn."""

    def put(self, cache: Tensor, x: Tensor, place: Tensor) -> Tensor:
        def write(cache: Tensor, x: Tensor, before: Tensor) -> Tensor:
            return torch.ops.kvc.cache_update(cache, x, before, 2, "linear")

        def leave(cache: Tensor, x: Tensor, before: Tensor) -> Tensor:
            return cache.clone()

        is_big = x.sum() > -100.0
        return torch.cond(is_big, write, leave, (cache, x, place + 1))

    step = 2


def test_branches_of_turns_write(tmp_path: Path) -> None:
    with opened(InBranches(), METHODS[:1], tmp_path) as program:
        assert program.states["cache"].cursor == 0
        session, model = program.session(), InBranches()
        call(session, model, "write", torch.tensor(3))
        call(session, model, "write", torch.tensor(2))
        assert session.position.tolist() == [10]


class Told(Writer):
    """Its position is an input, so nothing says how far a loop has come."""

    def told(self, x: Tensor, count: Tensor, at: Tensor) -> Tensor:
        self.cache.copy_(self.put(self.cache, x, at))
        self.run(x, count, at + 1, self.cache.clone())
        return x.sum()


def test_a_position_that_is_an_input_does_not_count_such_turns(
    tmp_path: Path,
) -> None:
    args = torch.ones(1, 1, 1, 4), COUNT, torch.zeros(1, dtype=torch.int64)
    with opened(Told(), [Method("told", args, position="at")], tmp_path) as program:
        assert program.states["cache"].cursor is None


class Apart(nn.Module):
    """Two rows, each with a position of its own, and a number of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("turns", torch.zeros((), dtype=torch.int32))

    def read(self, x: Tensor, lengths: Tensor) -> Tensor:
        at = self.position.clone()
        put = torch.ops.kvc.cache_update
        self.cache.copy_(put(self.cache, x, at, 2, "linear", lengths))
        self.position.copy_(at + lengths)
        return x.sum()

    def write(self, x: Tensor, count: Tensor) -> Tensor:
        def turn(i: Tensor, place: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
            new = x + i + place.view(2, 1, 1, 1)
            put = torch.ops.kvc.cache_update
            return i + 1, place + 1, put(cache, new, place, 2, "linear")

        first = torch.zeros((), dtype=torch.int64), self.position.clone()
        start = *first, self.cache.clone()
        _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
        self.cache.copy_(cache)
        self.position.copy_(end)
        return end * 1


def test_rows_stand_apart(tmp_path: Path) -> None:
    methods = [
        Method("read", (torch.ones(2, 1, 3, 4), torch.tensor([3, 1]))),
        Method("write", (torch.ones(2, 1, 1, 4), COUNT)),
    ]
    model, x = Apart(), torch.ones(2, 1, 1, 4)
    with opened(Apart(), methods, tmp_path) as program:
        assert program.states["cache"].cursor == 0
        session = program.session()
        lengths = torch.tensor([3, 1])
        session.read(np.ones((2, 1, 3, 4), np.float32), lengths.numpy())
        model.read(torch.ones(2, 1, 3, 4), lengths)
        for count in (4, 0, 2):
            found = session.write(x.numpy(), np.array(count))
            np.testing.assert_array_equal(found, model.write(x, torch.tensor(count)))
        np.testing.assert_array_equal(session.state["cache"], model.cache)
        assert session.position.tolist() == [9, 7]
        with pytest.raises(CacheOverflow):
            session.write(x.numpy(), np.array(4))
        session.rewind(np.array([2, 5]))
        assert session.position.tolist() == [7, 2]
        assert not np.asarray(session.state["cache"])[0, :, 7:].any()
        assert not np.asarray(session.state["cache"])[1, :, 2:].any()


class Far(Writer):
    """Begins where no session can be."""

    def __init__(self) -> None:
        super().__init__()
        self.position += 1 << 62


def test_a_session_whose_counter_is_far_off_can_be_shown(tmp_path: Path) -> None:
    with opened(Far(), METHODS[1:2], tmp_path) as program:
        session = program.session()
        with pytest.raises(StateMismatch):
            _ = session.position
        assert "a position out of range" in repr(session)


class Within(Writer):
    """Each turn of a loop runs a scan, whose turns write a token each."""

    def nested(self, count: Tensor, xs: Tensor) -> Tensor:
        return write_in_scans(self, count, xs, self.put)


def test_loops_within_loops_write(tmp_path: Path) -> None:
    xs = torch.randn(3, 1, 1, 1, 4)
    with opened(Within(), [Method("nested", (COUNT, xs))], tmp_path) as program:
        assert program.states["cache"].cursor == 0
        session, model = program.session(), Within()
        call(session, model, "nested", torch.tensor(3), xs)
        assert session.position.tolist() == [9]
        session.rewind(4)
        model.position.fill_(5)
        model.cache[:, :, 5:] = 0
        call(session, model, "nested", torch.tensor(2), xs)
