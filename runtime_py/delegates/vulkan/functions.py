"""The functions of Vulkan that kvc calls, and the meaning of their results.

In: the system's loader, `libvulkan`. Out: one `Functions`, which checks calls: an error
result becomes an exception of kvc.
"""

import ctypes
import sys
from ctypes import c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from typing import Final

from kvc.runtime.delegates.vulkan.structs import HANDLE, HostPointerProperties
from kvc.runtime.execution.delegate import NeededLibrary
from kvc.schema.errors import DeviceLost, NativeCallFailed, OutOfMemory

VULKAN: Final = NeededLibrary("Vulkan", "apt install libvulkan1 mesa-vulkan-drivers")
_LOADERS: Final = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}
_NO_MEMORY: Final = (-1, -2)  # of the host, of the device
_LOST: Final = -4
_NO_DRIVER: Final = -9
_REASONS: Final = {
    -3: "initialization failed",
    -5: "the memory cannot be mapped",
    -6: "a layer is missing",
    -7: "an extension is missing",
    -8: "a feature is missing",
    -10: "too many objects",
    -13: "unknown",
}
# Types of arguments: p a pointer, h a handle, u and q 32 and 64 bits, i int.
_TYPES: Final = {"p": c_void_p, "h": HANDLE, "u": c_uint32, "q": c_uint64, "i": c_int32}
_CHECKED: Final = {
    "vkEnumerateDeviceExtensionProperties": "pppp",
    "vkCreateInstance": "ppp",
    "vkEnumeratePhysicalDevices": "ppp",
    "vkCreateDevice": "pppp",
    "vkCreateBuffer": "pppp",
    "vkAllocateMemory": "pppp",
    "vkBindBufferMemory": "phhq",
    "vkMapMemory": "phqqup",
    "vkCreateShaderModule": "pppp",
    "vkCreatePipelineLayout": "pppp",
    "vkCreateComputePipelines": "phuppp",
    "vkCreateCommandPool": "pppp",
    "vkAllocateCommandBuffers": "ppp",
    "vkBeginCommandBuffer": "pp",
    "vkEndCommandBuffer": "p",
    "vkCreateFence": "pppp",
    "vkResetFences": "pup",
    "vkQueueSubmit": "puph",
    "vkQueueWaitIdle": "p",
    "vkGetFenceStatus": "ph",
    "vkWaitForFences": "pupuq",
}
_PLAIN: Final = {
    "vkGetPhysicalDeviceProperties2": "pp",
    "vkGetPhysicalDeviceFeatures2": "pp",
    "vkGetPhysicalDeviceMemoryProperties": "pp",
    "vkGetPhysicalDeviceQueueFamilyProperties": "ppp",
    "vkGetDeviceQueue": "puup",
    "vkGetBufferMemoryRequirements": "php",
    "vkDestroyBuffer": "php",
    "vkFreeMemory": "php",
    "vkDestroyShaderModule": "php",
    "vkDestroyCommandPool": "php",
    "vkDestroyFence": "php",
    "vkCmdBindPipeline": "pih",
    "vkCmdPushConstants": "phuuup",
    "vkCmdDispatch": "puuu",
    "vkCmdPipelineBarrier": "puuuupupup",
    "vkCmdCopyBuffer": "phhup",
}


class Functions:
    """The functions of the loader; one per process, used by several threads."""

    def __init__(self) -> None:
        """Load the loader.

        Raises:
            MissingLibrary: there is no loader, or it is older than Vulkan 1.2.
        """
        name = _LOADERS.get(sys.platform, "libvulkan.so.1")
        try:
            self._library = ctypes.CDLL(name)
            for table in (_CHECKED, _PLAIN):
                for function, types in table.items():
                    self._declare(function, types)
            address = self._library.vkGetBufferDeviceAddress
            address.argtypes, address.restype = (c_void_p, c_void_p), c_uint64
            finder = self._library.vkGetDeviceProcAddr
            finder.argtypes, finder.restype = (c_void_p, c_char_p), c_void_p
        except (OSError, AttributeError) as error:
            raise VULKAN.missing(str(error)) from error

    def _declare(self, name: str, types: str) -> None:
        function = getattr(self._library, name)
        function.argtypes = [_TYPES[t] for t in types]
        function.restype = c_int32 if name in _CHECKED else None

    def call(self, name: str, *arguments: object) -> int:
        """Call a function that returns a result code; a negative code is an error.

        Raises:
            OutOfMemory: device or host have too little memory.
            DeviceLost: the device has stopped working.
            MissingLibrary: there is a loader, but no driver.
            NativeCallFailed: the function fails with any other code.
        """
        result: int = getattr(self._library, name)(*arguments)
        if result < 0:
            raise error_of(name, result)
        return result

    def tell(self, name: str, *arguments: object) -> None:
        """Call a function that cannot fail."""
        getattr(self._library, name)(*arguments)

    def address_of_function(self, device: c_void_p, name: str) -> int:
        """Return the address of a device's function that belongs to an extension."""
        found: int = self._library.vkGetDeviceProcAddr(device, name.encode())
        return found

    def address(self, device: c_void_p, about: object) -> int:
        """Return the address of a buffer as shaders use it.

        Args:
            device: handle of the device.
            about: the structure of Vulkan that names the buffer.
        """
        found: int = self._library.vkGetBufferDeviceAddress(device, about)
        return found


def host_pointer_types(
    functions: Functions, device: c_void_p, kind: int, address: int
) -> int:
    """Return a bit mask of the memory types that can be made of the host's pages.

    Args:
        functions: the functions of Vulkan.
        device: handle of the device.
        kind: the kind of handle, as Vulkan numbers it.
        address: the start address of the pages.

    Raises:
        NativeCallFailed: the driver refuses these pages.
    """
    name = "vkGetMemoryHostPointerPropertiesEXT"
    found = functions.address_of_function(device, name)
    call = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_void_p)(found)
    told = HostPointerProperties()
    result = call(device, kind, address, ctypes.byref(told))
    if result < 0:
        raise error_of(name, result)
    return int(told.memoryTypeBits)


def error_of(name: str, result: int) -> Exception:
    """Return the error for a negative result code."""
    if result in _NO_MEMORY:
        return OutOfMemory(what=f"a Vulkan device ({name})", nbytes=0)
    if result == _LOST:
        return DeviceLost(backend="vulkan", what=name)
    if result == _NO_DRIVER:
        return VULKAN.missing("no driver")
    reason = _REASONS.get(result, f"result {result}")
    return NativeCallFailed(library="Vulkan", what=name, reason=reason)
