"""A backend that owns states as a device does: no other code can see their memory.

`Opaque` takes every node, as `Greedy` does. Work for the owner of the states is queued,
and runs when the owner is synchronized. Other code knows the memory of a state only by
a number.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import ClassVar, NoReturn

import numpy as np
from greedy_backends import ByReference, Greedy

from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.delegate import Handle
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, Part, copy_into, own_copy
from kvc.runtime.states.owner import (
    ALL_SLOTS,
    WHOLE,
    Buffer,
    Group,
    Owner,
    Span,
    StateBuffer,
)
from kvc.schema.model import ResetRule

Work = Callable[[], None]
_numbers = count()


class Opaque(Greedy):
    name: ClassVar[str] = "opaque"


class Ticket(StateBuffer):
    """Stands for the memory of a state outside its owner: nothing but a number."""

    __slots__ = ("number",)

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self.number = next(_numbers)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("somebody looks into memory that is not the host's")


class Kept:
    """The memory of a group of states of equal type; see `Store`."""

    def __init__(self, owner: "Keeper", group: Group, sizes, initial) -> None:
        declared = group.first
        self.group, self.shape = group, declared.type.shape(sizes)
        self.slots = 0 if declared.axis is None else self.shape[declared.axis]
        self.shared = False
        self._owner, self._initial = owner, initial
        order = [self.shape[dim] for dim in declared.layout]
        memory = np.zeros((len(group.states), *order), declared.type.dtype.numpy)
        places = (1 + declared.layout.index(dim) for dim in range(len(order)))
        self._all = memory.transpose(0, *places)
        self.buffers: Sequence[Buffer] = [
            owner.take(self._all[i, ...]) for i in range(len(memory))
        ]
        self.fill(WHOLE)

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        self._owner.synchronise()
        return own_copy(self._all[self._where(span)][(*part, ...)])

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        taken = own_copy(content)
        self._owner.ask(lambda: self._write(span, taken, part))

    def _write(self, span: Span, content: Array, part: Part) -> None:
        copy_into(self._all[self._where(span)][(*part, ...)], content)

    def fill(self, span: Span) -> None:
        self._owner.ask(lambda: self._fill(span))

    def give_back(self, span: Span) -> None:
        for state in range(len(self._all)):
            own = span._replace(state=state)
            if span.state in (None, state):
                begins = self.first(state)[self._where(own)[1:]]
                assert np.array_equal(self.read(own), begins), "it holds something"

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Do nothing: a clone has memory of its own."""

    def first(self, state: int) -> Array:
        number = self.group.declared[state].initial
        if number is not None:
            return self._initial(number)
        return np.zeros(self.shape, self._all.dtype)

    def _fill(self, span: Span) -> None:
        if span.low >= span.high:
            return
        for state in range(len(self._all)) if span.state is None else (span.state,):
            where = self._where(span._replace(state=state))
            copy_into(self._all[where], self.first(state)[where[1:]])

    def _where(self, span: Span) -> tuple[object, ...]:
        where: list[object] = [slice(None)] * self._all.ndim
        where[0] = slice(None) if span.state is None else span.state
        if span.row is not None:
            where[1] = slice(span.row, span.row + 1)
        if self.group.first.axis is not None:
            where[1 + self.group.first.axis] = slice(max(span.low, 0), span.high)
        return (*where, ...)


class Keeper:
    """The owner of the states; see `Owner`. Its work is queued, and done in order."""

    def __init__(self, groups, sizes, initial) -> None:
        self._again = groups, sizes, initial
        self._memory: dict[int, Array] = {}
        self._waiting: list[Work] = []
        self.arenas: Mapping[ResetRule, Arena] = {}
        self.stores: Sequence[Kept] = [
            Kept(self, group, sizes, initial) for group in groups
        ]

    def take(self, memory: Array) -> Ticket:
        """Keep the memory of a state, and return the ticket that stands for it."""
        ticket = Ticket(self)
        self._memory[ticket.number] = memory
        return ticket

    def find(self, ticket: Ticket) -> Array:
        return self._memory[ticket.number]

    def ask(self, work: Work) -> None:
        """Queue some work until the owner is synchronized."""
        self._waiting.append(work)

    def clone(self, held: Sequence[int]) -> "Keeper":
        self.synchronise()
        twin = Keeper(*self._again)
        for store, made, high in zip(self.stores, twin.stores, held, strict=True):
            made.write(Span(high=high), store.read(Span(high=high)))
            store.shared = made.shared = True
        return twin

    def discard(self, rule: ResetRule) -> None:
        for store in self.stores:
            if store.group.first.reset is rule:
                store.fill(WHOLE)

    def synchronise(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:  # what fails takes along what waits after it
            work()

    def close(self) -> None:
        self._memory.clear()
        self.stores = ()


class OpaqueDelegate(ByReference):
    def owner(self, groups, sizes, initial) -> Owner:
        return Keeper(groups, sizes, initial)

    def init(self, partition, data) -> Handle:
        return OpaqueHandle(self._program, partition, data)


class OpaqueHandle(ReferenceHandle):
    """Runs a partition; if it has states, when their `Keeper` is synchronized."""

    def prepare(self, inputs, outputs, workspace, sizes) -> Work:
        keepers = [b.owner for b in inputs if isinstance(b, Ticket)]
        inside = [list(map(_inside, buffers)) for buffers in (inputs, outputs)]
        run = super().prepare(*inside, workspace, sizes)
        return partial(keepers[0].ask, run) if keepers else run


def _inside(buffer: Buffer) -> Buffer:
    return buffer.owner.find(buffer) if isinstance(buffer, Ticket) else buffer
