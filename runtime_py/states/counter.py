"""Counters: small integer states that add up what methods count.

They are copied before each call that writes them, and go back by subtracting.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from kvc.runtime.states.access import Mode, Writes
from kvc.runtime.states.kind import Call, Kind, Undo
from kvc.runtime.states.owner import WHOLE
from kvc.schema.model import State, StateKind


class Counter(Kind):
    """Counters of a session."""

    undoes = frozenset(Mode)

    @classmethod
    def takes(cls, state: State) -> bool:
        """Tell whether a state is of this kind."""
        return state.kind is StateKind.COUNTER

    def begin(self, writes: Writes, extent: int, call: Call) -> Undo:
        """Note what a call may write; see `Kind.begin`."""
        store = self.store
        if store.shared:
            store.note()
        return partial(store.write, WHOLE, store.read())

    def check_goes_back(self, counting: frozenset[str]) -> None:
        """Check that all methods that count tokens count these too.

        Raises:
            NotRewindable: some do not, or others do.
        """
        writers = self.group.writers
        if writers and writers != counting:
            lost = min(writers ^ counting)
            reason = f"method {lost} does not count it together with the position"
            raise self.not_rewindable(reason)

    def check_rewind(
        self, starts: Sequence[int], counts: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Check that rows go back alike, or count for themselves."""
        self.check_row_counts(counts)

    def rewind(
        self, starts: Sequence[int], ends: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Count down; see `Kind.rewind`."""
        content = self.store.read()  # [states, rows, ...], or without rows
        counts = np.subtract(starts, ends)
        alike = len(set(counts.tolist())) == 1
        shape = (-1,) + (1,) * (content.ndim - 2)
        content -= counts[0] if alike else counts.reshape(shape)  # type: ignore[misc]
        self.store.write(WHOLE, content)
