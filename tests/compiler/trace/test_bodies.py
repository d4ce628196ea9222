"""Tensors that are made of numbers in the bodies of branches and loops."""

import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop

from kvc.compiler import Method, compile_program

TWO = torch.tensor(2.0).numpy()
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


def of_nothing(x: Tensor) -> Tensor:
    def one() -> Tensor:
        return torch.tensor(3.0)

    return x * torch.cond(x.sum() > 0, one, lambda: torch.from_numpy(TWO) * 1, ())


@pytest.mark.parametrize(
    "code", [of_nothing, branch, nested, both, loop, scanned, rows]
)
def test_bodies_make_tensors_of_numbers(code, tmp_path):
    found = outcome(Applied(code), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_its_name_may_be_one_of_the_model(tmp_path):
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("constant_of_body_0", torch.ones(3))
            self.constant_of_body_1 = torch.nn.Parameter(torch.ones(3))
            self.constant_of_body_2 = torch.full((3,), 4.0)

        def forward(self, x: Tensor) -> Tensor:
            def one(x: Tensor) -> Tensor:
                own = self.constant_of_body_0 + self.constant_of_body_1
                return x * torch.tensor([1.0, 2, 3]) + own

            def two(x: Tensor) -> Tensor:
                return x + self.constant_of_body_2 * torch.tensor(5.0)

            return torch.cond(x.sum() > 0, one, two, (x,))

    for x in (X, -X):
        found = outcome(Named(), (x,), {}, tmp_path / "c.kvc")
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
