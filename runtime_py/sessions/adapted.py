"""`AdaptedRows`: the adapters of a session's rows."""

from collections.abc import Sequence

from kvc.runtime.sessions.methods import Callables
from kvc.runtime.sessions.sizes import count_rows
from kvc.runtime.sessions.usage import Usage, Use
from kvc.runtime.states.row_adapters import read_choices
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.errors import BadSetting


class AdaptedRows(Callables):
    """Base class of sessions, each row of which can have an adapter."""

    _states: StateMemory
    _usage: Usage

    def use_adapter(
        self,
        adapter: str | Sequence[str | None] | None,
        scale: float | Sequence[float] = 1.0,
    ) -> None:
        """Give rows that hold no tokens other adapters; resets and rewinds keep them.

        Raises:
            KvcError: as `Program.session`, of `adapter` and `scale`.
            BadSetting: a row that holds tokens would get another adapter.
            Poisoned, Busy, Closed, Forked: as `call`.
        """
        with Use(self._usage, "use_adapter"):
            rows = self._count_rows()
            chosen = read_choices(self._engine.adapters, adapter, scale, rows)
            memory, held = self._states, self._states.adapters
            if held is None or chosen == held.rows:
                return
            memory.check_usable()
            positions = memory.known_positions()
            for row, (old, new) in enumerate(zip(held.rows, chosen, strict=True)):
                empty = (
                    one is not None and not any(one[row : row + 1]) for one in positions
                )
                if old != new and memory.written and not all(empty):
                    expected = "that of its tokens; reset the session first"
                    found = f"another one for row {row}, which holds tokens"
                    raise BadSetting(name="adapter", expected=expected, found=found)
            held.choose(memory, chosen)

    @property
    def adapters(self) -> tuple[str | None, ...]:
        """Return the name of each row's adapter, None for a row without one."""
        with Use(self._usage, "adapters"):
            held = self._states.adapters
            if held is None:
                return (None,) * self._count_rows()
            return tuple(None if one is None else one.name for one in held.adapters)

    def _count_rows(self) -> int:
        return count_rows(self._engine.program, self._states.sizes)
