"""States as arrays of MLX, for states that only partitions of this backend use.

An array of MLX is immutable, so a state is a variable whose value is an array. A call
computes a new array and assigns it to the variable. A clone of a session has the same
arrays as the original, until the original or the clone assigns new arrays. So cloning
copies nothing.
"""

from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np

from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, Part
from kvc.runtime.states.owner import (
    ALL_SLOTS,
    WHOLE,
    Buffer,
    Group,
    InitialValue,
    Span,
    StateBuffer,
    Store,
)
from kvc.schema.model import ResetRule

Where = tuple[int | slice, ...]


class MlxState(StateBuffer):
    """The memory of a state.

    Attributes:
        value: the array with the state's present content.
    """

    __slots__ = ("value",)

    def __init__(self, owner: "MlxOwner", value: mx.array) -> None:
        super().__init__(owner)
        self.value = value


class MlxStore:
    """The states of one group, which all have the same shape and dtype; see `Store`.

    Args:
        owner: the owner of the states.
        group: the group that these states belong to.
        sizes: the sizes of the program's symbols.
        initial: returns the initial content of a state.
        held: the arrays of the states of the session that is cloned; None to begin with
            the initial content.
    """

    def __init__(
        self,
        owner: "MlxOwner",
        group: Group,
        sizes: Mapping[str, int],
        initial: InitialValue,
        held: Sequence[mx.array] | None = None,
    ) -> None:
        declared = group.first
        self.group, self.shape = group, declared.type.shape(sizes)
        self.slots = 0 if declared.axis is None else self.shape[declared.axis]
        self.shared = False
        self._initial, self._dtype = initial, declared.type.dtype.numpy
        self.states = [
            MlxState(
                owner, mx.array(self.first(state)) if held is None else held[state]
            )
            for state in range(len(group.states))
        ]
        self.buffers: Sequence[Buffer] = self.states

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        """Return a copy of a part of a span; see `Store.read`."""
        where = self._where(span)
        if span.state is not None:
            return _copied(self.states[span.state].value, where)[(*part, ...)].copy()
        every = np.stack([_copied(one.value, where) for one in self.states])
        return every[(*part, ...)].copy()

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        """Write a part of a span; see `Store.write`."""
        held = self.read(span)
        held[(*part, ...)] = content
        where = self._where(span)
        if span.state is not None:
            self._put(self.states[span.state], where, held)
            return
        for state, own in zip(self.states, held, strict=True):
            self._put(state, where, own)

    def copy_row(self, span: Span, other: Store, row: int) -> None:
        """Copy a span from a row of another store; see `Store.copy_row`."""
        self.write(span, other.read(span._replace(row=row)))

    def fill(self, span: Span) -> None:
        """Reset a span to its initial content."""
        if span.low >= span.high:
            return
        where = self._where(span)
        for number, state in enumerate(self.states):
            if span.state in (None, number):
                self._put(state, where, self.first(number)[where])

    def give_back(self, span: Span) -> None:
        """Do nothing: an array of MLX cannot be freed in part."""

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Do nothing: the arrays of a clone do not change."""

    def first(self, state: int) -> Array:
        """Return a copy of the initial content of a state."""
        number = self.group.declared[state].initial
        if number is not None:
            return np.array(self._initial(number))
        return np.zeros(self.shape, self._dtype)

    def _put(self, state: MlxState, where: Where, content: Array) -> None:
        if content.size:
            made = mx.array(state.value)  # another array with the same content
            made[where] = mx.array(np.ascontiguousarray(content))
            mx.eval(made)
            state.value = made

    def _where(self, span: Span) -> Where:
        where: list[int | slice] = [slice(None)] * len(self.shape)
        if span.row is not None:
            where[0] = slice(span.row, span.row + 1)
        if self.group.first.axis is not None:
            low, high = max(span.low, 0), min(span.high, self.slots)
            where[self.group.first.axis] = slice(low, max(low, high))
        return tuple(where)


def _copied(value: mx.array, where: Where) -> Array:
    found: Array = np.array(value)[where]
    return found


class MlxOwner:
    """The owner of the states; see `Owner`. Functions return when work is done."""

    def __init__(
        self,
        groups: Sequence[Group],
        sizes: Mapping[str, int],
        initial: InitialValue,
        twin: "MlxOwner | None" = None,
    ) -> None:
        self._again = groups, sizes, initial
        self.arenas: Mapping[ResetRule, Arena] = {}
        held = [None] * len(groups) if twin is None else twin.values()
        self.stores: Sequence[MlxStore] = [
            MlxStore(self, group, sizes, initial, own)
            for group, own in zip(groups, held, strict=True)
        ]

    def clone(self, held: Sequence[int]) -> "MlxOwner":
        """Return a new owner whose states have the same arrays."""
        twin = MlxOwner(*self._again, self)
        for store in (*self.stores, *twin.stores):
            store.shared = True
        return twin

    def values(self) -> Sequence[Sequence[mx.array]]:
        """Return the arrays of the states, one list for each store."""
        return [[state.value for state in store.states] for store in self.stores]

    def discard(self, rule: ResetRule) -> None:
        """Reset the states that have the given reset rule."""
        for store in self.stores:
            if store.group.first.reset is rule:
                store.fill(WHOLE)

    def synchronise(self) -> None:
        """Do nothing: every function returns when its work is done."""

    def close(self) -> None:
        """Release the arrays."""
        self.stores = ()
