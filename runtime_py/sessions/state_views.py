"""`StateViews`: read-only access to the contents of a session's states."""

from kvc.runtime.arrays import Array
from kvc.runtime.named import Named
from kvc.runtime.sessions.usage import Usage
from kvc.schema.errors import Closed


class StateViews(Named[Array]):
    """`session.state`: a read-only look at each state, as it is now and will be.

    Where a backend keeps a state in memory of its own it is a copy of what is there
    now. A state that grows is seen as long as it is when it is asked for. Asking
    raises `Closed` or `Forked` where the session is closed, or of another process.
    """

    def __init__(self, usage: Usage, owner: object) -> None:
        states = enumerate(usage.engine.program.states)
        super().__init__("state", ((state.name, i) for i, state in states))
        self._usage = usage
        self._owner = owner  # a session that is collected gives its memory back

    def _of(self, number: int) -> Array:
        self._usage.settle()
        if self._usage.states.closed:
            raise Closed(kind="session")
        view = self._usage.states.current(number).view()
        view.flags.writeable = False
        return view

    def __repr__(self) -> str:
        return f"<StateViews: {', '.join(self._ids)}>"
