"""States at several cursors: none of them is taken for one at another."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from broken_steps import broken_step
from changed_snapshots import change_header
from state_runs import opened, snapshot
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.compiler.request.spec import StateSpec
from kvc.runtime import BadSnapshot, CallTooLong, KernelFailed
from kvc.schema.errors import NotRewindable, StateMismatch

VOCAB, DIM, WINDOW = 11, 4, 4
BATCH, SEQ = Dim("batch", 1, 4), Dim("seq", 1, 8)
ROWS, TOKENS = torch.ones(1, 1, 3, DIM), torch.arange(3)[None]
ONE = np.array([[5]])


class Placed(nn.Module):
    """Two caches, each of which is written from a position that is passed."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            self.register_buffer(name, torch.zeros(1, 1, 16, DIM))

    def first(self, rows: Tensor, here: Tensor) -> Tensor:
        self.a.copy_(torch.ops.kvc.cache_update(self.a, rows, here))
        return torch.ops.kvc.attention(rows, self.a, self.a, here + rows.shape[2])

    def second(self, rows: Tensor, there: Tensor) -> Tensor:
        self.b.copy_(torch.ops.kvc.cache_update(self.b, rows, there))
        return torch.ops.kvc.attention(rows, self.b, self.b, there + rows.shape[2])


class Listener(nn.Module):
    """A ring and a cache of all that was ever taken, each with its own position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, DIM)
        for name, slots in (("ring", 8), ("all", 64)):
            self.register_buffer(name, torch.zeros(1, 1, slots, DIM))
            self.register_buffer(f"{name}_position", torch.zeros(1, dtype=torch.int64))

    def take(self, name: str, tokens: Tensor) -> Tensor:
        """Write tokens into a cache; return what their queries see of it."""
        cache, position = getattr(self, name), getattr(self, f"{name}_position")
        rows, start = self.embed(tokens)[:, None], position.clone()
        mode = "circular" if name == "ring" else "linear"
        left = WINDOW - 1 if name == "ring" else None
        update, attend = torch.ops.kvc.cache_update, torch.ops.kvc.attention
        cache.copy_(update(cache, rows, start, 2, mode))
        position.add_(tokens.shape[1])
        end = start + tokens.shape[1]
        seen = attend(rows, cache, cache, end, window_left=left, layout=mode)
        return seen[:, 0, -1]

    def hear(self, tokens: Tensor) -> Tensor:
        return self.take("ring", tokens)

    def note(self, tokens: Tensor) -> Tensor:
        return self.take("all", tokens)

    def both(self, tokens: Tensor) -> Tensor:
        return self.take("ring", tokens) + self.take("all", tokens)


class Recurrent(Listener):
    """One with a state that every call goes on with, and that is set by hand too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mood", torch.zeros(1, DIM))

    def set_mood(self, mood: Tensor) -> Tensor:
        self.mood.copy_(mood)
        return self.mood * 1

    def step(self, tokens: Tensor) -> Tensor:
        self.mood.mul_(0.5).add_(self.embed(tokens).sum(1))
        return self.note(tokens) + self.mood


