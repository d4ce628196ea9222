"""Functions that are called in other words, called in bodies of branches and loops."""

import math
from contextlib import contextmanager

import pytest
import torch
from daily import every
from module_outcomes import Applied, outcome
from torch import Tensor
from torch._higher_order_ops import scan, utils, while_loop
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from kvc.compiler import Method, compile_program

X = torch.arange(1.0, 25).reshape(4, 6) / 24


def dropped(x: Tensor) -> Tensor:
    held = x * 1
    functional.dropout(held, training=False).add_(1)
    torch.dropout(held, p=0.5, train=False)[0] = 7
    return held


def resized(x: Tensor) -> Tensor:
    wide = functional.interpolate(x[None], (9,), mode="linear")
    return x + wide[0, :, :6] + torch.hann_window(6)


def made_shorter(x: Tensor) -> Tensor:
    weights = torch.full((2, 4, 3), 0.5)
    return functional.conv1d(x, weights).sum() + torch.cumulative_trapezoid(x).sum() + x


def shorter(body, x):
    def other(x):
        return x[:, 1:] * 2

    return torch.cond(x.sum() > 0, lambda x: body(x)[:, 1:] * 1, other, (x,))


def set_to_numbers(x: Tensor) -> Tensor:
    held = x * 1
    held[0] = 7
    held[1:3, 2], held[x > 0.9] = 0.5, True
    counts = torch.zeros(6, dtype=torch.int64)
    counts[2:] = 2.7
    return held + counts


def margins(x: Tensor) -> Tensor:
    labels = torch.zeros(4, dtype=torch.int64)
    return x + functional.multi_margin_loss(
        torch.where(x > 0.5, math.nan, x), labels, p=2
    )


def polygammas(x: Tensor) -> Tensor:
    held = x + 1
    return held.polygamma_(1).clone()


def windows(x: Tensor) -> Tensor:
    held = x * 1
    held.view(-1).unfold(0, 2, 3).mul_(5)
    return held


def handed_on(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.5, False)


def turned(x: Tensor) -> Tensor:
    rolled = (x.reshape(1, 2, 2, 6) * 1).to(memory_format=torch.channels_last).roll(1)
    rolled.contiguous().add_(1)
    return rolled.reshape(4, 6) * 1


def branch(body, x):
    return torch.cond(x.sum() > 0, body, lambda x: x * 2, (x,))


def inner_branch(body, x):
    return torch.cond(x.sum() > 0, lambda x: branch(body, x) * 2, lambda x: x * 2, (x,))


def loop(body, x):
    def again(turn, x):
        return turn + 1, body(x) * 1

    return while_loop(lambda turn, _: turn < 2, again, (torch.tensor(0), x))[1]


def scanned(body, x):
    def step(carry, row):
        return body(carry) * 1, row * 2

    return scan(step, x, x)[0]


@every(3, "around", "body")
@pytest.mark.parametrize("around", [branch, shorter, inner_branch, loop, scanned])
@pytest.mark.parametrize(
    "body",
    [
        dropped,
        margins,
        polygammas,
        windows,
        handed_on,
        turned,
        resized,
        set_to_numbers,
        made_shorter,
    ],
)
def test_a_body_computes_what_it_does_outside(body, around, tmp_path):
    found = outcome(Applied(lambda x: around(body, x)), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_what_a_body_hands_on_may_be_written(tmp_path):
    def body(x):
        functional.dropout(x, training=False).add_(1)
        return x * 1

    found = outcome(Applied(lambda x: branch(body, x)), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_functions_that_were_called_before_are_not_read_with_a_body(monkeypatch):
    read, set_up = list[object](), utils.setup_compilation_env

    @contextmanager
    def noting():
        modes = [m for m in _get_current_function_mode_stack() if hasattr(m, "tracer")]
        read.extend(dict(mode.tracer.torch_fn_counts) for mode in modes)
        with set_up() as compiler:
            yield compiler

    monkeypatch.setattr(utils, "setup_compilation_env", noting)

    def branches(x: Tensor) -> Tensor:
        y = torch.cond(x.sin().sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))
        return torch.cond(y.cos().sum() > 0, lambda x: x * 4, lambda x: x * 5, (y,))

    compile_program(Applied(branches), [Method("forward", args=(torch.ones(3),))])
    assert len(read) >= 2
    assert not any(read)
