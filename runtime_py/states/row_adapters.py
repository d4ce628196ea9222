"""The adapter of each row of a session, and the states by which methods know them.

In: adapters that the program has loaded. Out: the content of two states that no method
writes: for each row the slot of its adapter, and a scale. A reset keeps them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kvc.runtime.adapters.loaded import (
    NO_SLOT,
    PLAIN,
    Adapter,
    Adapters,
    Chosen,
    fitting,
)
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.owner import Span
from kvc.runtime.states.row_range import RowRange
from kvc.schema.adapters import ROWS, SCALES
from kvc.schema.errors import BadSetting, NotLoaded
from kvc.schema.model import Program, State
from kvc.schema.uses import SLOT


class Memory(Protocol):
    """The memory of a session's states."""

    states: Sequence[State]

    def find(self, state: int) -> tuple[Kind, int]:
        """Return the kind object of a state, and the state's index in its group."""
        ...


class RowAdapters:
    """The adapters of the rows of one session; compared and hashed by identity.

    Attributes:
        loaded: the adapters of the program.
        rows: the adapter and the scale of each row.
    """

    def __init__(self, loaded: Adapters, rows: Sequence[Chosen]) -> None:
        self.loaded = loaded
        self.rows: tuple[Chosen, ...] = ()
        loaded.claim(self, rows)

    @property
    def adapters(self) -> tuple[Adapter | None, ...]:
        """Return the adapter of each row."""
        return tuple(adapter for adapter, _ in self.rows)

    def any(self, among: RowRange | None = None) -> bool:
        """Tell whether any row has an adapter, of all rows or `among` some."""
        rows = self.rows if among is None else among.of(self.rows)
        return any(adapter is not None for adapter, _ in rows)

    @property
    def recorded(self) -> list[list[object]]:
        """Return name, digest and scale of each row's adapter; [] if no row has any.

        A row without an adapter has an empty list.
        """
        if not self.any():
            return []
        return [
            [] if adapter is None else [adapter.name, adapter.digest, scale]
            for adapter, scale in self.rows
        ]

    def restore(self, memory: Memory, recorded: Sequence[Sequence[object]]) -> None:
        """Give rows the adapters that `recorded` describes.

        Raises:
            NotLoaded: the program has not loaded one of them.
            BadSetting: a scale is not 1, of an adapter with gains.
        """
        rows = [PLAIN] * len(self.rows)
        for row, one in enumerate(recorded):
            if one:
                name, digest, scale = one
                found = self._with_digest(str(name), str(digest))
                factor = float(scale)  # type: ignore[arg-type]  # a number
                rows[row] = found, fitting(found, factor)
        self.choose(memory, rows)

    def choose(self, memory: Memory, rows: Sequence[Chosen]) -> None:
        """Give each row an adapter, and write the states that say so."""
        self.loaded.claim(self, rows)
        self.write(memory)

    def choose_row(self, memory: Memory, row: int, chosen: Chosen) -> None:
        """Give one row an adapter."""
        self.choose(memory, (*self.rows[:row], chosen, *self.rows[row + 1 :]))

    def same(self, chosen: Chosen) -> Chosen:
        """Return the adapter of this program that has the file of another one's.

        Raises:
            NotLoaded: this program has not loaded it.
        """
        adapter, scale = chosen
        if adapter is None:
            return chosen
        return self._with_digest(adapter.name, adapter.digest), scale

    def _with_digest(self, name: str, digest: str) -> Adapter:
        found = self.loaded.of_digest(digest)
        if found is None:
            raise NotLoaded(name=name, digest=digest)
        return found

    def write(self, memory: Memory) -> None:
        """Write the states that say which adapter each row has."""
        slots = [NO_SLOT if one is None else one.slot for one, _ in self.rows]
        scales = [scale for _, scale in self.rows]
        for number, state in enumerate(memory.states):
            if state.name in (ROWS, SCALES):
                kind, index = memory.find(number)
                given = slots if state.name == ROWS else scales
                content = np.array([given], state.type.dtype.numpy)
                kind.store.write(Span(state=index), content)


def has_rows(program: Program) -> bool:
    """Tell whether a program has the states that say which adapter each row has.

    Without slots, states of these names are like any others.
    """
    named = {ROWS, SCALES} <= {state.name for state in program.states}
    return named and any(one.format == SLOT for one in program.names)


def read_choices(
    loaded: Adapters, adapter: object, scale: object, rows: int
) -> tuple[Chosen, ...]:
    """Return the adapter and scale of each row, from the settings of a session.

    Args:
        loaded: the adapters of the program.
        adapter: the name of an adapter, or None; or a sequence with one for each row.
        scale: what multiplies what adapters add; or a sequence with one for each row.
        rows: the number of rows.

    Raises:
        NoSlots: the bundle has no slots, and an adapter is asked for.
        UnknownName: no adapter of that name is loaded.
        BadSetting: there is not one for each row, a scale is no finite number, or it is
            not 1 for an adapter with gains.
    """
    names = adapter if _is_list(adapter) else [adapter] * rows
    scales = scale if _is_list(scale) else [scale] * rows
    for name, given in (("adapter", names), ("scale", scales)):
        if len(given) != rows:  # type: ignore[arg-type]  # lists
            expected = f"one for each of {rows} rows"
            raise BadSetting(name=name, expected=expected, found=repr(given))
    pairs = zip(names, scales, strict=True)  # type: ignore[call-overload]  # lists
    return tuple(loaded.choose(name, factor) for name, factor in pairs)


def _is_list(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str)
