"""What a session of a kind does: compared where two run the same, each in its way."""

from pathlib import Path

import numpy as np
from session_kinds import Kind

from kvc.runtime import Program, Session
from kvc.schema.errors import NoPosition, NotRewindable

TOKENS = np.arange(7)[None]


def behaviour(program: Program, kind: Kind, folder: Path) -> dict[str, object]:
    """Return what a session does: results, position, going back, forks, its file."""
    with program.session() as session:
        results = _feed(session, kind, 0, 4)
        with session.fork() as twin:
            results += _feed(twin, kind, 4, 2)
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
        results += _feed(session, kind, 4, 1)
        session.trim()
        results += [np.array(found) for found in session.state.values()]
    return {**found, "results": results}


def _feed(session: Session, kind: Kind, first: int, count: int) -> list[np.ndarray]:
    """Run the method that takes many tokens over some of them."""
    tokens = TOKENS[:, first : first + count]
    arguments = kind.arguments(tokens, first, True)
    result = session.call(kind.methods[0].name, *arguments)
    return list(result.values()) if isinstance(result, dict) else [result]
