"""The memory of a session's states: reserved arenas, initial values, reset.

In: the states a program declares, the sizes that a session fixed, initial values.
Out: one array per state at an address that stays. States that a reset clears lie in
one arena and those it keeps in another, so that a reset gives all pages back at once.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kvc.runtime.arenas import Arena, align_up
from kvc.runtime.arrays import Array, copy_into
from kvc.schema.model import ResetRule, State

InitialValue = Callable[[int], Array]


class StateMemory:
    """The states of one session; compared and hashed by identity."""

    def __init__(
        self,
        states: Sequence[State],
        sizes: Mapping[str, int],
        initial: InitialValue,
    ) -> None:
        self._states = states
        self._initial = initial
        self.sizes = dict(sizes)
        self.closed = False
        self.arrays: list[Array] = [np.empty(0)] * len(states)
        self._arenas = {rule: self._place(rule) for rule in ResetRule}
        for rule in ResetRule:
            self._fill(rule)

    def reset(self) -> None:
        """Give the pages of what a reset clears back, and copy initial values in."""
        self._arenas[ResetRule.INITIAL].discard()
        self._fill(ResetRule.INITIAL)

    def close(self) -> None:
        """Let go of the memory; arrays that are still alive keep it."""
        self.closed = True
        self.arrays = []
        self._arenas = {}

    def _place(self, rule: ResetRule) -> Arena:
        chosen = [
            (i, state) for i, state in enumerate(self._states) if state.reset is rule
        ]
        offsets: list[int] = []
        end = 0
        for _, state in chosen:
            offsets.append(end)
            end = align_up(end + state.type.nbytes(self.sizes))
        arena = Arena(end)
        for (i, state), offset in zip(chosen, offsets, strict=True):
            self.arrays[i] = self._array(arena, offset, state)
        return arena

    def _array(self, arena: Arena, offset: int, state: State) -> Array:
        """Return the state's array; its strides follow the layout."""
        shape = state.type.shape(self.sizes)
        in_memory = tuple(shape[dim] for dim in state.layout)
        laid_out = arena.array(offset, state.type.dtype, in_memory)
        return laid_out.transpose(np.argsort(state.layout).tolist())

    def _fill(self, rule: ResetRule) -> None:
        for state, array in zip(self._states, self.arrays, strict=True):
            if state.reset is rule and state.initial is not None:
                copy_into(array, self._initial(state.initial))
