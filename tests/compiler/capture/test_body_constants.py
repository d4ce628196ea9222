"""Tensors that are made of numbers in the bodies of branches and loops."""

import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop

from kvc.compiler import Method, compile_program

X = torch.arange(12.0).sin().reshape(4, 3)


def scaled(x: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 3.0])
    weights[1:].add_(torch.tensor(1))
    return x * weights + torch.tensor(3.0)


def other(x: Tensor) -> Tensor:
    return x * torch.tensor(2.0)


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > torch.tensor(0), scaled, other, (x,))


def nested(x: Tensor) -> Tensor:
    return torch.cond(x.max() < 5, lambda x: branch(x) * 1, other, (x,))


def both(x: Tensor) -> list[Tensor]:
    return [branch(x), branch(-x)]


def loop(x: Tensor) -> list[Tensor]:
    def goes_on(turn: Tensor, x: Tensor) -> Tensor:
        return turn < torch.tensor(3)

    def again(turn: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return turn + torch.tensor(1), branch(x) * torch.tensor(0.5)

    return list(while_loop(goes_on, again, (torch.tensor(0), x)))


def scanned(x: Tensor) -> list[Tensor]:
    return list(scan(lambda sums, row: (scaled(sums) * 1, other(row)), x[0], x))


def rows(x: Tensor) -> Tensor:
    return mapped(scaled, x)


@pytest.mark.parametrize("code", [branch, nested, both, loop, scanned, rows])
def test_bodies_make_tensors_of_numbers(code, tmp_path):
    found = outcome(Applied(code), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_such_a_tensor_is_stored_once_for_all_methods(tmp_path):
    numbers = [i / 999 for i in range(999)]

    class Tabled(torch.nn.Module):
        def outside(self, x):
            return x * torch.tensor(numbers)

        def inside(self, x):
            def body(x):
                return x * torch.tensor(numbers)

            return torch.cond(x.sum() > 0, body, lambda x: x + 1, (x,))

    x = torch.ones(2, 999)
    methods = [Method("outside", (x,)), Method("inside", (x,))]
    report = compile_program(Tabled(), methods).save(tmp_path / "b.kvc")
    assert (report.names, report.blobs) == (1, 1)
