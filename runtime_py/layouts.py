"""Where the states of a session lie: the same for all sessions of one size.

In: the states a program declares, the sizes that a session fixes. Out: a place for
each, how large the arenas are, and which states are of one shape. States that a reset
clears lie in one arena and those it keeps in another; counters lie first, so that one
copy saves them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvc.runtime.arenas import Arena, align_up
from kvc.runtime.arrays import Array
from kvc.schema.dtypes import DType
from kvc.schema.model import ResetRule, State, StateKind

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one state lies.

    Attributes:
        offset: in its arena, in bytes.
        dtype: of its elements.
        shape: as the state is declared.
        strides: in bytes; they follow the layout.
    """

    offset: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return how many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, arena: Arena) -> Array:
        """Return the state's array in an arena."""
        dtype = self.dtype.numpy
        return np.ndarray(self.shape, dtype, arena.owner, self.offset, self.strides)

    def runs(self, state: State, low: int, row: int | None = None) -> Offsets:
        """Return where the runs of bytes from slot `low` on begin in the arena.

        Each is as long as its slots. `row` is an index on axis 0; None for all rows.
        """
        axis = axis_of(state)
        starts = np.array([self.offset + low * self.strides[axis]], np.int64)
        for dim in state.layout[: state.layout.index(axis)]:
            only = dim == 0 and row is not None
            indices = np.array([row]) if only else np.arange(self.shape[dim])
            starts = (starts[:, None] + indices * self.strides[dim]).reshape(-1)
        return starts


@dataclass(frozen=True, slots=True)
class Alike:
    """States of one arena that are of one shape and are handled together.

    Attributes:
        states: their ids.
        first: the first of them, as the program declares it.
        starts: where they begin in the arena, in bytes.
        nbytes: of each.
        runs: where the runs of bytes of their slots begin; empty without slots.
        slot_nbytes: what a slot takes in each run.
        slots: how many there are.
    """

    states: tuple[int, ...]
    first: State
    starts: Offsets
    nbytes: int
    runs: Offsets
    slot_nbytes: int
    slots: int


class StateLayout:
    """Where all states of a session lie; never changes.

    Attributes:
        placements: by state id.
        nbytes: of the arenas.
        counters: how many bytes counters take at the beginning of each.
        alike: the states of each arena, those of one shape together.
    """

    def __init__(self, states: Sequence[State], sizes: Mapping[str, int]) -> None:
        self._placed: dict[int, Placement] = {}
        self.nbytes: dict[ResetRule, int] = {}
        self.counters: dict[ResetRule, int] = {}
        for rule in ResetRule:
            self._place(rule, states, sizes)
        self.placements = tuple(self._placed[i] for i in range(len(states)))
        self.alike = {rule: self._find_alike(rule, states) for rule in ResetRule}

    def _place(
        self, rule: ResetRule, states: Sequence[State], sizes: Mapping[str, int]
    ) -> None:
        chosen = [(i, state) for i, state in enumerate(states) if state.reset is rule]
        chosen.sort(key=lambda pair: pair[1].kind is not StateKind.COUNTER)
        end = counters = 0
        for i, state in chosen:
            placed = self._placed[i] = _placement(end, state, sizes)
            end = align_up(end + placed.nbytes)
            if state.kind is StateKind.COUNTER:
                counters = end
        self.nbytes[rule], self.counters[rule] = end, counters

    def _find_alike(self, rule: ResetRule, states: Sequence[State]) -> list[Alike]:
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, state in enumerate(states):
            if state.reset is rule and self._placed[i].nbytes:
                place, begins = self._placed[i], state.initial is None
                shape = (place.dtype, place.shape, place.strides, state.axis)
                key = (*shape, state.kind, state.at_position, state.window, begins)
                groups.setdefault(key, []).append(i)
        return [self._alike(tuple(group), states) for group in groups.values()]

    def _alike(self, group: tuple[int, ...], states: Sequence[State]) -> Alike:
        first, places = states[group[0]], [self._placed[i] for i in group]
        runs: Sequence[Offsets] = [np.empty(0, np.int64)]
        slots = slot_nbytes = 0
        if first.axis is not None:
            runs = [place.runs(first, 0) for place in places]
            slots, slot_nbytes = (
                places[0].shape[first.axis],
                places[0].strides[first.axis],
            )
        starts = np.array([place.offset for place in places], np.int64)
        joined = np.concatenate(runs)
        return Alike(group, first, starts, places[0].nbytes, joined, slot_nbytes, slots)


def axis_of(state: State) -> int:
    """Return the axis of a state that has slots."""
    assert state.axis is not None, "only states with an axis have slots"
    return state.axis


def _placement(offset: int, state: State, sizes: Mapping[str, int]) -> Placement:
    shape = state.type.shape(sizes)
    strides, step = [0] * len(shape), state.type.dtype.itemsize
    for dim in reversed(state.layout):
        strides[dim] = step
        step *= shape[dim]
    return Placement(offset, state.type.dtype, shape, tuple(strides))
