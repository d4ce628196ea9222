"""Commands that are recorded once, and submitted for each call.

In: copies between buffers, and dispatches of shaders. Out: `Commands`, whose `run`
makes one submission and waits for its end.
"""

import ctypes
import os
import struct
from collections.abc import Sequence
from ctypes import byref, c_void_p

from kvc.runtime.delegates.vulkan import structs as s
from kvc.runtime.delegates.vulkan.device import PUSH_NBYTES, Device
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer, when_gone
from kvc.schema.errors import KvcError
from kvc.schema.frozen import frozen

_COMPUTE_STAGE, _TRANSFER_STAGE, _HOST_STAGE = 0x800, 0x1000, 0x4000
_SHADER_ACCESS, _TRANSFER_ACCESS, _HOST_ACCESS = 0x60, 0x1800, 0x6000
_ALL_STAGES = _COMPUTE_STAGE | _TRANSFER_STAGE | _HOST_STAGE
_ALL_ACCESS = _SHADER_ACCESS | _TRANSFER_ACCESS | _HOST_ACCESS
_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT


@frozen
class Dispatch:
    """One run of a shader.

    Attributes:
        shader: name of the shader.
        step: address of the table entry with the operands and numbers of the run's
            step, as shaders use it.
        number: number of the step.
        op: number of the operation within the shader.
        count: the number of results, rows or other units that the shader computes.
        groups: the number of workgroups.
    """

    shader: str
    step: int
    number: int
    op: int
    count: int
    groups: int


@frozen
class Copy:
    """A copy of consecutive bytes to the same offset of another buffer."""

    source: DeviceBuffer
    target: DeviceBuffer
    offset: int
    nbytes: int


class Commands:
    """A recorded command buffer, freed when its last reference is deleted."""

    def __init__(
        self,
        device: Device,
        faults: int,
        before: Sequence[Copy],
        dispatches: Sequence[Dispatch],
        after: Sequence[Copy],
    ) -> None:
        """Record copies, dispatches and copies; each waits until earlier ones end.

        Args:
            device: the device that runs the commands.
            faults: the address where shaders report faults.
            before: copies to the device.
            dispatches: runs of shaders, in order.
            after: copies from the device.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: the driver refuses.
        """
        self._device, functions = device, device.functions
        wanted = s.CommandPoolCreateInfo(queueFamilyIndex=device.family)
        pool = device.make("vkCreateCommandPool", wanted)
        when_gone(self, _destroy, os.getpid(), device, "CommandPool", pool)
        about = s.CommandBufferAllocateInfo(commandPool=pool, commandBufferCount=1)
        self._buffer = c_void_p()
        name = "vkAllocateCommandBuffers"
        functions.call(name, device.handle, byref(about), byref(self._buffer))
        self._fence = s.HANDLE(device.make("vkCreateFence", s.FenceCreateInfo()))
        fence = self._fence.value
        when_gone(self, _destroy, os.getpid(), device, "Fence", fence)
        begin = s.CommandBufferBeginInfo()
        functions.call("vkBeginCommandBuffer", self._buffer, byref(begin))
        for copy in before:
            self._copy(copy)
        self._barrier()
        for dispatch in dispatches:
            self._dispatch(dispatch, faults)
            self._barrier()
        for copy in after:
            self._copy(copy)
        self._barrier()
        functions.call("vkEndCommandBuffer", self._buffer)
        self._submission = s.SubmitInfo(
            commandBufferCount=1, pCommandBuffers=ctypes.pointer(self._buffer)
        )

    def run(self) -> None:
        """Run the commands, and wait for their end.

        No command is running when this method raises, even after an interrupt.

        Raises:
            DeviceLost: the device has stopped working.
            OutOfMemory: there is too little memory.
        """
        try:
            self._device.submit(self._submission, self._fence.value)
            self._device.wait(self._fence)
        except KvcError:
            raise
        except BaseException:
            self._device.settle(self._fence)
            raise

    def _copy(self, copy: Copy) -> None:
        region = s.BufferCopy(copy.offset, copy.offset, copy.nbytes)
        self._device.functions.tell(
            "vkCmdCopyBuffer",
            self._buffer,
            copy.source.handle,
            copy.target.handle,
            1,
            byref(region),
        )

    def _barrier(self) -> None:
        barrier = s.MemoryBarrier(srcAccessMask=_ALL_ACCESS, dstAccessMask=_ALL_ACCESS)
        self._device.functions.tell(
            "vkCmdPipelineBarrier",
            *(self._buffer, _ALL_STAGES, _ALL_STAGES, 0),
            *(1, byref(barrier), 0, None, 0, None),
        )

    def _dispatch(self, dispatch: Dispatch, faults: int) -> None:
        tell, device = self._device.functions.tell, self._device
        tell("vkCmdBindPipeline", self._buffer, 1, device.pipeline(dispatch.shader))
        content = struct.pack(
            "<QQIIII",
            dispatch.step,
            faults,
            dispatch.number,
            dispatch.op,
            dispatch.count,
            0,
        )
        assert len(content) == PUSH_NBYTES, "as the layout of pipelines says"
        tell(
            "vkCmdPushConstants",
            *(self._buffer, device.layout, _STAGE, 0, PUSH_NBYTES, content),
        )
        tell("vkCmdDispatch", self._buffer, dispatch.groups, 1, 1)


def _destroy(process: int, device: Device, kind: str, handle: int) -> None:
    if os.getpid() == process:  # a forked child must not use the parent's device
        device.functions.tell(f"vkDestroy{kind}", device.handle, handle, None)
