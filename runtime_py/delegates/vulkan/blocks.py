"""Large allocations of device memory, since drivers allow a process only 4096.

In: size, alignment and type of memory. Out: a `Piece` of an allocation. A small piece
is a part of a *block*, an allocation that many pieces share and that is freed when it
is empty. A large piece is an allocation of its own.
"""

import ctypes
import threading
from bisect import insort
from collections import deque
from ctypes import byref, c_void_p
from typing import Final, Protocol

from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.functions import Functions
from kvc.runtime.memory.arenas import align_up

BLOCK_NBYTES: Final = 16 << 20
SMALL_NBYTES: Final = BLOCK_NBYTES >> 4
ADDRESSES: Final = 2  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT


class Allocating(Protocol):
    """What this module uses of a device to allocate memory."""

    functions: Functions
    handle: c_void_p

    def make(self, name: str, wanted: ctypes.Structure) -> int:
        """Create an object of Vulkan, and return its handle."""


class Allocation:
    """Memory from the driver, with a list of its unused parts: (offset, nbytes) each.

    Attributes:
        handle: handle of the memory.
        mapped: the memory's address for the host, 0 if the memory is not mapped.
    """

    def __init__(
        self, device: Allocating, nbytes: int, kind: int, *, mapped: bool
    ) -> None:
        """Allocate memory from the driver.

        Args:
            device: the device.
            nbytes: the size.
            kind: index of the memory type.
            mapped: whether the host must be able to access the memory.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: the driver refuses.
        """
        flags = s.MemoryAllocateFlagsInfo(flags=ADDRESSES)
        wanted = s.MemoryAllocateInfo(
            pNext=s.address_of(flags), allocationSize=nbytes, memoryTypeIndex=kind
        )
        self.nbytes, self.free, self.mapped = nbytes, [(0, nbytes)], 0
        self.handle = device.make("vkAllocateMemory", wanted)
        if not mapped:
            return
        pointer = c_void_p()
        arguments = (device.handle, self.handle, 0, nbytes, 0, byref(pointer))
        try:
            device.functions.call("vkMapMemory", *arguments)
        except BaseException:
            device.functions.tell("vkFreeMemory", device.handle, self.handle, None)
            raise
        assert pointer.value is not None, "Vulkan has mapped it"
        self.mapped = pointer.value

    def take(self, nbytes: int, align: int) -> int | None:
        """Mark `nbytes` unused bytes as used; return their offset, None if none fit.

        The offset is a multiple of `align`.
        """
        for number, (start, length) in enumerate(self.free):
            offset = align_up(start, align)
            rest = start + length - offset - nbytes
            if rest < 0:
                continue
            parts = [(start, offset - start), (offset + nbytes, rest)]
            self.free[number : number + 1] = [part for part in parts if part[1]]
            return offset
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """Mark bytes as unused, and merge them with unused neighbors."""
        insort(self.free, (offset, nbytes))
        joined: list[tuple[int, int]] = []
        for start, length in self.free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((start, length))
        self.free = joined

    @property
    def is_free(self) -> bool:
        """Tell whether no byte of the allocation is in use."""
        return self.free == [(0, self.nbytes)]


class Piece:
    """A part of an allocation.

    Attributes:
        memory: handle of the allocation.
        offset: offset in the allocation.
        mapped: address of the part for the host, 0 if the memory is not mapped.
    """

    def __init__(self, allocation: Allocation, offset: int, nbytes: int) -> None:
        self.allocation, self.nbytes = allocation, nbytes
        self.memory, self.offset = allocation.handle, offset
        self.mapped = allocation.mapped and allocation.mapped + offset


class Blocks:
    """The allocations of a device; used by several threads."""

    def __init__(self, device: Allocating) -> None:
        self._device, self._lock = device, threading.Lock()
        self._blocks: dict[tuple[int, bool], list[Allocation]] = {}
        # Pieces freed by finalizers, which may run while this thread holds the lock.
        self._given: deque[Piece] = deque()
        self.allocations = 0

    def take(self, nbytes: int, align: int, kind: int, *, mapped: bool) -> Piece:
        """Return a piece of unused memory.

        Args:
            nbytes: size of the piece.
            align: alignment of the piece's offset in the driver's allocation.
            kind: index of the memory type.
            mapped: whether the host must be able to access the piece.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: the driver refuses.
        """
        with self._lock:
            self._take_back()
            small = nbytes <= SMALL_NBYTES
            blocks = self._blocks.setdefault((kind, mapped), [])
            for block in blocks if small else ():
                offset = block.take(nbytes, align)
                if offset is not None:
                    return Piece(block, offset, nbytes)
            made = self._allocate(BLOCK_NBYTES if small else nbytes, kind, mapped)
            if small:
                blocks.append(made)
            offset = made.take(nbytes, align)
            assert offset is not None, "it is empty, and large enough"
            return Piece(made, offset, nbytes)

    def give(self, piece: Piece) -> None:
        """Free a piece, from any thread.

        An allocation that becomes empty is returned to the driver.
        """
        self._given.append(piece)
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _allocate(self, nbytes: int, kind: int, mapped: bool) -> Allocation:
        made = Allocation(self._device, nbytes, kind, mapped=mapped)
        self.allocations += 1
        return made

    def _take_back(self) -> None:
        while self._given:
            piece = self._given.popleft()
            piece.allocation.give(piece.offset, piece.nbytes)
            if not piece.allocation.is_free:
                continue
            for blocks in self._blocks.values():
                if piece.allocation in blocks:
                    blocks.remove(piece.allocation)
            arguments = (self._device.handle, piece.allocation.handle, None)
            self._device.functions.tell("vkFreeMemory", *arguments)
            self.allocations -= 1
