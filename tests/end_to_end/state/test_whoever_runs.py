"""What a state is does not depend on who runs its operators."""

from pathlib import Path

import numpy as np
import pytest
from daily import every
from session_kinds import KINDS as FORGETTING_NOTHING
from session_kinds import RINGS, behaviour
from state_backends import RECIPES, compiling_with
from state_runs import opened

from kvc.runtime import Program
from kvc.tools.reports.memory import describe_copies

KINDS = FORGETTING_NOTHING | RINGS
NAMES = [name for name, kind in KINDS.items() if not kind.loses]


def facts(program: Program) -> dict[str, object]:
    """Return what a program says of its states, and what writing them costs."""
    copies: dict[str, int] = {}
    for update in describe_copies(program._engine.program):
        copies[update.state] = copies.get(update.state, 0) + update.bytes_per_call
    return {
        "states": program.states,
        "cursors": program._engine.program.cursors,
        "advances": [method.advances for method in program.methods.values()],
        "copies": copies,
    }


@every(2, "name", "backend", always=["partitions", "xnnpack_fp32"])
@pytest.mark.parametrize("name", NAMES)
def test_states_are_what_they_are(name: str, backend: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    told = []
    for number, one in enumerate(("", backend)):
        folder = tmp_path / str(number)
        folder.mkdir()
        options = {"states": kind.states, "recipe": kind.recipe}
        with (
            compiling_with(one),
            opened(kind.model(), kind.methods, folder, **options) as program,
        ):
            told.append((facts(program), behaviour(program, kind, folder)))
    (facts_alone, alone), (facts_here, here) = told
    assert facts_here == facts_alone
    one, other = alone.pop("results"), here.pop("results")
    assert here == alone
    for a, b in zip(one, other, strict=True):
        if backend in RECIPES:  # sums are taken in another order
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)
