"""`StateViews`: read-only access to the contents of a session's states."""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.data.buffers import Named
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.usage import Usage
from kvc.schema.errors import Closed
from kvc.schema.stacks import parts_of


class StateViews(Named[Array]):
    """`session.state`: read-only arrays of the states, which later calls change.

    An array is a view of the state's memory, with the length that the state has at the
    lookup. Two lookups return copies instead: of a state in a backend's memory; and of
    a model's buffer that is stored as several states, such as `k` for the states `k[0]`
    and `k[1]`. A lookup raises `Closed` if the session is closed, `Forked` if it was
    opened by another process.
    """

    def __init__(self, usage: Usage, owner: object) -> None:
        states = enumerate(usage.engine.program.states)
        super().__init__("state", ((state.name, i) for i, state in states))
        self._usage = usage
        self._owner = owner  # keeps the session, and so its memory, alive

    def _of(self, number: int) -> Array:
        self._usage.settle()
        if self._usage.states.closed:
            raise Closed(kind="session")
        view = self._usage.states.current(number).view()
        view.flags.writeable = False
        return view

    def __getitem__(self, name: str) -> Array:
        found = None if name in self else parts_of(name, list(self))
        return super().__getitem__(name) if found is None else self._stacked(*found)

    def _stacked(self, axis: int, names: Sequence[str]) -> Array:
        """Return a copy of a model's buffer, stacked from the states `names`."""
        parts = [self[name] for name in names]
        if len({part.shape for part in parts}) > 1 or axis > parts[0].ndim:
            return super().__getitem__(names[0].rpartition("[")[0])  # raises
        whole = np.stack(parts, axis)
        whole.flags.writeable = False
        return whole

    def __repr__(self) -> str:
        return f"<StateViews: {', '.join(self._ids)}>"
