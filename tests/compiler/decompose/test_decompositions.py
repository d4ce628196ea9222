"""Integers between integers, at steps that are rounded once."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from kvc.compiler import Method, compile_program
from kvc.compiler.decompose.decompositions import SPACED
from kvc.runtime import load
from kvc.schema.errors import KernelFailed

SPACE = SPACED[torch.ops.aten.linspace.default]


def rounded_once(first: int, last: int, steps: int) -> list[int]:
    """Compute exactly, and round each number to 64 bits once."""
    step = Fraction((last - first) / (steps - 1))
    rising = [float(first + step * i) for i in range(steps)]
    falling = [float(last - step * (steps - 1 - i)) for i in range(steps)]
    half = steps // 2
    return [int(number) for number in (*rising[:half], *falling[half:])]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_integers_are_rounded_once(as_tensors):
    draw = random.Random(0)
    for _ in range(200):
        first, last = draw.uniform(-120, 120), draw.uniform(-120, 120)
        steps = draw.randint(2, 60)
        ends = [torch.tensor(x) if as_tensors else x for x in (first, last)]
        found = SPACE(*ends, steps, dtype=torch.int16)
        assert found.tolist() == rounded_once(int(first), int(last), steps)


def test_a_number_just_below_an_integer_stays_below():
    assert rounded_once(47, -19, 19)[9] == 13  # 14 where the product is rounded, too
    assert SPACE(47, -19, 19, dtype=torch.int64)[9] == 13


X = torch.arange(12.0).reshape(3, 4).sin()


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-2])


CASES = {
    "cholesky": lambda x: torch.cholesky(positive(x), upper=True),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(positive(x)),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, positive(x)),
    "cholesky_solve, upper": lambda x: torch.cholesky_solve(
        x, torch.linalg.cholesky(positive(x), upper=True), upper=True
    ),
    "inverses": lambda x: (
        torch.inverse(positive(x)),
        torch.linalg.inv_ex(positive(x))[0],
        torch.linalg.matrix_power(positive(x), -2),
    ),
    "pinv": lambda x: torch.linalg.pinv(x),
    "pinv of few ranks": lambda x: torch.linalg.pinv(x[:, :1] * x[:1]),
    "pinv, symmetric": lambda x: torch.linalg.pinv(positive(x), hermitian=True),
    "pinv with bounds": lambda x: (
        torch.linalg.pinv(x, rtol=0.5),
        torch.linalg.pinv(x, atol=0.5),
        torch.linalg.pinv(x, atol=0.1, rtol=0.7),
    ),
    "pinv of nothing": lambda x: (
        torch.linalg.pinv(x[:0]),
        torch.linalg.pinv(x[None, :, :0]),
    ),
    "what is told of failures": lambda x: [
        (*torch.linalg.cholesky_ex(a), *torch.linalg.solve_ex(a, x), inverse.info)
        for a in (positive(x), torch.zeros(3, 3))
        for inverse in (torch.linalg.inv_ex(a),)
    ],
    "norms": lambda x: (torch.linalg.norm(x, 2), torch.linalg.norm(x, "nuc")),
    "condition": lambda x: torch.linalg.cond(x),
    "condition by sums": lambda x: torch.linalg.cond(positive(x), 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_it_equals_eager(name, tmp_path):
    found = outcome(Applied(CASES[name]), (X,), {}, tmp_path / "function.kvc")

    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("rows", [3, 4])
def test_an_orthogonal_weight_equals_eager(rows, tmp_path):
    layer = parametrizations.orthogonal(nn.Linear(4, rows))

    found = outcome(layer, (X,), {}, tmp_path / "layer.kvc")

    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda x: x.inverse(),
        lambda x: torch.linalg.inv_ex(x, check_errors=True),
    ],
)
def test_what_has_no_inverse_is_an_error_as_in_torch(function, tmp_path):
    model, method = Applied(function), Method("forward", (torch.eye(3),))
    compile_program(model, [method]).save(tmp_path / "function.kvc")

    with (
        load(tmp_path / "function.kvc") as program,
        pytest.raises(KernelFailed, match=r"singular|positive-definite"),
    ):
        program.forward(np.zeros((3, 3), np.float32))


FIRST = torch.tensor(0)


class OfNumbers(nn.Module):
    """Operators along an axis, of a tensor that has none."""

    def forward(self, x, row, index):
        return (
            torch.topk(x, 1, -1),
            torch.topk(x, 0, 0),
            x.flip(-1),
            x.t() * 2,
            x.transpose(0, -1) * 2,
            torch.t_copy(x),
            torch.gather(x, 0, index[None]),
            torch.gather(row, 0, index),
            torch.gather(x, 0, index.expand(0)),
            torch.gather(row, 0, torch.zeros(0, dtype=torch.uint8)),
            torch.scatter(x, 0, index[None], row[1:2]),
            torch.index_fill(x, 0, index, 3.0),
            torch.take(x, index),
            torch.take(row, index - 1),
            torch.take(row, index.reshape(1, 1) - 2),
        )


def test_they_are_taken_for_rows_of_one(tmp_path):
    given = torch.tensor(2.5), torch.arange(3.0), FIRST
    found = outcome(OfNumbers(), given, {}, tmp_path / "numbers.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class OneNumber(nn.Module):
    """Scatters one number, that adds or multiplies."""

    def forward(self, x, index):
        return [
            kind.scatter(0, index, 3, reduce=reduce)
            for kind in (x, x.long())
            for reduce in ("add", "multiply")
        ]


def test_one_number_is_added_or_multiplied_at_places(tmp_path):
    given = torch.arange(6.0).reshape(3, 2), torch.tensor([[2, 0], [2, 1]])
    found = outcome(OneNumber(), given, {}, tmp_path / "number.kvc")
    assert (found.kind, found.reason) == ("equal", "")
