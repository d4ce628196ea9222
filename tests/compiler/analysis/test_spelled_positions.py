"""Spellings of where a cache is written: at the cursor, or at none, and never an error.

Whatever is told to be at the cursor is replaced by it, and checked as any file is.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import every
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.schema.model import StateKind

SLOTS = 16
ROWS, AT = torch.ones(1, 2, 3, 4), torch.zeros(1, dtype=torch.int64)
SEQ = {"rows": {2: Dim("seq", 1, 8)}}
Start = Callable[[Tensor, Tensor], Tensor]
Write = Callable[[Tensor, Tensor, Tensor], Tensor]


class Spelled(nn.Module):
    """A cache [batch, 2, SLOTS, 4] that `write` makes anew at `start`."""

    def __init__(self, write: Write, batch: int = 1) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(batch, 2, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.write = write

    def counted(self, rows: Tensor) -> Tensor:
        start = self.position.clone()
        self.cache.copy_(self.write(self.cache, rows, start))
        self.position.add_(rows.shape[2])
        return self.cache * 1

    def told(self, rows: Tensor, at: Tensor) -> Tensor:
        self.cache.copy_(self.write(self.cache, rows, at))
        return self.cache * 1

    def told_one(self, rows: Tensor, at: Tensor) -> Tensor:
        return self.told(rows, at.expand(rows.shape[0]))

    def told_lengths(self, rows: Tensor, at: Tensor, lengths: Tensor) -> Tensor:
        batch = rows.shape[0]
        start, counted = at.expand(batch), lengths.expand(batch)
        new = torch.ops.kvc.cache_update(self.cache, rows, start, row_lengths=counted)
        self.cache.copy_(new)
        return self.cache * 1


def update(cache: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    return torch.ops.kvc.cache_update(cache, rows, start)


def at(start: Start) -> Write:
    return lambda cache, rows, given: update(cache, rows, start(given, rows))


def copied(places: Start) -> Write:
    return lambda cache, rows, given: cache.index_copy(2, places(given, rows), rows)


def counted(places: Tensor, rows: Tensor) -> Tensor:
    return torch.ones(rows.shape[2], dtype=torch.int64).cumsum(0) - 1 + places


STARTS: dict[str, Start] = {
    "plus nothing": lambda p, x: p + 0,
    "there and back": lambda p, x: p + 1 - 1,
    "expanded and taken": lambda p, x: p.view(1).expand(4)[2].view(1),
    "the last of one": lambda p, x: p[-1].reshape(1),
    "over another": lambda p, x: torch.zeros_like(p).copy_(p),
    "alike in branches": lambda p, x: torch.cond(
        x.sum() > 0, lambda p: p + 0, lambda p: p.clone(), (p,)
    ),
}
PLACES: dict[str, Start] = {
    "from two": lambda p, x: torch.arange(2, 2 + x.shape[2]) + p - 2,
    "some of more": lambda p, x: (p + torch.arange(x.shape[2] + 3))[3:] - 3,
}
OTHERS: dict[str, Write] = {
    "as int32": at(lambda p, x: p.to(torch.int32).to(torch.int64)),
    "clamped": at(lambda p, x: p.clamp(min=0)),
    "times one": at(lambda p, x: p * 1),
    "apart in branches": at(
        lambda p, x: torch.cond(x.sum() > 0, lambda p: p + 1, lambda p: p.clone(), (p,))
    ),
    "by cumsum": copied(counted),
    "by table": copied(lambda p, x: torch.arange(SLOTS)[p + torch.arange(x.shape[2])]),
    "backwards": copied(lambda p, x: (p + torch.arange(x.shape[2])).flip(0)),
    "through a view": lambda cache, rows, p: update(
        cache.view(2, SLOTS, 4).view(1, 2, SLOTS, 4), rows, p
    ),
}
AT_CURSOR = {name: at(start) for name, start in STARTS.items()} | {
    name: copied(places) for name, places in PLACES.items()
}


def run(write: Write, folder: Path, told: bool) -> object:
    """Check two calls against eager; return the kind and the cursor of the cache."""
    method = Method("counted", (ROWS,), dynamic=SEQ)
    if told:
        method = Method("told", (ROWS, AT), dynamic=SEQ, position="at")
    with opened(Spelled(write), [method], folder) as program, torch.no_grad():
        session, model, end = program.session(), Spelled(write), 0
        for count in (3, 2):
            rows = torch.randn(1, 2, count, 4)
            got = session.call(method.name, rows.numpy())
            given = (rows, torch.tensor([end])) if told else (rows,)
            np.testing.assert_array_equal(got, getattr(model, method.name)(*given))
            end += count
        state = program.states["cache"]
        return state.kind, state.cursor


@every(2, "told", "name")
@pytest.mark.parametrize("told", [False, True], ids=["counted", "told"])
@pytest.mark.parametrize("name", AT_CURSOR)
def test_a_write_at_the_cursor_is_told(name: str, told: bool, tmp_path: Path) -> None:
    assert run(AT_CURSOR[name], tmp_path, told) == (StateKind.LINEAR, 0)


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_write_is_at_no_cursor(name: str, tmp_path: Path) -> None:
    _, cursor = run(OTHERS[name], tmp_path, told=False)
    assert cursor is None


def test_one_position_of_all_rows_is_that_of_each(tmp_path: Path) -> None:
    """Where another method is given one of each row."""
    rows, places = torch.randn(2, 2, 1, 4), torch.zeros(2, dtype=torch.int64)
    methods = [
        Method("told", (rows, places), position="at"),
        Method("told_one", (rows, AT), position="at"),
    ]
    model = Spelled(update, batch=2)
    with opened(model, methods, tmp_path) as program, torch.no_grad():
        assert program.states["cache"].at_position
        session = program.session()
        session.call("told", rows.numpy())
        got = session.call("told_one", rows.numpy())
        model.told(rows, places)
        np.testing.assert_array_equal(got, model.told_one(rows, AT + 1))


def test_one_length_of_all_rows_is_that_of_each(tmp_path: Path) -> None:
    rows = torch.randn(2, 2, 3, 4)
    method = Method("told_lengths", (rows, AT, AT + 2), position="at")
    model = Spelled(update, batch=2)
    with opened(model, [method], tmp_path) as program, torch.no_grad():
        assert program.states["cache"].at_position
        session = program.session()
        session.call("told_lengths", rows.numpy(), np.array([2]))
        assert session.position.tolist() == [2]
        got = session.call("told_lengths", rows.numpy(), np.array([1]))
        model.told_lengths(rows, AT, AT + 2)
        np.testing.assert_array_equal(got, model.told_lengths(rows, AT + 2, AT + 1))
