"""Which sums of a state and an input say how many tokens of each row count."""

from collections.abc import Callable

import pytest
import torch
from ragged_models import BATCH
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.schema.errors import CompileError
from kvc.schema.model import CursorKind, Program, StateKind

Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Store(nn.Module):
    """A cache [batch, 8, 2]; `step` makes the counts of a write, and the new place."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 8, 2))
        self.register_buffer("position", torch.zeros(2, dtype=torch.int64))
        self.step = step

    def write(self, x: Tensor, given: Tensor) -> Tensor:
        start = self.position.clone()
        row_lengths, end = self.step(start, given, x)
        new = torch.ops.kvc.cache_update(self.k, x, start, 1, "linear", row_lengths)
        self.k.copy_(new)
        self.position.copy_(end)
        return self.k * 1


def compiled(step: Step, given: Tensor, tokens: int = 3) -> Program:
    x = torch.zeros(2, tokens, 2)
    sizes = {"x": {0: BATCH}, "given": {0: BATCH}}
    if tokens > 1:
        sizes["x"] = {0: BATCH, 1: Dim("seq", 1, 8)}
    method = Method("write", args=(x, given), dynamic=sizes)
    states = [StateSpec("k", batch=BATCH), StateSpec("position", batch=BATCH)]
    return compile_program(Store(step), [method], states=states).program


LENGTHS, ACTIVE = torch.tensor([2, 1]), torch.tensor([True, False])


@pytest.mark.parametrize(
    "step",
    [
        lambda start, given, x: (given, start + given),
        lambda start, given, x: (given, given + start),
        lambda start, given, x: (given.clone(), start + given),
        lambda start, given, x: (given.to(torch.int64), start + given.clone()),
    ],
)
def test_an_input_that_is_added_counts(step: Step) -> None:
    program = compiled(step, LENGTHS)
    (method,) = program.methods
    assert (method.row_lengths, str(method.advance)) == (1, "seq")
    assert program.position is not None
    assert program.position.kind is CursorKind.STATE
    kinds = {s.name: (s.kind, s.at_position) for s in program.states}
    assert kinds["k"] == (StateKind.LINEAR, True)


def cast(start: Tensor, given: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    row_lengths = given.to(torch.int64)
    return row_lengths, start + row_lengths


def test_rows_that_take_part_count_one_token() -> None:
    (method,) = compiled(cast, ACTIVE, tokens=1).methods
    assert (method.row_lengths, method.advance) == (1, 1)


def test_a_bool_says_no_more_than_one_token() -> None:
    with pytest.raises(CompileError, match="bool input 'given', which can only say"):
        compiled(cast, ACTIVE)


@pytest.mark.parametrize(
    "step",
    [
        lambda start, given, x: (given, start + given * 2),
        lambda start, given, x: (given, start + given.clamp(max=2)),
        lambda start, given, x: (given, start - given),
        lambda start, given, x: (given, torch.add(start, given, alpha=2)),
        lambda start, given, x: (given, start + given.to(torch.bool).to(torch.int64)),
        lambda start, given, x: (given, given + given),
    ],
)
def test_anything_else_is_no_position(step: Step) -> None:
    program = compiled(step, LENGTHS)
    assert program.position is None
    assert program.methods[0].row_lengths is None
    assert not any(state.at_position for state in program.states)


@pytest.mark.parametrize(
    "step",
    [
        lambda start, given, x: (given // 2, start + given),
        lambda start, given, x: (torch.ones_like(given), start + given),
    ],
)
def test_a_write_by_other_counts_is_not_at_the_position(step: Step) -> None:
    program = compiled(step, LENGTHS)
    assert not any(state.at_position for state in program.states)


def test_a_write_of_the_padding_too_is_not_at_the_position() -> None:
    def step(start: Tensor, given: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(given, 1) * x.shape[1], start + given

    program = compiled(step, LENGTHS)
    assert not any(state.at_position for state in program.states)
