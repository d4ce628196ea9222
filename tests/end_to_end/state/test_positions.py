"""What counts tokens, in models where it is easy to count wrongly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from state_runs import opened
from torch import nn

from kvc.compiler import Dim, Method, StateSpec
from kvc.schema.errors import BadSetting, CannotRewind, CompileError, NotRewindable

ROWS, PLACES = torch.ones(1, 2, 3), torch.arange(2)
SEQ = Dim("seq", 1, 4)


class Placed(nn.Module):
    """A cache [1, 8, 3] written at places that are given."""

    def __init__(self, rows=1):
        super().__init__()
        self.register_buffer("k", torch.zeros(rows, 8, 3))

    def step(self, x, places):
        self.k.index_copy_(1, places, x)
        return self.k * 1

    def look(self, x, places):
        return self.k[:, :1] + x.sum() + places.sum()

    def chosen(self, x, rows, places):
        self.k[rows, places] = x[:, 0]
        return self.k * 1


class Begun(nn.Module):
    """A cache whose first five rows are a prefix, counted from five."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 16, 3))
        self.register_buffer("pos", torch.tensor([5]))

    def step(self, x):
        rows = torch.ops.kvc.cache_update(self.k, x, self.pos.clone(), axis=1)
        self.k.copy_(rows)
        self.pos.add_(x.shape[1])
        return self.k * 1

    def carried(self, x, past):
        self.pos.add_(x.shape[1])
        return self.pos * 1, torch.cat([past, x], 1)


class Generated(nn.Module):
    """Counts what decode makes, in a number that is no position."""

    def __init__(self):
        super().__init__()
        self.register_buffer("made", torch.tensor(0))

    def prefill(self, tokens):
        return torch.zeros(1, 4) + tokens.sum()

    def decode(self, token):
        self.made.add_(1)
        return torch.zeros(1, 4) + token.sum()


