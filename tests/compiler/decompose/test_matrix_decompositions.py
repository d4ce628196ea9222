"""Linear algebra that is taken apart, or checks what it makes, against eager."""

import numpy as np
import pytest
import torch
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import KernelFailed

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
