"""`StateViews`: read-only access to the contents of a session's states."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvc.runtime.arrays import Array
from kvc.runtime.states.memory import StateMemory
from kvc.schema.errors import Closed, UnknownName
from kvc.schema.model import Program

if TYPE_CHECKING:
    from kvc.runtime.sessions.session import Session


class StateViews(Mapping[str, Array]):
    """`session.state`: a read-only look at each state, as it is now and will be.

    Where a backend keeps a state in memory of its own it is a copy of what is there
    now. A state that grows is seen as long as it is when it is asked for.
    """

    def __init__(self, program: Program, states: StateMemory, owner: "Session") -> None:
        self._ids = {state.name: i for i, state in enumerate(program.states)}
        self._states = states
        self._owner = owner  # a session that is collected gives its memory back

    def __getitem__(self, name: str) -> Array:
        """Return a read-only array over a state's memory.

        Raises:
            UnknownName: the program has no such state.
            Closed, Forked: the session is closed, or belongs to another process.
        """
        self._owner._usage.settle()
        if name not in self._ids:
            raise UnknownName(kind="state", name=name, known=tuple(self._ids))
        if self._states.closed:
            raise Closed(kind="session")
        view = self._states.current(self._ids[name]).view()
        view.flags.writeable = False
        return view

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"<StateViews: {', '.join(self._ids)}>"
