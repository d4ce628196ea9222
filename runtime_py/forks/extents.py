"""Which bytes of a session's memory a fork must have, and which may have changed.

In: the memory of a session. Out: runs of whole pages in one of its arenas. A state
whose slots behind the position are dead is held up to where it has been written, a ring
too until it has gone round; one that grows up to its length; any other whole.
"""

from collections.abc import Callable

import numpy as np

from kvc.runtime.arenas import PAGE_NBYTES
from kvc.runtime.forks.intervals import NONE, Intervals, merged, rounded_out
from kvc.runtime.layouts import Alike
from kvc.runtime.rings import held_slots
from kvc.runtime.states import StateMemory
from kvc.schema.model import ResetRule, StateKind

_Span = tuple[int, int] | None  # slots, from one to before another; None for all bytes


def held_pages(memory: StateMemory, rule: ResetRule) -> Intervals:
    """Return the pages with anything that a fork must have."""

    def span(alike: Alike) -> _Span:
        declared = alike.first
        if declared.axis is None or declared.initial is not None:
            return None
        if declared.kind is StateKind.APPEND:
            return 0, max(memory.tip.lengths[state] for state in alike.states)
        if declared.kind is StateKind.LINEAR and declared.at_position:
            return 0, min(memory.written, alike.slots)
        if declared.window is not None:
            return 0, held_slots(memory, alike.slots)
        return None

    return _pages(memory, rule, span)


def changed_pages(memory: StateMemory, rule: ResetRule) -> Intervals:
    """Return the pages with anything that may have been written since the last fork."""

    def span(alike: Alike) -> _Span:
        changed = [memory.changed[state] for state in alike.states]
        low, high = min(low for low, _ in changed), max(high for _, high in changed)
        if alike.first.axis is None and low < high:
            return None
        return low, min(high, alike.slots)

    return _pages(memory, rule, span)


def _pages(
    memory: StateMemory, rule: ResetRule, span: Callable[[Alike], _Span]
) -> Intervals:
    """Return the pages that hold spans of the states with one reset rule."""
    starts, ends = [], []
    for alike in memory.layout.alike[rule]:
        chosen = span(alike)
        if chosen is None:
            starts.append(alike.starts)
            ends.append(alike.starts + alike.nbytes)
        elif chosen[0] < chosen[1]:
            starts.append(alike.runs + chosen[0] * alike.slot_nbytes)
            ends.append(alike.runs + chosen[1] * alike.slot_nbytes)
    if not starts:
        return NONE
    runs = merged(np.concatenate(starts), np.concatenate(ends))
    return rounded_out(runs, PAGE_NBYTES)
