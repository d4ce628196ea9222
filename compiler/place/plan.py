"""The data types of memory planning: requests, and the plan that places them.

They refer to no graph.
"""

from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Request:
    """Scratch memory that is needed for a range of instructions.

    Attributes:
        key: the number that identifies the request in its plan.
        nbytes: size; an upper bound if it is symbolic.
        first: index of the first instruction that writes the memory, -1 for inputs.
        last: index of the last instruction that reads the memory, inclusive.
    """

    key: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The offset of a request in the arena, in bytes, a multiple of ALIGNMENT."""

    request: Request
    offset: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All placements of one arena.

    Attributes:
        placements: one placement for each request.
        nbytes: size of the arena in bytes.
        peak_nbytes: greatest number of bytes that are in use at one time; no plan can
            have a smaller arena.
    """

    placements: tuple[Placement, ...]
    nbytes: int
    peak_nbytes: int


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
