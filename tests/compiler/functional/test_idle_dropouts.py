"""Dropout outside of training gives what it is given, which writes reach."""

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method

P = torch.tensor(True)
X = torch.arange(24.0).sin().reshape(1, 2, 2, 6)
DROP = nn.Dropout().eval()
TWICE = nn.Sequential(nn.Dropout(), nn.Dropout()).eval()
LINEAR = nn.Linear(6, 6)


def functions(x: Tensor) -> Tensor:
    held = x * 1
    functional.dropout(held, training=False).add_(1)
    torch.dropout(held, p=0.5, train=False)[0] = 7
    functional.dropout(held, 0.0)[0, 1] = 8
    functional.dropout(held, 0.5, False, True).mul_(2)
    return held


def views(x: Tensor) -> list[Tensor]:
    held = LINEAR(x)
    flat = DROP(held).view(-1)
    flat[3:].add_(1)
    DROP(DROP(held)).mul_(2)
    return [held * 1, flat * 1]


def written_before_it_is_read(x: Tensor) -> Tensor:
    held = LINEAR(x)
    dropped = DROP(held).transpose(1, 2)
    dropped.reshape(-1).add_(1)
    held.mul_(2)
    return dropped.clone(memory_format=torch.contiguous_format)


def of_another_order(x: Tensor) -> list[Tensor]:
    held = x.to(memory_format=torch.channels_last).roll(1, 2)
    dropped = DROP(held)
    dropped.contiguous().add_(1)
    return [held * 1, (dropped * 2).reshape(-1)]


def pieces(x: Tensor) -> list[Tensor]:
    held = LINEAR(x)
    one, other = DROP(held).chunk(2, 1)
    one.reshape(-1)[3:] += 1
    other.mul_(2)
    return [held * 1, one * 1]


def an_argument(x: Tensor) -> list[Tensor]:
    dropped = DROP(x)
    dropped.add_(1)
    return [x * 2, dropped * 1]


def a_place_by_what_is_written(x: Tensor) -> Tensor:
    held = LINEAR(x)
    dropped = DROP(held)
    dropped.add_(1)
    start = (dropped[0, 0, 0, 0] > 0).long()
    dropped.narrow(3, start, 3).mul_(2)
    return held * 1


def a_copy_as_it_lies_apart(x: Tensor) -> list[Tensor]:
    dropped = DROP(x.transpose(1, 3)[:, 1:4])
    copied = dropped.reshape(-1)
    copied.add_(1)
    return [x * 1, copied, dropped * 1]


def in_a_branch(x: Tensor) -> Tensor:
    held = LINEAR(x)
    dropped = DROP(held)
    held.add_(1)
    both = (held, dropped[0])
    return torch.cond(P, lambda a, b: a + b, lambda a, b: a * b, both)


def in_a_loop(x: Tensor) -> list[Tensor]:
    held = LINEAR(x)
    dropped = DROP(held)
    held.add_(1)
    count = torch.zeros((), dtype=torch.int64)
    return torch.while_loop(
        lambda i, a, b: i < 3,
        lambda i, a, b: (i + 1, a + b, b * 2),
        (count, held, dropped),
    )


def twice_from_a_branch(x: Tensor) -> list[Tensor]:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        held = LINEAR(x)
        dropped = DROP(held)
        held.add_(1)
        return held, dropped

    return torch.cond(P, body, lambda x: (x * 1, x * 2), (x,))


@pytest.mark.parametrize(
    "code",
    [
        a_place_by_what_is_written,
        a_copy_as_it_lies_apart,
        in_a_branch,
        in_a_loop,
        twice_from_a_branch,
        functions,
        views,
        pieces,
        written_before_it_is_read,
        of_another_order,
        an_argument,
    ],
)
def test_writes_reach_what_it_is_given(code, tmp_path):
    found = outcome(Applied(code), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_a_write_through_it_reaches_a_buffer(tmp_path):
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.zeros(X.shape))
            self.drop = nn.Dropout()

        def forward(self, x: Tensor) -> Tensor:
            self.drop(self.held).add_(x)
            return self.drop(self.held) * 2

    run_both(
        Held().eval(), [Method("forward", (X,))], [("forward", (X,))] * 3, tmp_path
    )


def in_a_row(x: Tensor) -> Tensor:
    return TWICE(x)


def and_more_of_it(x: Tensor) -> tuple[Tensor, Tensor]:
    dropped = DROP(x)
    return dropped, dropped * 2


def of_a_view(x: Tensor) -> Tensor:
    return DROP(x.transpose(1, 2))


def beside_what_it_is_given(x: Tensor) -> tuple[Tensor, Tensor]:
    held = LINEAR(x)
    return held, DROP(held)


BODIES = [functions, written_before_it_is_read, in_a_row, and_more_of_it]
BODIES += [of_a_view, beside_what_it_is_given]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_may_give_what_it_gives(body, tmp_path):
    def code(x: Tensor) -> object:
        return torch.cond(x[0, 0, 0, 0] < 1, body, body, (x,))

    found = outcome(Applied(code), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")
