"""States of which nothing is known but that calls write them somewhere.

What a call wrote over is gone: a call that fails leaves them half written, unless they
were copied first, and they do not go back.
"""

from typing import Final

from kvc.runtime.states.kind import Kind
from kvc.schema.model import State, StateKind

_SOMEWHERE: Final = "it is not written at the position by every method"
_WHY_LOST: Final = {
    StateKind.LINEAR: _SOMEWHERE,
    StateKind.RING: (
        "it is a ring without a window (compiler/README.md has which reads and writes "
        "of a ring give it one), and what a call wrote over it is gone"
    ),
}


class Plain(Kind):
    """States that are written anywhere."""

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind: any is that is of no other."""
        return True

    def why_lost(self) -> str:
        """Say why calls that wrote these states cannot be forgotten."""
        return _WHY_LOST.get(self.group.first.kind, super().why_lost())
