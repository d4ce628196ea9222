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
from ctypes import byref, c_void_p

import numpy as np

from kvc.runtime.arenas import NORESERVE, align_up
from kvc.runtime.arrays import Array, address_of
from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.device import Device
from kvc.schema.dtypes import DType
from kvc.schema.errors import OutOfMemory

_USAGE = 0x20000 | 0x20 | 3  # addresses of it, storage, copies from and to it
_ADDRESSES = 2  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT


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
        wanted = s.BufferCreateInfo(size=length, usage=_USAGE)
        self.handle = device.make("vkCreateBuffer", wanted)
        memory = 0
        try:
            needs = s.MemoryRequirements()
            device.functions.tell(
                "vkGetBufferMemoryRequirements",
                device.handle,
                self.handle,
                byref(needs),
            )
            memory = self._allocate(needs, what, shared=shared, local=local)
            device.functions.call(
                "vkBindBufferMemory", device.handle, self.handle, memory, 0
            )
            self.bytes = self._map(memory, length) if shared else _reserve(length)
        except BaseException:
            _free(os.getpid(), device, self.handle, memory)
            raise
        self.base = address_of(self.bytes)
        about = s.BufferDeviceAddressInfo(buffer=self.handle)
        self.address = device.functions.address(device.handle, byref(about))
        self._free = weakref.finalize(
            self, _free, os.getpid(), device, self.handle, memory
        )

    def close(self) -> None:
        """Give the memory back; nothing uses it any more."""
        self._free()

    def _allocate(
        self, needs: s.MemoryRequirements, what: str, *, shared: bool, local: bool
    ) -> int:
        allowed = needs.memoryTypeBits
        kinds = [(shared, local), (shared, False)]
        found = (
            self.device.memory_type(allowed, visible=v, device=d) for v, d in kinds
        )
        kind = next((number for number in found if number is not None), None)
        if kind is None or needs.size > self.device.heap_nbytes(kind):
            raise OutOfMemory(what=what, nbytes=self.nbytes)
        flags = s.MemoryAllocateFlagsInfo(flags=_ADDRESSES)
        wanted = s.MemoryAllocateInfo(
            pNext=s.address_of(flags), allocationSize=needs.size, memoryTypeIndex=kind
        )
        try:
            return self.device.make("vkAllocateMemory", wanted)
        except OutOfMemory as error:
            raise OutOfMemory(what=what, nbytes=self.nbytes) from error

    def _map(self, memory: int, length: int) -> Array:
        pointer = c_void_p()
        self.device.functions.call(
            "vkMapMemory", self.device.handle, memory, 0, length, 0, byref(pointer)
        )
        assert pointer.value is not None, "Vulkan has mapped it"
        mapped = memoryview((ctypes.c_uint8 * length).from_address(pointer.value))
        return np.frombuffer(mapped, np.uint8)

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


def _free(process: int, device: Device, buffer: int, memory: int) -> None:
    if os.getpid() == process:  # a child of a fork has no device of its parent's
        device.functions.tell("vkDestroyBuffer", device.handle, buffer, None)
        device.functions.tell("vkFreeMemory", device.handle, memory, None)
