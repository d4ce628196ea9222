"""Random functions over buffers and arguments, traced, against eager.

The seed is in the test's id: `pytest "...[17]"` runs one again. `KVC_RANDOM_TRACES`
is how many the exhaustive test tries, 2000 unless told; each way but the plain one, one
of twenty.
"""

import os
from pathlib import Path

import pytest
import torch
from daily import RARELY, only
from random_functions import RandomFunction
from state_runs import agree, opened

from kvc.compiler import Method

QUICK = 12
MANY = int(os.environ.get("KVC_RANDOM_TRACES", "2000"))


def arguments(number: int) -> tuple[torch.Tensor, ...]:
    """Return x [4, 6] and y [3, 1], which a call may change, and two places."""
    x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6) * 0.5 - number
    y = torch.tensor([[1.0], [-2.0], [number]], dtype=torch.float64)
    return x, y, torch.tensor([[1, 0], [0, 1], [1, 0]][number])


def check(seed: int, folder: Path, *names: str) -> None:
    """Assert that calls give what eager gives: results, buffers, arguments."""
    methods = [Method(name, args=arguments(0)) for name in names]
    calls = [(name, *arguments(number)) for number in range(3) for name in names]
    with (
        opened(RandomFunction(seed), methods, folder) as program,
        program.session() as session,
    ):
        agree(session, RandomFunction(seed), calls)
        session.reset()
        agree(session, RandomFunction(seed), calls[::-1])


@only(seed=range(6))
@pytest.mark.parametrize("seed", range(QUICK))
def test_a_random_function_does_what_eager_does(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, "step")


@RARELY
@pytest.mark.parametrize("seed", range(QUICK, QUICK + MANY))
def test_two_functions_over_the_same_buffers(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, "step", "other")
