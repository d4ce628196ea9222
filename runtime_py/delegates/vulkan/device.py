"""Vulkan's devices on this machine, and the devices that a process has opened.

In: the functions of Vulkan. Out: `find_devices`, which lists devices and whether kvc
can use them; `open_device`, which returns a device with a queue, its memory types, and
pipelines of kvc's own shaders. This module knows nothing of programs.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_uint32, c_void_p
from functools import cache
from importlib.resources import files
from typing import Final

from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.blocks import Blocks
from kvc.runtime.delegates.vulkan.found import Found, Kind
from kvc.runtime.delegates.vulkan.functions import VULKAN, Functions
from kvc.schema.errors import DeviceLost, KvcError

PUSH_NBYTES: Final = 32
_API: Final = 1 << 22 | 2 << 12  # Vulkan 1.2
_COMPUTE: Final = 2  # VK_QUEUE_COMPUTE_BIT, VK_PIPELINE_BIND_POINT has 1
_STAGE: Final = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_DEVICE_LOCAL, _VISIBLE, _COHERENT = 1, 2, 4
_HOST_PAGES: Final = b"VK_EXT_external_memory_host"
_WIDEST_GROUP: Final = 256  # invocations of matmul.comp


class Instance:
    """Vulkan in this process."""

    def __init__(self, functions: Functions) -> None:
        """Create the instance.

        Raises:
            MissingLibrary: no driver is installed.
        """
        self.functions = functions
        about = s.ApplicationInfo(pApplicationName=b"kvc", apiVersion=_API)
        wanted = s.InstanceCreateInfo(pApplicationInfo=ctypes.pointer(about))
        self.handle = c_void_p()
        functions.call("vkCreateInstance", byref(wanted), None, byref(self.handle))
        count = c_uint32()
        name = "vkEnumeratePhysicalDevices"
        functions.call(name, self.handle, byref(count), None)
        handles = (c_void_p * count.value)()
        functions.call(name, self.handle, byref(count), handles)
        self.devices = [c_void_p(handle) for handle in handles[: count.value]]

    def describe(self, number: int) -> Found:
        """Return the properties of a device."""
        device, tell = self.devices[number], self.functions.tell
        about = s.PhysicalDeviceProperties2()
        tell("vkGetPhysicalDeviceProperties2", device, byref(about))
        properties = about.properties
        memory = s.MemoryProperties()
        tell("vkGetPhysicalDeviceMemoryProperties", device, byref(memory))
        heaps = memory.memoryHeaps[: memory.memoryHeapCount]
        own = [heap.size for heap in heaps if heap.flags & _DEVICE_LOCAL]
        return Found(
            number=number,
            name=properties.deviceName.decode(errors="replace"),
            kind=Kind(min(properties.deviceType, Kind.SOFTWARE)),
            nbytes=max(own, default=0),
            missing=self._missing(number, properties),
        )

    def _missing(
        self, number: int, properties: s.PhysicalDeviceProperties
    ) -> tuple[str, ...]:
        if properties.apiVersion < _API:
            return ("Vulkan 1.2",)
        device = self.devices[number]
        newer = s.Features12()
        older = s.Features11(pNext=s.address_of(newer))
        both = s.PhysicalDeviceFeatures2(pNext=s.address_of(older))
        self.functions.tell("vkGetPhysicalDeviceFeatures2", device, byref(both))
        has = {
            "shaderInt64": both.features.flags[s.SHADER_INT64],
            "storageBuffer16BitAccess": older.storageBuffer16BitAccess,
            "storageBuffer8BitAccess": newer.storageBuffer8BitAccess,
            "shaderInt8": newer.shaderInt8,
            "scalarBlockLayout": newer.scalarBlockLayout,
            "bufferDeviceAddress": newer.bufferDeviceAddress,
            f"workgroups of {_WIDEST_GROUP}": (
                properties.maxComputeWorkGroupInvocations >= _WIDEST_GROUP
            ),
            "a queue that computes": self.family(number) is not None,
        }
        return tuple(name for name, value in has.items() if not value)

    def extensions(self, number: int) -> frozenset[bytes]:
        """Return the extensions of a device."""
        count, name = c_uint32(), "vkEnumerateDeviceExtensionProperties"
        device = self.devices[number]
        self.functions.call(name, device, None, byref(count), None)
        found = (s.ExtensionProperties * count.value)()
        self.functions.call(name, device, None, byref(count), found)
        return frozenset(one.extensionName for one in found[: count.value])

    def family(self, number: int) -> int | None:
        """Return the index of a queue family that can compute; None if none can."""
        count, name = c_uint32(), "vkGetPhysicalDeviceQueueFamilyProperties"
        device = self.devices[number]
        self.functions.tell(name, device, byref(count), None)
        families = (s.QueueFamilyProperties * count.value)()
        self.functions.tell(name, device, byref(count), families)
        able = (i for i, f in enumerate(families) if f.queueFlags & _COMPUTE)
        return next(able, None)


class Device:
    """A device with one queue; used by several threads.

    Attributes:
        found: the device's properties.
        functions: the functions of Vulkan.
        handle: handle of the device.
        family: the queue's family.
        layout: layout of all pipelines: no descriptors, some push constants.
        separate: whether the device's memory is separate from the host's.
        largest: the maximum size of an allocation in bytes.
        blocks: the device's memory allocations.
        imports: whether the device can use pages of the host directly.
    """

    def __init__(self, instance: Instance, number: int) -> None:
        """Open a device that has everything kvc needs.

        Raises:
            OutOfMemory, NativeCallFailed: the driver refuses.
        """
        self.functions, self.found = instance.functions, instance.describe(number)
        self.handle, self._lock = c_void_p(), threading.Lock()
        family = instance.family(number)
        assert family is not None, "the device has been checked"
        self.family = family
        names = instance.extensions(number)
        self._create(instance, number, [_HOST_PAGES] if _HOST_PAGES in names else [])
        queue = c_void_p()
        self.functions.tell(
            "vkGetDeviceQueue", self.handle, self.family, 0, byref(queue)
        )
        self._queue, self._lost = queue, ""
        self.memory = s.MemoryProperties()
        physical = instance.devices[number]
        tell = self.functions.tell
        tell("vkGetPhysicalDeviceMemoryProperties", physical, byref(self.memory))
        pages = s.HostMemoryProperties()
        limits = s.MaintenanceProperties()
        if _HOST_PAGES in names:
            limits.pNext = s.address_of(pages)
        about = s.PhysicalDeviceProperties2(pNext=s.address_of(limits))
        tell("vkGetPhysicalDeviceProperties2", physical, byref(about))
        self.largest = limits.maxMemoryAllocationSize
        self.separate = self.found.kind in (Kind.DISCRETE, Kind.VIRTUAL)
        align = pages.minImportedHostPointerAlignment
        self.imports = 0 < align <= mmap.PAGESIZE
        self.blocks = Blocks(self)
        self._pipelines: dict[str, s.HANDLE] = {}
        push = s.PushConstantRange(_STAGE, 0, PUSH_NBYTES)
        wanted = s.PipelineLayoutCreateInfo(
            pushConstantRangeCount=1, pPushConstantRanges=ctypes.pointer(push)
        )
        self.layout = self._make("vkCreatePipelineLayout", wanted)

    def _create(
        self, instance: Instance, number: int, extensions: Sequence[bytes]
    ) -> None:
        priority = c_float(1)
        queue = s.DeviceQueueCreateInfo(
            queueFamilyIndex=self.family,
            queueCount=1,
            pQueuePriorities=ctypes.pointer(priority),
        )
        newer = s.Features12(
            storageBuffer8BitAccess=1,
            shaderInt8=1,
            scalarBlockLayout=1,
            bufferDeviceAddress=1,
        )
        older = s.Features11(pNext=s.address_of(newer), storageBuffer16BitAccess=1)
        both = s.PhysicalDeviceFeatures2(pNext=s.address_of(older))
        both.features.flags[s.SHADER_INT64] = 1
        wanted = s.DeviceCreateInfo(
            pNext=s.address_of(both),
            queueCreateInfoCount=1,
            pQueueCreateInfos=ctypes.pointer(queue),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=(c_char_p * len(extensions))(*extensions),
        )
        physical = instance.devices[number]
        self.functions.call(
            "vkCreateDevice", physical, byref(wanted), None, byref(self.handle)
        )

    def _make(self, name: str, wanted: ctypes.Structure) -> s.HANDLE:
        made = s.HANDLE()
        self.functions.call(name, self.handle, byref(wanted), None, byref(made))
        return made

    def make(self, name: str, wanted: ctypes.Structure) -> int:
        """Create an object of Vulkan, and return its handle.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: see `Functions.call`.
        """
        return int(self._make(name, wanted).value)

    def pipeline(self, shader: str) -> s.HANDLE:
        """Return the pipeline of a shader of kvc, created on first use."""
        with self._lock:
            if shader not in self._pipelines:
                self._pipelines[shader] = self._compile(shader)
            return self._pipelines[shader]

    def _compile(self, shader: str) -> s.HANDLE:
        code = files(__package__).joinpath("shaders", f"{shader}.spv").read_bytes()
        wanted = s.ShaderModuleCreateInfo(codeSize=len(code), pCode=code)
        module = self._make("vkCreateShaderModule", wanted)
        stage = s.ShaderStageCreateInfo(stage=_STAGE, module=module, pName=b"main")
        pipeline = s.ComputePipelineCreateInfo(
            stage=stage, layout=self.layout, basePipelineIndex=-1
        )
        made, name = s.HANDLE(), "vkCreateComputePipelines"
        try:
            self.functions.call(
                name, self.handle, 0, 1, byref(pipeline), None, byref(made)
            )
        finally:
            self.functions.tell("vkDestroyShaderModule", self.handle, module, None)
        return made

    def memory_type(self, allowed: int, *, visible: bool, device: bool) -> int | None:
        """Return the index of a memory type; None if no type fits.

        Args:
            allowed: a bit mask of the allowed types.
            visible: whether the host must be able to access the memory.
            device: whether the memory must be local to the device.
        """
        flags = visible * (_VISIBLE | _COHERENT) | device * _DEVICE_LOCAL
        kinds = self.memory.memoryTypes[: self.memory.memoryTypeCount]
        for number, kind in enumerate(kinds):
            if allowed >> number & 1 and kind.propertyFlags & flags == flags:
                return number
        return None

    def heap_nbytes(self, memory_type: int) -> int:
        """Return the size in bytes of a memory type's heap, free and used bytes."""
        heap = self.memory.memoryTypes[memory_type].heapIndex
        return int(self.memory.memoryHeaps[heap].size)

    def submit(self, submission: s.SubmitInfo, fence: int) -> None:
        """Submit recorded commands to the queue.

        Raises:
            DeviceLost: the device has stopped working; every later call raises
                DeviceLost, too.
            OutOfMemory: there is too little memory.
        """
        self.check()
        with self._lock:
            self._watched("vkQueueSubmit", self._queue, 1, byref(submission), fence)

    def wait(self, fence: s.HANDLE) -> None:
        """Wait until the commands of a fence have ended, and reset the fence.

        Python handles signals during the wait. If a signal handler raises, the wait
        continues, and the exception is raised afterwards. So the caller can use the
        commands' memory again, whether this method returns or raises.

        Raises:
            DeviceLost: the device has stopped working.
        """
        interrupt: BaseException | None = None
        while True:
            try:
                if not self._watched(
                    "vkWaitForFences", self.handle, 1, byref(fence), 1, 50_000_000
                ):
                    break
            except KvcError:
                raise
            except BaseException as error:
                interrupt = error
        self.functions.call("vkResetFences", self.handle, 1, byref(fence))
        if interrupt is not None:
            raise interrupt

    def settle(self, fence: s.HANDLE) -> None:
        """Wait for all submitted work, and reset a fence for the next run.

        For callers that do not know whether their commands were submitted. Interrupts
        during the wait are ignored.

        Raises:
            DeviceLost: the device has stopped working.
        """
        while True:
            try:
                with self._lock:
                    self._watched("vkQueueWaitIdle", self._queue)
                if self._watched("vkGetFenceStatus", self.handle, fence) == 0:
                    self.functions.call("vkResetFences", self.handle, 1, byref(fence))
            except KvcError:
                raise
            except BaseException:  # the caller raises the first one
                continue
            return

    def _watched(self, name: str, *arguments: object) -> int:
        try:
            return self.functions.call(name, *arguments)
        except DeviceLost as error:
            self._lost = error.what
            raise

    def check(self) -> None:
        """Check that the device still works.

        Raises:
            DeviceLost: the device has stopped working.
        """
        if self._lost:
            raise DeviceLost(backend="vulkan", what=self._lost)


