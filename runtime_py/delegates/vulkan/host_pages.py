"""Pages of the host that a device uses directly, without a copy.

In: arrays of the host, such as weights in a mapped file. Out: buffers over the pages of
the arrays, which shaders read. If a driver refuses the pages, such as those of a
file that is mapped read-only, the caller copies the arrays.
"""

import mmap
import os
from collections.abc import Sequence
from ctypes import byref, c_int32, c_uint32, c_void_p
from typing import Final

from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.blocks import ADDRESSES
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.functions import host_pointer_types
from kvc.runtime.delegates.vulkan.memory import (
    USAGE,
    DeviceBuffer,
    bytes_at,
    when_gone,
)
from kvc.runtime.delegates.vulkan.structs import Typed, chained
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.errors import NativeCallFailed, OutOfMemory

_ALLOCATION: Final = 0x80  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
_PAGE: Final = mmap.PAGESIZE


class ImportHostPointerInfo(Typed):
    """The structure `VkImportMemoryHostPointerInfoEXT` of Vulkan."""

    kind = 1000178000
    _fields_ = chained(("handleType", c_int32), ("pHostPointer", c_void_p))


class ExternalBufferInfo(Typed):
    """The structure `VkExternalMemoryBufferCreateInfo` of Vulkan."""

    kind = 1000072000
    _fields_ = chained(("handleTypes", c_uint32))


class HostBuffer(DeviceBuffer):
    """A buffer over whole pages of the host; the pages must outlive the buffer."""

    def __init__(self, device: Device, low: int, high: int) -> None:
        """Import the pages from address `low` to address `high`.

        Raises:
            NativeCallFailed, OutOfMemory: the driver refuses the pages.
            DeviceLost: the device has stopped working.
        """
        device.check()
        self.device, self.nbytes, self.shared = device, high - low, True
        if self.nbytes > device.largest:
            raise OutOfMemory(what="pages of the host", nbytes=self.nbytes)
        kinds = host_pointer_types(device.functions, device.handle, _ALLOCATION, low)
        chain = ExternalBufferInfo(handleTypes=_ALLOCATION)
        wanted = s.BufferCreateInfo(
            pNext=s.address_of(chain), size=self.nbytes, usage=USAGE
        )
        self.handle = device.make("vkCreateBuffer", wanted)
        memory = 0
        try:
            memory = self._import(kinds, low)
            arguments = (device.handle, self.handle, memory, 0)
            device.functions.call("vkBindBufferMemory", *arguments)
        except BaseException:
            _free(os.getpid(), device, self.handle, memory)
            raise
        self.bytes, self.base = bytes_at(low, self.nbytes), low
        about = s.BufferDeviceAddressInfo(buffer=self.handle)
        self.address = device.functions.address(device.handle, byref(about))
        self._free = when_gone(self, _free, os.getpid(), device, self.handle, memory)

    def _import(self, kinds: int, low: int) -> int:
        needs = s.MemoryRequirements()
        device, tell = self.device, self.device.functions.tell
        tell("vkGetBufferMemoryRequirements", device.handle, self.handle, byref(needs))
        allowed = needs.memoryTypeBits & kinds
        # Memory of other types would need a flush before the device sees writes.
        kind = device.memory_type(allowed, visible=True, device=False)
        if kind is None or needs.size > self.nbytes:
            reason = "no memory type fits these pages"
            raise NativeCallFailed(library="Vulkan", what="an import", reason=reason)
        pages = ImportHostPointerInfo(handleType=_ALLOCATION, pHostPointer=low)
        flags = s.MemoryAllocateFlagsInfo(pNext=s.address_of(pages), flags=ADDRESSES)
        wanted = s.MemoryAllocateInfo(
            pNext=s.address_of(flags), allocationSize=self.nbytes, memoryTypeIndex=kind
        )
        return device.make("vkAllocateMemory", wanted)


def pages_of(arrays: Sequence[Array], largest: int) -> list[tuple[int, int]]:
    """Return ranges of pages, ascending, such that each array lies in a single range.

    Adjacent ranges are merged up to `largest` bytes. Ranges that would be longer if
    merged stay separate, and can share a page. A range is (start address, end address).
    """
    runs = sorted((address_of(a), address_of(a) + a.nbytes) for a in arrays if a.size)
    found: list[tuple[int, int]] = []
    for start, end in runs:
        low, high = start - start % _PAGE, end + -end % _PAGE
        if found and low <= found[-1][1] and high - found[-1][0] <= largest:
            low, high = found[-1][0], max(found.pop()[1], high)
        found.append((low, high))
    return found


def _free(process: int, device: Device, buffer: int, memory: int) -> None:
    if os.getpid() == process:  # a forked child must not use the parent's device
        device.functions.tell("vkDestroyBuffer", device.handle, buffer, None)
        device.functions.tell("vkFreeMemory", device.handle, memory, None)