class Told(nn.Module):
    """A cache [2, 8, 3] whose rows are written at positions that are given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 8, 3))

    def step(self, x, at):
        rows = torch.ops.kvc.cache_update(self.k, x, at, axis=1)
        self.k.copy_(rows)
        return self.k * 1

    def one(self, x, at):
        return self.step(x, at.expand(x.shape[0]))

    def look(self, x, at):
        return x + self.k[torch.arange(2), at][:, None]


def told(name, at, tokens=1, **fields):
    return Method(name, (torch.ones(2, tokens, 3), at), position="at", **fields)


def placed(name, **fields):
    dynamic = {"x": {1: SEQ}, "places": {0: SEQ}}
    return Method(name, (ROWS, PLACES), dynamic=dynamic, position="places", **fields)


def test_a_method_that_only_reads_leaves_the_position(tmp_path: Path) -> None:
    with opened(Placed(), [placed("step"), placed("look")], tmp_path) as program:
        session = program.session()
        session.call("step", ROWS)
        session.call("look", ROWS)
        assert session.position.tolist() == [2]
        got = session.call("step", ROWS * 2)
        assert got[0, :, 0].tolist() == [1, 1, 2, 2, 0, 0, 0, 0]


def test_integers_that_are_no_tokens_do_not_count(tmp_path: Path) -> None:
    args = (torch.ones(3, 1, 3), torch.arange(3), torch.tensor([0]))
    chosen = Method("chosen", args, position="places")
    with pytest.raises(CompileError, match="is unknown"):
        opened(Placed(3), [chosen], tmp_path).__enter__()


def test_places_are_filled_though_there_are_as_many_as_rows(tmp_path: Path) -> None:
    batch = Dim("batch", 1, 4)
    step = Method(
        "step",
        (torch.ones(2, 2, 3), PLACES),
        dynamic={"x": {0: batch, 1: SEQ}, "places": {0: SEQ}},
        position="places",
    )
    model, spec = Placed(2), StateSpec("k", batch=batch)
    with opened(model, [step], tmp_path, states=[spec]) as program:
        got = program.session(batch=2).call("step", np.ones((2, 2, 3), np.float32))
    assert got[:, :, 0].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 2


AT = torch.zeros(2, dtype=torch.int64)


def test_rows_that_are_told_their_positions_go_back_by_themselves(
    tmp_path: Path,
) -> None:
    methods = [told("step", AT), told("look", AT)]
    with opened(Told(), methods, tmp_path) as program:
        session = program.session()
        for value in (1, 2, 3):
            session.call("step", np.full((2, 1, 3), value, np.float32))
        session.rewind(np.array([0, 2]))
        seen = session.call("look", np.zeros((2, 1, 3), np.float32))
        got = session.call("step", np.full((2, 1, 3), 7, np.float32))
    assert seen[:, 0, 0].tolist() == [0, 0]
    assert got[:, :5, 0].tolist() == [[1, 2, 3, 7, 0], [1, 7, 0, 0, 0]]


@pytest.mark.parametrize("tokens", [1, 2])
def test_rows_that_are_told_one_position_go_back_together(
    tmp_path: Path, tokens: int
) -> None:
    methods = [told("one", torch.tensor(0), tokens)]
    batch = Dim("batch", 1, 2)
    methods[0] = replace(methods[0], dynamic={"x": {0: batch}})
    spec = StateSpec("k", batch=batch)
    with opened(Told(), methods, tmp_path, states=[spec]) as program:
        session = program.session(batch=2)
        session.call("one", np.ones((2, tokens, 3), np.float32))
        with pytest.raises(CannotRewind, match="one takes one position for all"):
            session.rewind(np.array([0, 1]))
        session.rewind(np.array([1, 1]))
        assert session.position.tolist() == [tokens - 1] * 2


def test_rows_that_are_told_the_places_of_all_tokens_go_back_together(
    tmp_path: Path,
) -> None:
    batch = Dim("batch", 1, 4)
    dynamic = {"x": {0: batch, 1: SEQ}, "places": {0: SEQ}}
    step = Method(
        "step", (torch.ones(2, 2, 3), PLACES), dynamic=dynamic, position="places"
    )
    spec = StateSpec("k", batch=batch)
    with opened(Placed(2), [step], tmp_path, states=[spec]) as program:
        session = program.session(batch=2)
        session.call("step", np.ones((2, 3, 3), np.float32))
        with pytest.raises(CannotRewind, match="step takes one position for all"):
            session.rewind(np.array([2, 1]))
        assert session.position.tolist() == [3, 3]
        session.rewind(2)
        got = session.call("step", np.full((2, 2, 3), 7, np.float32))
    assert got[:, :4, 0].tolist() == [[1, 7, 7, 0]] * 2


def test_as_many_rows_as_tokens_are_told_apart(tmp_path: Path) -> None:
    """Sizes do not say whether a position is of rows or of tokens; the file does."""
    methods = [told("look", AT, tokens=2), told("step", AT, tokens=2)]
    with opened(Told(), methods, tmp_path) as program:
        session = program.session()
        session.call("step", np.ones((2, 2, 3), np.float32))
        session.rewind(np.array([0, 1]))
        assert session.position.tolist() == [2, 1]
        session.call("step", np.full((2, 2, 3), 7, np.float32))
        assert session.state["k"][:, :5, 0].tolist() == [
            [1, 1, 7, 7, 0],
            [1, 7, 7, 0, 0],
        ]
        session.rewind(1)
        seen = session.call("look", np.zeros((2, 2, 3), np.float32))
    assert seen[:, 0, 0].tolist() == [0, 0]


def test_places_are_filled_where_nothing_is_written(tmp_path: Path) -> None:
    step = Method("step", (ROWS, PLACES), position="places")
    look = Method("look", (torch.ones(1, 2, 3), PLACES), position="places")
    with opened(Placed(), [look, step], tmp_path) as program:
        session = program.session()
        session.call("step", ROWS)
        seen = session.call("look", np.zeros((1, 2, 3), np.float32))
        assert session.position.tolist() == [2]
    assert seen[0, 0, 0] == 1 + 2 + 3


def test_a_session_does_not_go_back_before_its_own_tokens(tmp_path: Path) -> None:
    step = Method("step", (ROWS,), dynamic={"x": {1: SEQ}})
    with opened(Begun(), [step], tmp_path) as program:
        session = program.session()
        session.call("step", ROWS)
        with pytest.raises(BadSetting, match=r"0\.\.2, the tokens of this session"):
            session.rewind(3)
        session.rewind(2)
        assert session.position.tolist() == [5]


def test_what_grows_from_nothing_is_not_cut_at_a_position_that_began_later(
    tmp_path: Path,
) -> None:
    past = torch.ones(1, 2, 3)
    carried = Method(
        "carried",
        (ROWS, past),
        dynamic={"x": {1: SEQ}, "past": {1: Dim("past", 0, 16)}},
        carry={"past": "[1]"},
        role="",
    )
    step = Method("step", (ROWS,), dynamic={"x": {1: SEQ}})
    with opened(Begun(), [step, carried], tmp_path) as program:
        session = program.session()
        session.call("carried", ROWS)
        with pytest.raises(NotRewindable):
            session.rewind(1)


def test_a_number_that_one_of_the_roles_does_not_count_is_no_position(
    tmp_path: Path,
) -> None:
    tokens = torch.ones(1, 2, dtype=torch.int64)
    methods = [
        Method("prefill", (tokens,), dynamic={"tokens": {1: SEQ}}, role="prefill"),
        Method("decode", (tokens[:, :1],), role="decode"),
    ]
    with opened(Generated(), methods, tmp_path) as program:
        assert program.session().capacity is None
        assert program.states["made"].kind.name == "PLAIN"
