"""The adapter of each row of a session, and the states by which methods know them.

In: adapters that the program has loaded. Out: the content of two states that no method
writes: for each row the slot of its adapter, and a scale. A reset keeps them.
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from kvc.runtime.adapters.loaded import NO_SLOT, Adapter, Adapters
from kvc.runtime.states.kind import Kind
from kvc.runtime.states.owner import Span
from kvc.schema.adapters import ROWS, SCALES
from kvc.schema.errors import BadSetting, NotLoaded
from kvc.schema.model import Program, State
from kvc.schema.uses import SLOT

Chosen = tuple[Adapter | None, float]  # of a row: its adapter, and the scale


class Memory(Protocol):
    """The memory of a session's states."""

    states: Sequence[State]

    def find(self, state: int) -> tuple[Kind, int]:
        """Return the kind object of a state, and the state's index in its group."""
        ...


PLAIN: Final[Chosen] = (None, 1.0)


class RowAdapters:
    """The adapters of the rows of one session; compared and hashed by identity.

    Attributes:
        loaded: the adapters of the program.
        rows: the adapter and the scale of each row.
    """

    def __init__(self, loaded: Adapters, rows: Sequence[Chosen]) -> None:
        self.loaded, self.rows = loaded, tuple(rows)
        loaded.note(self)

    @property
    def adapters(self) -> tuple[Adapter | None, ...]:
        """Return the adapter of each row."""
        return tuple(adapter for adapter, _ in self.rows)

    @property
    def any(self) -> bool:
        """Tell whether any row has an adapter."""
        return any(adapter is not None for adapter, _ in self.rows)

    @property
    def recorded(self) -> list[list[object]]:
        """Return name, digest and scale of each row's adapter; [] if no row has any.

        A row without an adapter has an empty list.
        """
        if not self.any:
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
                found = self.loaded.of_digest(str(digest))
                if found is None:
                    raise NotLoaded(name=str(name), digest=str(digest))
                factor = float(scale)  # type: ignore[arg-type]  # a number
                rows[row] = found, _fitting(found, factor)
        self.choose(memory, rows)

    def choose(self, memory: Memory, rows: Sequence[Chosen]) -> None:
        """Give each row an adapter, and write the states that say so."""
        self.rows = tuple(rows)
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
        found = self.loaded.of_digest(adapter.digest)
        if found is None:
            raise NotLoaded(name=adapter.name, digest=adapter.digest)
        return found, scale

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
    names = [adapter] * rows if isinstance(adapter, str | None) else adapter
    scales = [scale] * rows if isinstance(scale, int | float) else scale
    if not isinstance(names, Sequence) or len(names) != rows:
        expected = f"a name, None, or one of these for each of {rows} rows"
        raise BadSetting(name="adapter", expected=expected, found=repr(adapter))
    if not isinstance(scales, Sequence) or len(scales) != rows:
        expected = f"a number, or one for each of {rows} rows"
        raise BadSetting(name="scale", expected=expected, found=repr(scale))
    return tuple(
        _chosen(loaded, name, factor)
        for name, factor in zip(names, scales, strict=True)
    )


def _chosen(loaded: Adapters, name: object, scale: object) -> Chosen:
    if name is None:
        return PLAIN
    loaded.check_slots()
    found = loaded[name]  # type: ignore[index]  # any other object is no name
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    factor = float(scale) if number else math.nan  # type: ignore[arg-type]  # a number
    if not math.isfinite(factor):
        raise BadSetting(name="scale", expected="a finite number", found=repr(scale))
    return found, _fitting(found, factor)


def _fitting(adapter: Adapter, scale: float) -> float:
    """Return the scale, which must be 1 for an adapter with gains."""
    if adapter.has_gains and scale != 1:
        expected = f"1: adapter {adapter.name!r} multiplies results too (DoRA)"
        raise BadSetting(name="scale", expected=expected, found=repr(scale))
    return scale
