"""States in device memory, for states that only partitions of this backend use.

In: groups of states, the sizes that a session fixed, initial values. Out: a store for
each group. A function returns only when all its work on the device is complete. If the
host can access the memory, the host reads and writes it directly; otherwise the device
copies.
"""

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType

import numpy as np

from kvc.runtime.delegates.vulkan.binding import Places
from kvc.runtime.delegates.vulkan.commands import Commands
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.kernels import Where
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.memory.arenas import Arena, align_up
from kvc.runtime.memory.arrays import Array, Part, copy_into, own_copy
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

_WHAT = "the states of a session on a Vulkan device"


class DeviceState(StateBuffer):
    """The memory of a state.

    Attributes:
        memory: the buffer of the store that the state belongs to.
        array: the array that represents the state, in its shape.
    """

    __slots__ = ("array", "memory")

    def __init__(
        self, owner: "DeviceOwner", memory: DeviceBuffer, array: Array
    ) -> None:
        super().__init__(owner)
        self.memory, self.array = memory, array


class DeviceStore:
    """The states of one group, in one buffer; see `Store`."""

    def __init__(
        self,
        owner: "DeviceOwner",
        group: Group,
        sizes: Mapping[str, int],
        initial: InitialValue,
    ) -> None:
        declared = group.first
        self.group, self.shape = group, declared.type.shape(sizes)
        self.slots = 0 if declared.axis is None else self.shape[declared.axis]
        self.shared = False
        self._device, self._initial = owner.device, initial
        self._dtype = declared.type.dtype
        order = [self.shape[dim] for dim in declared.layout]
        step = align_up(int(np.prod(order)) * self._dtype.itemsize)
        shared = not owner.device.separate
        count = len(group.states)
        self.memory = DeviceBuffer(owner.device, step * count, _WHAT, shared=shared)
        inner = np.ndarray(order, self._dtype.numpy, self.memory.bytes.data).strides
        places = (1 + declared.layout.index(dim) for dim in range(len(order)))
        self._all: Array = np.ndarray(
            (count, *order),
            self._dtype.numpy,
            self.memory.bytes.data,
            0,
            (step, *inner),
        ).transpose(0, *places)
        self.buffers: Sequence[Buffer] = [
            DeviceState(owner, self.memory, self._all[i, ...]) for i in range(count)
        ]

    def read(self, span: Span = WHOLE, part: Part = ()) -> Array:
        return self._read(self._all[self._where(span)][(*part, ...)])

    def write(self, span: Span, content: Array, part: Part = ()) -> None:
        self._write(self._all[self._where(span)][(*part, ...)], content)

    def copy_row(self, span: Span, other: Store, row: int) -> None:
        self.write(span, other.read(span._replace(row=row)))

    def fill(self, span: Span) -> None:
        if span.low >= span.high:
            return
        for state in range(len(self._all)) if span.state is None else (span.state,):
            where = self._where(span._replace(state=state))
            if self.group.declared[state].initial is None:
                target = self._all[where]
                self._write(target, np.zeros((1,) * target.ndim, target.dtype))
            else:
                self._write(self._all[where], self.first(state)[where[1:]])

    def give_back(self, span: Span) -> None:
        """Do nothing: device memory is one allocation, only freed as a whole."""

    def note(self, low: int = 0, high: int = ALL_SLOTS) -> None:
        """Do nothing: a clone shares no memory with the original."""

    def first(self, state: int) -> Array:
        number = self.group.declared[state].initial
        if number is not None:
            return self._initial(number)
        return np.zeros(self.shape, self._all.dtype)

    def take(self, other: "DeviceStore", high: int) -> None:
        """Copy the first `high` slots of each state from a store of the same states."""
        where = self._where(Span(high=high))
        target, source = self._all[where], other._all[where]
        if self.memory.shared:
            copy_into(target, source)
        elif target.size:
            places = Places([self.memory, other.memory])
            self._run(places, lambda steps: steps.copy(target, source))

    def _read(self, view: Array) -> Array:
        if self.memory.shared:
            return own_copy(view)
        staging = self._staging(view.nbytes)
        copy = staging.array(0, self._dtype, view.shape)
        if view.size:
            places = Places([self.memory, staging])
            self._run(places, lambda steps: steps.copy(copy, view))
        return own_copy(copy)

    def _write(self, view: Array, content: Array) -> None:
        if self.memory.shared:
            copy_into(view, content)
        elif view.size:
            staging = self._staging(content.nbytes)
            source = staging.array(0, self._dtype, content.shape)
            copy_into(source, content)
            places = Places([self.memory, staging])
            self._run(places, lambda steps: steps.copy(view, source))

    def _staging(self, nbytes: int) -> DeviceBuffer:
        return DeviceBuffer(self._device, nbytes, _WHAT, shared=True, local=False)

    def _run(self, places: Places, write_down: Callable[[Steps], None]) -> None:
        steps = Steps(places.find, _no_memory)
        write_down(steps)
        table = self._staging(64 + steps.nbytes)
        content = b"\xff" * 64 + steps.content()  # no fault, and room for its facts
        table.bytes[: len(content)] = np.frombuffer(content, np.uint8)
        dispatches = steps.dispatches(table.address + 64)
        Commands(self._device, table.address, (), dispatches, ()).run()

    def _where(self, span: Span) -> Where:
        where: list[int | slice | EllipsisType] = [slice(None)] * self._all.ndim
        where[0] = slice(None) if span.state is None else span.state
        if span.row is not None:
            where[1] = slice(span.row, span.row + 1)
        if self.group.first.axis is not None:
            where[1 + self.group.first.axis] = slice(max(span.low, 0), span.high)
        return (*where, ...)


def _no_memory(nbytes: int) -> Array:
    raise AssertionError("copies need no memory between")


class DeviceOwner:
    """The owner of the states; see `Owner`."""

    def __init__(
        self,
        device: Device,
        groups: Sequence[Group],
        sizes: Mapping[str, int],
        initial: InitialValue,
    ) -> None:
        """Allocate memory, and fill it with initial values.

        Raises:
            OutOfMemory: there is too little memory.
        """
        self.device, self._again = device, (groups, sizes, initial)
        self.arenas: Mapping[ResetRule, Arena] = {}
        self.stores: Sequence[DeviceStore] = [
            DeviceStore(self, group, sizes, initial) for group in groups
        ]
        for store in self.stores:
            store.fill(WHOLE)

    def clone(self, held: Sequence[int]) -> "DeviceOwner":
        twin = DeviceOwner(self.device, *self._again)
        for store, made, high in zip(self.stores, twin.stores, held, strict=True):
            made.take(store, high)
            store.shared = made.shared = True
        return twin

    def discard(self, rule: ResetRule) -> None:
        for store in self.stores:
            if store.group.first.reset is rule:
                store.fill(WHOLE)

    def synchronise(self) -> None:
        """Check that the device still works.

        There is nothing to wait for, since every function returns when its work is
        complete.

        Raises:
            DeviceLost: the device has stopped working.
        """
        self.device.check()

    def close(self) -> None:
        for store in self.stores:
            store.memory.close()
        self.stores = ()
