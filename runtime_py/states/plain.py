"""States of which nothing is known except that calls write them somewhere.

What a call has overwritten is gone: a failed call leaves them half written, unless they
were copied first, and they cannot be rewound.
"""

from typing import Final

from kvc.runtime.states.kind import Kind
from kvc.schema.model import StateKind

_WHY_LOST: Final = {
    StateKind.PLAIN: "it is plain, and what a call wrote over it is gone",
    StateKind.LINEAR: "it is not written at the position by every method",
    StateKind.RING: (
        "it is a ring without a window (compiler/README.md has which reads and writes "
        "of a ring give it one), and what a call wrote over it is gone"
    ),
}


class Plain(Kind):
    """States that are written anywhere."""

    def why_lost(self, counting: frozenset[str]) -> str:
        return _WHY_LOST[self.group.first.kind]
