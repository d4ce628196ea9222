"""Random rows to feed to a session, and all that a session holds."""

import numpy as np

from kvc.runtime import Session

RANDOM = np.random.default_rng(0)

Contents = tuple[dict[str, bytes], list[int], int | None]


def random_rows(count: int, width: int = 4, batch: int = 1) -> np.ndarray:
    """Return random rows float32 [batch, 3, count, width], others in each call."""
    return RANDOM.standard_normal((batch, 3, count, width), np.float32)


def contents(session: Session) -> Contents:
    held = {name: look.tobytes() for name, look in session.state.items()}
    return held, session.position.tolist(), session.capacity
