"""Copies of states that are kept at chosen positions, so that a session can go back.

In: the memory of a session of one row, and its position. Out: copies of the states that
cannot be rewound to any position; others need none. A rewind finds them by position.
"""

from collections.abc import Iterable

from kvc.runtime.states.kind import Kind
from kvc.runtime.states.session_states import StateMemory


def needing_copies(memory: StateMemory) -> list[Kind]:
    """Return the states that a rewind to any position would need copies of.

    The list is empty if the position is unknown, or if there are several rows.
    """
    position = memory.known_position()
    if position is None or len(position) != 1:
        return []
    return [k for k in memory.kinds if k.group.writers and k.needs_copies]


def keep_copies(memory: StateMemory, most: int) -> None:
    """Copy states at the present position; drop the oldest of more than `most` copies.

    Nothing is copied if no state needs copies.
    """
    for kind in needing_copies(memory):
        kind.keep(memory.position(), most)


def kept_positions(memory: StateMemory) -> list[int]:
    """Return the positions at which copies are kept, the greatest first."""
    found = {at for kind in memory.kinds for at in kind.kept_positions}
    return sorted(found, reverse=True)


def kept_nbytes(kinds: Iterable[Kind]) -> int:
    """Return how many bytes the kept copies take."""
    return sum(kind.kept_nbytes for kind in kinds)
