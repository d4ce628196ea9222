"""Calls that write a cache several times, one chunk after the other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from state_runs import opened
from torch import Tensor, nn

from kvc.compiler import Dim, Method
from kvc.runtime import Program, Session
from kvc.schema.errors import CacheOverflow
from kvc.schema.model import StateKind

SLOTS = 12
ROWS, START = torch.ones(1, 1, 2, 4), torch.zeros(1, dtype=torch.int64)
SIZES = {"a": {2: Dim("first", 1, 8)}, "b": {2: Dim("second", 1, 8)}}


class Chunks(nn.Module):
    """A cache [1, 1, SLOTS, 4]; a call writes two chunks, and sees each over all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 1, SLOTS, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def both(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        start = self.position.clone()
        self.position.add_(a.shape[2] + b.shape[2])
        return self.told(a, b, start)

    def told(self, a: Tensor, b: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        first = self.put(a, at)
        return first, self.put(b, at + a.shape[2])

    def put(self, rows: Tensor, start: Tensor) -> Tensor:
        self.cache.copy_(torch.ops.kvc.cache_update(self.cache, rows, start))
        end = start + rows.shape[2]
        return torch.ops.kvc.attention(rows, self.cache, self.cache, end)

    def apart(self, a: Tensor, b: Tensor) -> Tensor:
        """Write the second chunk one slot too far."""
        start = self.position.clone()
        self.position.add_(a.shape[2] + b.shape[2])
        self.put(a, start)
        return self.put(b, start + a.shape[2] + 1)


@pytest.fixture(scope="module", params=["both", "told"])
def program(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
) -> Iterator[Program]:
    method = Method("both", (ROWS, ROWS), dynamic=SIZES)
    if request.param == "told":
        method = Method("told", (ROWS, ROWS, START), dynamic=SIZES, position="at")
    with opened(Chunks(), [method], tmp_path_factory.mktemp("chunks")) as made:
        yield made


def write(session: Session, *rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Call the one method that there is."""
    for name in ("both", "told"):
        if hasattr(session, name):
            return session.call(name, *rows)
    raise AssertionError


def call(session: Session, model: Chunks, first: int, second: int) -> None:
    """Write chunks of random rows, and compare with eager."""
    a, b = torch.randn(1, 1, first, 4), torch.randn(1, 1, second, 4)
    found = write(session, a.numpy(), b.numpy())
    with torch.no_grad():
        expected = model.both(a, b)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    np.testing.assert_array_equal(session.state["cache"], model.cache)


def test_chunks_are_at_the_cursor(program: Program) -> None:
    state = program.states["cache"]
    assert (state.kind, state.cursor) == (StateKind.LINEAR, 0)
    (method,) = program._engine.program.methods
    assert str(method.advance) == "first+second"


def test_the_position_counts_all_chunks(program: Program, tmp_path: Path) -> None:
    session, model = program.session(), Chunks()
    call(session, model, 2, 3)
    call(session, model, 1, 1)
    assert session.position.tolist() == [7]
    session.save(tmp_path / "s")
    with program.restore(tmp_path / "s") as again:
        assert again.position.tolist() == [7]
        np.testing.assert_array_equal(again.state["cache"], session.state["cache"])


def test_a_rewind_forgets_a_part_of_what_a_call_wrote(program: Program) -> None:
    session, model = program.session(), Chunks()
    call(session, model, 2, 3)
    fork = session.fork()
    session.rewind(4)
    assert session.position.tolist() == [1]
    assert not session.state["cache"][:, :, 1:].any()
    model.position.fill_(1)
    model.cache[:, :, 1:] = 0
    call(session, model, 3, 2)
    assert fork.position.tolist() == [5]
    assert fork.state["cache"][:, :, :5].all()


def test_a_call_of_which_one_chunk_fits_writes_none(program: Program) -> None:
    session, model = program.session(), Chunks()
    call(session, model, 4, 4)
    before = np.array(session.state["cache"])
    rows = np.ones((1, 1, 3, 4), np.float32)
    with pytest.raises(CacheOverflow):
        write(session, rows, rows)
    np.testing.assert_array_equal(session.state["cache"], before)
    call(session, model, 1, 3)


def test_a_chunk_past_what_the_call_adds_is_at_no_cursor(tmp_path: Path) -> None:
    method = Method("apart", (ROWS, ROWS), dynamic=SIZES)
    with opened(Chunks(), [method], tmp_path) as program:
        assert program.states["cache"].cursor is None
        assert program.states["position"].kind is StateKind.COUNTER
