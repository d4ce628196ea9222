"""The structures of `vulkan_core.h` that kvc fills in or reads, for ctypes.

The module has only structures of Vulkan 1.2 for a compute queue. Names are those of the
header, without `Vk`. `sType` is set when a structure is created.
"""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Final, TypeAlias

HANDLE: TypeAlias = c_uint64  # handle of a non-dispatchable object
DISPATCHABLE: TypeAlias = c_void_p
MAX_HEAPS: Final = 16
MAX_TYPES: Final = 32
_LIMITS_NBYTES: Final = 504  # of VkPhysicalDeviceLimits on 64 bits
_INVOCATIONS_OFFSET: Final = 232  # in VkPhysicalDeviceLimits
_SPARSE_NBYTES: Final = 20


class Typed(Structure):
    """A structure that begins with its type and a pointer to further structures."""

    kind = -1

    def __init__(self, **fields: object) -> None:
        super().__init__(sType=self.kind, **fields)


def chained(*fields: tuple[str, type]) -> list[tuple[str, type]]:
    """Return the fields of a structure that begins with a type and a pointer.

    `fields` are the fields after these two.
    """
    return [("sType", c_int32), ("pNext", c_void_p), *fields]


class ApplicationInfo(Typed):
    """The structure `VkApplicationInfo` of Vulkan."""

    kind = 0
    _fields_ = chained(
        ("pApplicationName", c_char_p),
        ("applicationVersion", c_uint32),
        ("pEngineName", c_char_p),
        ("engineVersion", c_uint32),
        ("apiVersion", c_uint32),
    )


class InstanceCreateInfo(Typed):
    """The structure `VkInstanceCreateInfo` of Vulkan."""

    kind = 1
    _fields_ = chained(
        ("flags", c_uint32),
        ("pApplicationInfo", POINTER(ApplicationInfo)),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", POINTER(c_char_p)),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
    )


