"""Random modules with branches and loops: traced, compiled and run, against eager.

The seed is in the test's id: `pytest "...[17]"` runs one again, and `random_branches.
source_of(17)` is its text. `KVC_RANDOM_BRANCHES` is how many the exhaustive test tries,
1000 unless told. What is compiled is checked by both verifiers of memory.
"""

import os
from pathlib import Path

import pytest
from random_branches import PLAIN, arguments, random_module
from state_runs import agree, opened

from kvc.compiler import Method

QUICK = 5
MANY = int(os.environ.get("KVC_RANDOM_BRANCHES", "1000"))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(i, marks=pytest.mark.exhaustive) if i >= QUICK else i
        for i in range(QUICK + MANY)
    ],
)
def test_a_random_module_does_what_eager_does(seed: int, tmp_path: Path) -> None:
    """Results and buffers after each of four calls, and again in another order."""
    model, calls = random_module(seed), [("step", *arguments(i)) for i in (0, 3, 1, 2)]
    with (
        opened(model, [Method("step", args=arguments(1))], tmp_path) as program,
        program.session() as session,
    ):
        agree(session, random_module(seed, PLAIN), calls)
        session.reset()
        agree(session, random_module(seed, PLAIN), calls[::-1])