class Prefaced(Listener):
    """One whose first method writes a state that is at no cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("preface", torch.zeros(1, DIM))

    def start(self, tokens: Tensor) -> Tensor:
        self.preface.copy_(torch.tanh(self.embed(tokens).sum(1)))
        return self.note(tokens)

    def go_on(self, tokens: Tensor) -> Tensor:
        return self.note(tokens) + self.preface


def of_tokens(name: str, role: str = "") -> Method:
    return Method(name, (TOKENS,), dynamic={"tokens": {1: SEQ}}, role=role)


def test_a_row_comes_and_goes_with_all_its_positions(tmp_path: Path) -> None:
    here, zero = {"rows": {0: BATCH, 2: SEQ}}, torch.zeros(1, dtype=torch.int64)
    first = Method(
        "first", (ROWS, zero), dynamic=here | {"here": {0: BATCH}}, position="here"
    )
    second = Method(
        "second", (ROWS, zero), dynamic=here | {"there": {0: BATCH}}, position="there"
    )
    specs = (StateSpec("a", batch=BATCH), StateSpec("b", batch=BATCH))
    rows = np.random.default_rng(0).random((2, 1, 3, DIM), np.float32)
    with opened(Placed(), [first, second], tmp_path, states=specs) as program:
        session, other = program.session(batch=2), program.session(batch=2)
        for one, name in ((session, "first"), (session, "second"), (other, "second")):
            one.call(name, rows)
        found = session.second(rows[:, :, :1])
        assert session.positions["there"].tolist() == [4, 4]
        session.copy_row(0, 1)
        session.reset_row(0)
        assert session.positions["here"].tolist() == [0, 3]
        assert session.positions["there"].tolist() == [0, 4]
        session.admit(0, other, 0)
        assert session.positions["here"].tolist() == [0, 3]
        assert session.positions["there"].tolist() == [3, 4]
        again = session.second(rows[:, :, :1])
        np.testing.assert_array_equal(again[0], found[0])
        session.save(file := tmp_path / "s")
        for others in ([[17, 3]], [[1 << 62, 0]]):
            change_header(file, partial(dict.update, others=others))
            with pytest.raises(BadSnapshot, match="of a capacity of 16"):
                program.restore(file)


def test_a_failed_piece_puts_back_each_state_at_its_own_cursor(tmp_path: Path) -> None:
    methods = [of_tokens("both", "prefill"), of_tokens("note")]
    with opened(Listener(), methods, tmp_path) as program:
        session = program.session()
        session.note(np.arange(8)[None])
        session.both(TOKENS.numpy())
        before = snapshot(session)
        with broken_step(8, after=True), pytest.raises(KernelFailed):
            session.both(np.arange(11)[None])  # two pieces, or three
        for name, state in snapshot(session).items():
            np.testing.assert_array_equal(state, before[name])
        session.both(np.arange(11)[None])
        found = {name: rows.tolist() for name, rows in session.positions.items()}
        assert found == {"ring_position": [14], "all_position": [22]}


def test_a_ring_at_another_cursor_limits_its_own_calls(tmp_path: Path) -> None:
    methods = [of_tokens("note", "prefill"), of_tokens("hear")]
    with opened(Listener(), methods, tmp_path) as program:
        session = program.session()
        assert session.longest_call is None
        session.note(np.arange(8)[None])
        session.hear(np.arange(5)[None])
        before = snapshot(session)
        with pytest.raises(CallTooLong, match=r"6 tokens.*allows 5"):
            session.hear(np.arange(6)[None])
        for name, state in snapshot(session).items():
            np.testing.assert_array_equal(state, before[name])


def test_a_new_beginning_forgets_what_calls_had_written(tmp_path: Path) -> None:
    methods = [of_tokens("start"), of_tokens("go_on")]
    with opened(Prefaced(), methods, tmp_path) as program:
        session = program.session()
        session.start(TOKENS.numpy())
        session.reset()
        session.go_on(ONE)
        assert session.rewindable.tolist() == [1]
        session.rewind(1)
        session.start(ONE)
        session.go_on(ONE)
        with pytest.raises(NotRewindable, match="up to position 1"):
            session.rewind(2)


def test_each_cursor_has_rows_of_its_own(tmp_path: Path) -> None:
    other, zero = Dim("other", 1, 4), torch.zeros(1, dtype=torch.int64)
    sizes = [{"rows": {0: one, 2: SEQ}} for one in (BATCH, other)]
    first = Method(
        "first", (ROWS, zero), dynamic=sizes[0] | {"here": {0: BATCH}}, position="here"
    )
    second = Method(
        "second",
        (ROWS, zero),
        dynamic=sizes[1] | {"there": {0: other}},
        position="there",
    )
    specs = (StateSpec("a", batch=BATCH), StateSpec("b", batch=other))
    with opened(Placed(), [first, second], tmp_path, states=specs) as program:
        session = program.session(batch=2, other=3)
        session.first(np.ones((2, 1, 3, DIM), np.float32))
        session.second(np.ones((3, 1, 3, DIM), np.float32))
        found = {name: rows.tolist() for name, rows in session.positions.items()}
        assert found == {"here": [3, 3], "there": [3, 3, 3]}
        with pytest.raises(StateMismatch, match="rows"):
            session.reset_row(0)


def test_what_was_set_by_hand_is_not_lost_with_the_tokens(tmp_path: Path) -> None:
    by_hand = Method("set_mood", (torch.ones(1, DIM),))
    with opened(Recurrent(), [by_hand, of_tokens("step")], tmp_path) as program:
        session = program.session(snapshots=2)
        session.set_mood(mood := np.full((1, DIM), 7, np.float32))
        for _ in range(2):
            session.step(ONE)
        session.rewind(2)
        np.testing.assert_array_equal(session.state["mood"], mood)
        for _ in range(3):
            session.step(ONE)
        with pytest.raises(NotRewindable, match="not at 0"):
            session.rewind(3)
        assert session.position.tolist() == [3]


def test_a_call_that_was_forgotten_stands_in_no_way(tmp_path: Path) -> None:
    with opened(
        Prefaced(), [of_tokens("start"), of_tokens("go_on")], tmp_path
    ) as program:
        session = program.session(snapshots=2)
        for method in ("start", "go_on", "go_on", "start"):
            session.call(method, ONE)
        session.rewind(1)  # to a copy, of what a call up to 1 wrote
        preface = np.array(session.state["preface"])
        assert session.rewindable.tolist() == [3]
        session.rewind(1)
        np.testing.assert_array_equal(session.state["preface"], preface)
        session.rewind(2)
        assert not np.asarray(session.state["preface"]).any()
