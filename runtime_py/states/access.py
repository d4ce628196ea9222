"""How a method writes states: all that a session knows of its instructions.

In: what was found in a method, or, later, what its file declares. Out: each write of a
state in few words; those of states that are alike together, as a call begins and undoes
them together.
"""

from dataclasses import dataclass
from enum import Enum

from kvc.schema.types import Dim


class Mode(Enum):
    """Where a write of a state lands."""

    AT_CURSOR = "at the cursor"  # from the position on, in a state that is written so
    APPEND = "append"  # after its end
    REPLACE = "replace"  # all of it, with another length
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Access:
    """One write of a state.

    Attributes:
        state: its id.
        mode: where it lands.
        instruction: index of the one that writes.
        extent: how many slots it takes from the cursor on; None where nobody knows.
    """

    state: int
    mode: Mode
    instruction: int
    extent: Dim | None


@dataclass(frozen=True, slots=True)
class Writes:
    """What a method writes of the states of one group.

    Attributes:
        group: its number.
        risks: writes that the states cannot take back by themselves.
        extents: of all writes; None where one has none.
    """

    group: int
    risks: tuple[Access, ...]
    extents: tuple[Dim, ...] | None