class PhysicalDeviceProperties(Structure):
    """VkPhysicalDeviceProperties, with a field for only one of its limits."""

    _fields_ = [
        ("apiVersion", c_uint32),
        ("driverVersion", c_uint32),
        ("vendorID", c_uint32),
        ("deviceID", c_uint32),
        ("deviceType", c_int32),
        ("deviceName", c_char * 256),
        ("pipelineCacheUUID", c_uint8 * 16),
        ("earlierLimits", c_uint64 * (_INVOCATIONS_OFFSET // 8)),
        ("maxComputeWorkGroupInvocations", c_uint32),
        ("laterLimits", c_uint8 * (_LIMITS_NBYTES - _INVOCATIONS_OFFSET - 4)),
        ("sparseProperties", c_uint8 * _SPARSE_NBYTES),
    ]


class MaintenanceProperties(Typed):
    """The structure `VkPhysicalDeviceMaintenance3Properties` of Vulkan."""

    kind = 1000168000
    _fields_ = chained(("maxPerSet", c_uint32), ("maxMemoryAllocationSize", c_uint64))


class PhysicalDeviceProperties2(Typed):
    """The structure `VkPhysicalDeviceProperties2` of Vulkan."""

    kind = 1000059001
    _fields_ = chained(("properties", PhysicalDeviceProperties))


class PhysicalDeviceFeatures(Structure):
    """The structure `VkPhysicalDeviceFeatures`: 55 flags; `SHADER_INT64` is used."""

    _fields_ = [("flags", c_uint32 * 55)]


SHADER_INT64: Final = 40  # index of the flag


class Features11(Typed):
    """The structure `VkPhysicalDeviceVulkan11Features` of Vulkan."""

    kind = 49
    _fields_ = chained(("storageBuffer16BitAccess", c_uint32), ("rest", c_uint32 * 11))


class Features12(Typed):
    """The structure `VkPhysicalDeviceVulkan12Features` of Vulkan."""

    kind = 51
    _fields_ = chained(
        ("samplerMirrorClampToEdge", c_uint32),
        ("drawIndirectCount", c_uint32),
        ("storageBuffer8BitAccess", c_uint32),
        ("uniformAndStorageBuffer8BitAccess", c_uint32),
        ("storagePushConstant8", c_uint32),
        ("shaderBufferInt64Atomics", c_uint32),
        ("shaderSharedInt64Atomics", c_uint32),
        ("shaderFloat16", c_uint32),
        ("shaderInt8", c_uint32),
        ("descriptors", c_uint32 * 22),
        ("scalarBlockLayout", c_uint32),
        ("imagelessFramebuffer", c_uint32),
        ("uniformBufferStandardLayout", c_uint32),
        ("shaderSubgroupExtendedTypes", c_uint32),
        ("separateDepthStencilLayouts", c_uint32),
        ("hostQueryReset", c_uint32),
        ("timelineSemaphore", c_uint32),
        ("bufferDeviceAddress", c_uint32),
        ("others", c_uint32 * 8),
    )


class PhysicalDeviceFeatures2(Typed):
    """The structure `VkPhysicalDeviceFeatures2` of Vulkan."""

    kind = 1000059000
    _fields_ = chained(("features", PhysicalDeviceFeatures))


class MemoryType(Structure):
    """The structure `VkMemoryType` of Vulkan."""

    _fields_ = [("propertyFlags", c_uint32), ("heapIndex", c_uint32)]


class MemoryHeap(Structure):
    """The structure `VkMemoryHeap` of Vulkan."""

    _fields_ = [("size", c_uint64), ("flags", c_uint32)]


class MemoryProperties(Structure):
    """The structure `VkPhysicalDeviceMemoryProperties` of Vulkan."""

    _fields_ = [
        ("memoryTypeCount", c_uint32),
        ("memoryTypes", MemoryType * MAX_TYPES),
        ("memoryHeapCount", c_uint32),
        ("memoryHeaps", MemoryHeap * MAX_HEAPS),
    ]


class QueueFamilyProperties(Structure):
    """The structure `VkQueueFamilyProperties` of Vulkan."""

    _fields_ = [
        ("queueFlags", c_uint32),
        ("queueCount", c_uint32),
        ("timestampValidBits", c_uint32),
        ("granularity", c_uint32 * 3),
    ]


class DeviceQueueCreateInfo(Typed):
    """The structure `VkDeviceQueueCreateInfo` of Vulkan."""

    kind = 2
    _fields_ = chained(
        ("flags", c_uint32),
        ("queueFamilyIndex", c_uint32),
        ("queueCount", c_uint32),
        ("pQueuePriorities", POINTER(c_float)),
    )


class DeviceCreateInfo(Typed):
    """The structure `VkDeviceCreateInfo` of Vulkan."""

    kind = 3
    _fields_ = chained(
        ("flags", c_uint32),
        ("queueCreateInfoCount", c_uint32),
        ("pQueueCreateInfos", POINTER(DeviceQueueCreateInfo)),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", POINTER(c_char_p)),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
        ("pEnabledFeatures", c_void_p),
    )


class BufferCreateInfo(Typed):
    """The structure `VkBufferCreateInfo` of Vulkan."""

    kind = 12
    _fields_ = chained(
        ("flags", c_uint32),
        ("size", c_uint64),
        ("usage", c_uint32),
        ("sharingMode", c_int32),
        ("queueFamilyIndexCount", c_uint32),
        ("pQueueFamilyIndices", c_void_p),
    )


class MemoryRequirements(Structure):
    """The structure `VkMemoryRequirements` of Vulkan."""

    _fields_ = [
        ("size", c_uint64),
        ("alignment", c_uint64),
        ("memoryTypeBits", c_uint32),
    ]


class MemoryAllocateInfo(Typed):
    """The structure `VkMemoryAllocateInfo` of Vulkan."""

    kind = 5
    _fields_ = chained(("allocationSize", c_uint64), ("memoryTypeIndex", c_uint32))


class MemoryAllocateFlagsInfo(Typed):
    """The structure `VkMemoryAllocateFlagsInfo` of Vulkan."""

    kind = 1000060000
    _fields_ = chained(("flags", c_uint32), ("deviceMask", c_uint32))


class BufferDeviceAddressInfo(Typed):
    """The structure `VkBufferDeviceAddressInfo` of Vulkan."""

    kind = 1000244001
    _fields_ = chained(("buffer", HANDLE))


class ShaderModuleCreateInfo(Typed):
    """The structure `VkShaderModuleCreateInfo` of Vulkan."""

    kind = 16
    _fields_ = chained(("flags", c_uint32), ("codeSize", c_size_t), ("pCode", c_char_p))


class PushConstantRange(Structure):
    """The structure `VkPushConstantRange` of Vulkan."""

    _fields_ = [("stageFlags", c_uint32), ("offset", c_uint32), ("size", c_uint32)]


class PipelineLayoutCreateInfo(Typed):
    """The structure `VkPipelineLayoutCreateInfo` of Vulkan."""

    kind = 30
    _fields_ = chained(
        ("flags", c_uint32),
        ("setLayoutCount", c_uint32),
        ("pSetLayouts", c_void_p),
        ("pushConstantRangeCount", c_uint32),
        ("pPushConstantRanges", POINTER(PushConstantRange)),
    )


class ShaderStageCreateInfo(Typed):
    """The structure `VkPipelineShaderStageCreateInfo` of Vulkan."""

    kind = 18
    _fields_ = chained(
        ("flags", c_uint32),
        ("stage", c_uint32),
        ("module", HANDLE),
        ("pName", c_char_p),
        ("pSpecializationInfo", c_void_p),
    )


class ComputePipelineCreateInfo(Typed):
    """The structure `VkComputePipelineCreateInfo` of Vulkan."""

    kind = 29
    _fields_ = chained(
        ("flags", c_uint32),
        ("stage", ShaderStageCreateInfo),
        ("layout", HANDLE),
        ("basePipelineHandle", HANDLE),
        ("basePipelineIndex", c_int32),
    )


class CommandPoolCreateInfo(Typed):
    """The structure `VkCommandPoolCreateInfo` of Vulkan."""

    kind = 39
    _fields_ = chained(("flags", c_uint32), ("queueFamilyIndex", c_uint32))


class CommandBufferAllocateInfo(Typed):
    """The structure `VkCommandBufferAllocateInfo` of Vulkan."""

    kind = 40
    _fields_ = chained(
        ("commandPool", HANDLE), ("level", c_int32), ("commandBufferCount", c_uint32)
    )


class CommandBufferBeginInfo(Typed):
    """The structure `VkCommandBufferBeginInfo` of Vulkan."""

    kind = 42
    _fields_ = chained(("flags", c_uint32), ("pInheritanceInfo", c_void_p))


class MemoryBarrier(Typed):
    """The structure `VkMemoryBarrier` of Vulkan."""

    kind = 46
    _fields_ = chained(("srcAccessMask", c_uint32), ("dstAccessMask", c_uint32))


class BufferCopy(Structure):
    """The structure `VkBufferCopy` of Vulkan."""

    _fields_ = [("srcOffset", c_uint64), ("dstOffset", c_uint64), ("size", c_uint64)]


class FenceCreateInfo(Typed):
    """The structure `VkFenceCreateInfo` of Vulkan."""

    kind = 8
    _fields_ = chained(("flags", c_uint32))


class SubmitInfo(Typed):
    """The structure `VkSubmitInfo` of Vulkan."""

    kind = 4
    _fields_ = chained(
        ("waitSemaphoreCount", c_uint32),
        ("pWaitSemaphores", c_void_p),
        ("pWaitDstStageMask", c_void_p),
        ("commandBufferCount", c_uint32),
        ("pCommandBuffers", POINTER(DISPATCHABLE)),
        ("signalSemaphoreCount", c_uint32),
        ("pSignalSemaphores", c_void_p),
    )


def address_of(structure: Structure) -> int:
    """Return a structure's address for a field `pNext`.

    The structure must outlive the structure with this field.
    """
    return ctypes.addressof(structure)


class ExtensionProperties(Structure):
    """The structure `VkExtensionProperties` of Vulkan."""

    _fields_ = [("extensionName", c_char * 256), ("specVersion", c_uint32)]


class HostMemoryProperties(Typed):
    """The structure `VkPhysicalDeviceExternalMemoryHostPropertiesEXT` of Vulkan."""

    kind = 1000178002
    _fields_ = chained(("minImportedHostPointerAlignment", c_uint64))


class HostPointerProperties(Typed):
    """The structure `VkMemoryHostPointerPropertiesEXT` of Vulkan."""

    kind = 1000178001
    _fields_ = chained(("memoryTypeBits", c_uint32))
