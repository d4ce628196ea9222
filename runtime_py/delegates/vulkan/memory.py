"""Memory of a device, and the arrays that stand for parts of it.

In: a device, a number of bytes. Out: a `DeviceBuffer`. Its arrays have addresses,
shapes and strides as all arrays do, so that the view operators of programs work on
them; from such an array follows where its elements lie for a shader. Where the host
sees the memory (it is `shared`), these addresses are real. Else they are reserved, and
nobody may read there.
"""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from ctypes import byref
from typing import Final

import numpy as np

from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.blocks import Piece
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.memory.arenas import NORESERVE, align_up
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.dtypes import DType
from kvc.schema.errors import OutOfMemory

USAGE: Final = 0x20000 | 0x20 | 3  # addresses of it, storage, copies from and to it


class DeviceBuffer:
    """A run of a device's memory; it goes with the last reference.

    Attributes:
        device: whose it is.
        nbytes: how long it is.
        shared: whether arrays over it can be read and written here.
        bytes: all of it, uint8 [nbytes].
        handle: of the buffer.
        base: where arrays over it begin.
        address: where it begins for shaders.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int,
        what: str,
        *,
        shared: bool,
        local: bool = True,
    ) -> None:
        """Allocate memory; what it is for is told where there is none.

        Args:
            device: whose.
            nbytes: how long.
            what: it is for, for messages.
            shared: whether the host must see it.
            local: whether it should be the device's own, if there is some.

        Raises:
            OutOfMemory: there is not as much.
        """
        device.check()
        self.device, self.nbytes, self.shared = device, nbytes, shared
        length = align_up(max(nbytes, 1), 64)
        if length > device.largest:
            raise OutOfMemory(what=what, nbytes=nbytes)
        wanted = s.BufferCreateInfo(size=length, usage=USAGE)
        self.handle = device.make("vkCreateBuffer", wanted)
        piece: Piece | None = None
        try:
            needs = s.MemoryRequirements()
            device.functions.tell(
                "vkGetBufferMemoryRequirements",
                device.handle,
                self.handle,
                byref(needs),
            )
            piece = self._allocate(needs, what, shared=shared, local=local)
            device.functions.call(
                "vkBindBufferMemory",
                *(device.handle, self.handle, piece.memory, piece.offset),
            )
            self.bytes = bytes_at(piece.mapped, length) if shared else _reserve(length)
        except BaseException:
            _free(os.getpid(), device, self.handle, piece)
            raise
        self.base = address_of(self.bytes)
        about = s.BufferDeviceAddressInfo(buffer=self.handle)
        self.address = device.functions.address(device.handle, byref(about))
        self._free = when_gone(self, _free, os.getpid(), device, self.handle, piece)

    def close(self) -> None:
        """Give the memory back; nothing uses it any more."""
        self._free()

    def _allocate(
        self, needs: s.MemoryRequirements, what: str, *, shared: bool, local: bool
    ) -> Piece:
        allowed = needs.memoryTypeBits
        kinds = [(shared, local), (shared, False)]
        found = (
            self.device.memory_type(allowed, visible=v, device=d) for v, d in kinds
        )
        kind = next((number for number in found if number is not None), None)
        if kind is None or needs.size > self.device.heap_nbytes(kind):
            raise OutOfMemory(what=what, nbytes=self.nbytes)
        try:
            return self.device.blocks.take(
                needs.size, needs.alignment, kind, mapped=shared
            )
        except OutOfMemory as error:
            raise OutOfMemory(what=what, nbytes=self.nbytes) from error

    def array(self, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Return the array of a dtype and shape at a byte offset."""
        return np.ndarray(shape, dtype.numpy, self.bytes.data, offset)

    def holds(self, address: int) -> bool:
        """Tell whether an array that begins somewhere lies here."""
        return 0 <= address - self.base < len(self.bytes)

    def place(self, address: int) -> int:
        """Return where what arrays have at an address lies for shaders."""
        return self.address + address - self.base


def _reserve(length: int) -> Array:
    """Return addresses where there is nothing."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return np.frombuffer(mmap.mmap(-1, length, flags=flags), np.uint8)


def bytes_at(address: int, length: int) -> Array:
    """Return memory that the host sees."""
    mapped = memoryview((ctypes.c_uint8 * length).from_address(address))
    return np.frombuffer(mapped, np.uint8)


def when_gone(
    owner: object, free: Callable[..., None], *arguments: object
) -> "weakref.finalize[..., object]":
    """Have something freed once its owner is gone, but not as the process ends.

    A thread may still wait for the device then, and all of it goes with the process.
    """
    made = weakref.finalize(owner, free, *arguments)
    made.atexit = False
    return made


def _free(process: int, device: Device, buffer: int, piece: Piece | None) -> None:
    if os.getpid() == process:  # a child of a fork has no device of its parent's
        device.functions.tell("vkDestroyBuffer", device.handle, buffer, None)
        if piece is not None:
            device.blocks.give(piece)
