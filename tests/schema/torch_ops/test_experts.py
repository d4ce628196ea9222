"""`kvc::expert_linear` against each row's own product, and what it refuses."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

from kvc.schema.errors import IndexOutOfRange
from kvc.schema.torch_ops import expert_linear, multiply_by_experts

X, WEIGHT, BIAS = torch.randn(6, 8), torch.randn(4, 5, 8), torch.randn(4, 5)
CHOSEN = torch.tensor([3, 0, 3, 1, 3, 0])


def row_by_row(bias: torch.Tensor | None) -> torch.Tensor:
    rows = [
        linear(row, WEIGHT[expert], None if bias is None else bias[expert])
        for row, expert in zip(X, CHOSEN.tolist(), strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("bias", [None, BIAS])
def test_each_row_is_multiplied_by_the_matrix_it_chose(bias):
    wanted = row_by_row(bias)
    torch.testing.assert_close(expert_linear(X, WEIGHT, CHOSEN, bias), wanted)
    turned = expert_linear(X, WEIGHT.mT.contiguous(), CHOSEN, bias, True)
    torch.testing.assert_close(turned, wanted)


def test_experts_that_nobody_chose_are_not_read():
    poisoned = WEIGHT.clone()
    poisoned[2] = torch.nan
    assert expert_linear(X, poisoned, CHOSEN).isfinite().all()


def test_no_rows_give_none():
    assert expert_linear(X[:0], WEIGHT, CHOSEN[:0]).shape == (0, 5)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_expert_that_is_not_there_is_refused_before_anything_is_written(wrong):
    out = torch.full((2, 5), 7.0)
    chosen = torch.tensor([0, wrong])
    with pytest.raises(IndexOutOfRange):
        multiply_by_experts(out, X[:2], WEIGHT, chosen, None, False)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "arguments",
    [
        (X[0], WEIGHT, CHOSEN),
        (X, WEIGHT[0], CHOSEN),
        (X, WEIGHT.mT, CHOSEN),
        (X.double(), WEIGHT, CHOSEN),
        (X.int(), WEIGHT.int(), CHOSEN),
        (X, WEIGHT, CHOSEN.int()),
        (X, WEIGHT, CHOSEN[:5]),
        (X, WEIGHT, CHOSEN[:, None]),
        (X, WEIGHT, CHOSEN, BIAS[0]),
        (X, WEIGHT, CHOSEN, BIAS[:3]),
        (X, WEIGHT, CHOSEN, BIAS.double()),
        (X, WEIGHT, CHOSEN, None, True),
    ],
)
@pytest.mark.parametrize("fake", [False, True])
def test_what_does_not_fit_is_refused(arguments, fake):
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else torch.no_grad()
    with mode, pytest.raises(ValueError, match="expert_linear"):
        expert_linear(*arguments)