@cache
def _functions() -> Functions:
    return Functions()


# By process: a forked child has none of its parent's threads or devices.
_instances: dict[int, Instance] = {}
_devices: dict[tuple[int, int], Device] = {}
_opening = threading.Lock()


def _instance() -> Instance:
    own = os.getpid()
    if own not in _instances:
        _instances[own] = Instance(_functions())
    return _instances[own]


def find_devices() -> Sequence[Found]:
    """Return the devices that Vulkan finds.

    Raises:
        MissingLibrary: Vulkan is not installed.
    """
    with _opening:
        instance = _instance()
        return [instance.describe(number) for number in range(len(instance.devices))]


def choose(found: Sequence[Found]) -> Found:
    """Return the default device.

    A device that is emulated in software is returned only if there is no hardware
    device.

    Raises:
        MissingLibrary: no device can be used.
    """
    order = (Kind.DISCRETE, Kind.INTEGRATED, Kind.VIRTUAL, Kind.OTHER, Kind.SOFTWARE)
    usable = [device for device in found if not device.missing]
    if not usable:
        told = [f"{device.name} {device.why_not}" for device in found]
        reason = "; ".join(told) or "it finds no device"
        raise VULKAN.missing(reason)
    return min(usable, key=lambda device: order.index(device.kind))


def open_device(number: int | None = None) -> Device:
    """Return the device with a number, or the default device for None.

    A device is opened once in a process, on first use.

    Raises:
        MissingLibrary: Vulkan is not installed, or no device can be used.
        OutOfMemory, NativeCallFailed: the driver refuses.
    """
    found = find_devices()
    if number is None:
        number = choose(found).number
    with _opening:
        key = os.getpid(), number
        if key not in _devices:
            _devices[key] = Device(_instance(), number)
        return _devices[key]
