"""`StateViews`: read-only access to the contents of a session's states."""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.data.buffers import Named
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.usage import Usage
from kvc.schema.errors import Closed
from kvc.schema.stacks import parts_of


class StateViews(Named[Array]):
    """`session.state`: a read-only look at each state, as it is now and will be.

    Where a backend keeps a state in memory of its own it is a copy of what is there
    now. A state that grows is seen as long as it is when it is asked for. Of a buffer
    whose parts are states, as `k` of `k[0]` and `k[1]`, the view is a copy. Asking
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

    def __getitem__(self, name: str) -> Array:
        found = None if name in self else parts_of(name, list(self))
        return super().__getitem__(name) if found is None else self._joined(*found)

    def _joined(self, axis: int, names: Sequence[str]) -> Array:
        """Return a copy of the buffer whose parts these states are."""
        parts = [self[name] for name in names]
        if len({part.shape for part in parts}) > 1 or axis > parts[0].ndim:
            return super().__getitem__(names[0].rpartition("[")[0])  # not of kvc's
        whole = np.stack(parts, axis)
        whole.flags.writeable = False
        return whole

    def __repr__(self) -> str:
        return f"<StateViews: {', '.join(self._ids)}>"
