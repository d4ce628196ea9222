"""The layout of a group of states in an arena: the states lie at equal distances.

In: a group of states, the sizes that a session fixes. Out: offsets, strides, and the
runs of bytes or of whole pages that hold given slots. The layout is the same for all
sessions of equal sizes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena, align_up
from kvc.runtime.memory.arrays import Array
from kvc.runtime.memory.intervals import NONE, Intervals, merged, rounded_out
from kvc.runtime.states.owner import WHOLE, Group, Span
from kvc.schema.model import ResetRule

Offsets = npt.NDArray[np.int64]


class GroupLayout:
    """Where one group of states lies in its arena.

    Attributes:
        group: the states.
        shape: the shape of each state.
        strides: the strides of each state in bytes, in the declared layout.
        offset: the offset of the first state in its arena, in bytes.
        nbytes: the size of each state.
        step: the distance from one state to the next in bytes.
        axis: the axis of the slots, None for states without slots.
        slots: the number of slots of each state; 0 for states without slots.
        slot_nbytes: the size of one slot within a contiguous run, in bytes.
    """

    def __init__(self, group: Group, sizes: Mapping[str, int], offset: int) -> None:
        first = group.first
        self.group, self.offset, self.axis = group, offset, first.axis
        self.shape = shape = first.type.shape(sizes)
        strides, step = [0] * len(shape), first.type.dtype.itemsize
        for dim in reversed(first.layout):
            strides[dim] = step
            step *= shape[dim]
        self.strides = tuple(strides)
        self.nbytes = math.prod(shape) * first.type.dtype.itemsize
        self.step = align_up(self.nbytes)
        self.slots = 0 if self.axis is None else shape[self.axis]
        self.slot_nbytes = 0 if self.axis is None else self.strides[self.axis]

    def all(self, arena: Arena) -> Array:
        """Return all states of the group as one array, [states, *shape]."""
        shape, dtype = (
            (len(self.group.states), *self.shape),
            self.group.first.type.dtype,
        )
        strides = (self.step, *self.strides)
        return np.ndarray(shape, dtype.numpy, arena.owner, self.offset, strides)

    def mixes_rows(self) -> bool:
        """Tell whether slots of several rows lie together in one contiguous run."""
        order = self.group.first.layout
        return self.axis is not None and order.index(0) >= order.index(self.axis)

    @property
    def starts(self) -> Offsets:
        """Return the offset of each state in the arena."""
        return self.offset + np.arange(len(self.group.states)) * self.step

    @cached_property
    def all_runs(self) -> Offsets:
        """Return the offsets of the runs that hold all slots of all states.

        A run is a contiguous range of bytes.
        """
        return self.runs(WHOLE)

    def runs(self, span: Span) -> Offsets:
        """Return the offsets in the arena at which the slots of a span begin.

        The slots of a span are several contiguous runs of bytes, and each run has an
        offset. Each run is as long as the slots of the span.
        """
        assert self.axis is not None, "only states with an axis have slots"
        order = self.group.first.layout
        states = _chosen(span.state, len(self.group.states))
        starts = self.offset + span.low * self.slot_nbytes + states * self.step
        for dim in order[: order.index(self.axis)]:
            indices = _chosen(span.row if dim == 0 else None, self.shape[dim])
            starts = (starts[:, None] + indices * self.strides[dim]).reshape(-1)
        return starts


def lay_out(
    groups: Sequence[Group], sizes: Mapping[str, int]
) -> tuple[tuple[GroupLayout, ...], Mapping[ResetRule, int]]:
    """Return the layout of each group, and the size of each arena.

    States that a reset clears lie in one arena, states that a reset keeps in a second
    arena.
    """
    ends = dict.fromkeys(ResetRule, 0)
    layouts = []
    for group in groups:
        layout = GroupLayout(group, sizes, ends[group.first.reset])
        ends[group.first.reset] += layout.step * len(group.states)
        layouts.append(layout)
    return tuple(layouts), ends


def pages_of(spans: Iterable[tuple[GroupLayout, tuple[int, int]]]) -> Intervals:
    """Return the pages that hold the given slots (first, end) of states.

    For a range of all slots, or a state without slots, the pages cover all bytes of the
    state.
    """
    starts, ends = [], []
    for layout, (low, high) in spans:
        if low >= min(high, layout.slots or 1):
            continue
        if layout.axis is None or (low == 0 and high >= layout.slots):
            starts.append(layout.starts)
            ends.append(layout.starts + layout.nbytes)
        else:
            runs, high = layout.all_runs, min(high, layout.slots)
            starts.append(runs + low * layout.slot_nbytes)
            ends.append(runs + high * layout.slot_nbytes)
    if not starts:
        return NONE
    found = merged(np.concatenate(starts), np.concatenate(ends))
    return rounded_out(found, PAGE_NBYTES)


def _chosen(index: int | None, count: int) -> Offsets:
    return np.arange(count) if index is None else np.array([index])
