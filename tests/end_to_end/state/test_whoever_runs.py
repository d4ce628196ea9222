"""What a state is does not depend on who runs its operators."""

from pathlib import Path

import numpy as np
import pytest
from session_kinds import KINDS as FORGETTING_NOTHING
from session_kinds import RINGS
from state_backends import RECIPES, compiling_with
from state_runs import opened

from kvc.runtime import Program, Session
from kvc.schema.errors import NoPosition, NotRewindable
from kvc.tools.reports.copies import describe_copies

KINDS = FORGETTING_NOTHING | RINGS
TOKENS = np.arange(7)[None]
NAMES = [name for name, kind in KINDS.items() if not kind.loses]


def feed(session: Session, name: str, first: int, count: int) -> object:
    """Run the method that takes many tokens over some of them."""
    tokens = TOKENS[:, first : first + count]
    arguments = KINDS[name].arguments(tokens, first, True)
    return session.call(KINDS[name].methods[0].name, *arguments)


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


def behaviour(program: Program, name: str, folder: Path) -> dict[str, object]:
    """Return what a session does: results, position, going back, forks, its file."""
    with program.session() as session:
        results = [feed(session, name, 0, 4)]
        with session.fork() as twin:
            results.append(feed(twin, name, 4, 2))
        session.save(folder / "saved")
        found: dict[str, object] = {
            "capacity": session.capacity,
            "nbytes": (folder / "saved").stat().st_size,
        }
        try:
            found["position"] = session.position.tolist()
            found["rewindable"] = session.rewindable.tolist()
            session.rewind(2)
        except (NoPosition, NotRewindable) as error:
            found["refused"] = str(error)
        results.append(feed(session, name, 4, 1))
        session.trim()
        results += [np.array(found) for found in session.state.values()]
    return {**found, "results": results}


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
            told.append((facts(program), behaviour(program, name, folder)))
    (facts_alone, alone), (facts_here, here) = told
    assert facts_here == facts_alone
    one, other = alone.pop("results"), here.pop("results")
    assert here == alone
    for a, b in zip(one, other, strict=True):
        for x, y in zip(_leaves(a), _leaves(b), strict=True):
            if backend in RECIPES:  # sums are taken in another order
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(x, y)


def _leaves(result: object) -> list[object]:
    return list(result.values()) if isinstance(result, dict) else [result]
