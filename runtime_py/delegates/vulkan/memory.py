"""Memory of a device, and arrays that represent parts of it.

In: a device, a number of bytes. Out: a `DeviceBuffer`. Arrays over the buffer have
addresses, shapes and strides like all arrays, so that the view operators of programs
work on them; `DeviceBuffer.place` converts the address of an array to the address that
shaders use. If the host can access the memory (`shared`), the arrays can be read and
written. Otherwise the arrays' addresses are only reserved, and must not be accessed.
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

USAGE: Final = 0x20000 | 0x20 | 3  # address, storage, copy source and copy target


class DeviceBuffer:
    """A part of a device's memory, freed when its last reference is deleted.

    Attributes:
        device: the device.
        nbytes: size of the memory.
        shared: whether the host can read and write arrays over the memory.
        bytes: the whole memory as an array, uint8 [nbytes].
        handle: handle of the buffer.
        base: the address of the first byte of `bytes`.
        address: the start address of the memory for shaders.
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
        """Allocate memory.

        Args:
            device: the device.
            nbytes: size of the memory.
            what: description of the memory's use, for messages.
            shared: whether the host must be able to access the memory.
            local: whether device-local memory is preferred.

        Raises:
            OutOfMemory: there is not enough memory.
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
        """Free the memory; the device and the caller must not use it any more."""
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
        """Return an array of a dtype and shape over the memory, at a byte offset."""
        return np.ndarray(shape, dtype.numpy, self.bytes.data, offset)

    def holds(self, address: int) -> bool:
        """Tell whether the buffer has the array that begins at an address."""
        return 0 <= address - self.base < len(self.bytes)

    def place(self, address: int) -> int:
        """Return an array's address for shaders, given the array's start address."""
        return self.address + address - self.base


def _reserve(length: int) -> Array:
    """Reserve `length` bytes of addresses, without memory behind them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return np.frombuffer(mmap.mmap(-1, length, flags=flags), np.uint8)


def bytes_at(address: int, length: int) -> Array:
    """Return `length` bytes of host memory at an address, as an array of uint8."""
    mapped = memoryview((ctypes.c_uint8 * length).from_address(address))
    return np.frombuffer(mapped, np.uint8)


def when_gone(
    owner: object, free: Callable[..., None], *arguments: object
) -> "weakref.finalize[..., object]":
    """Call `free` when `owner` is deleted, but not at the end of the process.

    At the end of the process, a thread can still be waiting for the device, and the
    system frees everything anyway.
    """
    made = weakref.finalize(owner, free, *arguments)
    made.atexit = False
    return made


def _free(process: int, device: Device, buffer: int, piece: Piece | None) -> None:
    if os.getpid() == process:  # a forked child must not use the parent's device
        device.functions.tell("vkDestroyBuffer", device.handle, buffer, None)
        if piece is not None:
            device.blocks.give(piece)
