"""The run-time part of the backend `vulkan`: a device, or reference kernels.

In: a block that `kvc.schema.backends.vulkan` supports. Out: a handle that binds the
block to steps of shaders on one device. Without Vulkan, the handle runs the block with
the reference.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.operands import refuse_payload, taken_block
from kvc.runtime.delegates.partition_memory import place_outputs
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.vulkan.binding import Binder, Bound, Places
from kvc.runtime.delegates.vulkan.device import Device, find_devices, open_device
from kvc.runtime.delegates.vulkan.found import Kind
from kvc.runtime.delegates.vulkan.functions import VULKAN
from kvc.runtime.delegates.vulkan.host_pages import HostBuffer, pages_of
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.mirrors import Mirrors
from kvc.runtime.delegates.vulkan.states import DeviceOwner, DeviceState
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.execution.delegate import (
    Delegate,
    FoundDevice,
    Handle,
    Options,
    SoftwareDevice,
    Workspace,
    library_unless,
)
from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arenas import Within, align_up
from kvc.runtime.memory.arrays import Array, copy_into
from kvc.runtime.states.owner import Buffer, Group, InitialValue, Owner
from kvc.schema.backends.vulkan import why_not
from kvc.schema.errors import NativeCallFailed, OutOfMemory
from kvc.schema.graph import Caller
from kvc.schema.model import Block
from kvc.schema.model import Delegate as Partition

_CHUNK: Final = 1 << 30  # bytes of weights in one buffer


class Vulkan(Delegate):
    """Runs whole methods, with their states, on a device."""

    runs_on = "a GPU with Vulkan"
    needs = VULKAN

    def __init__(self, options: Options) -> None:
        """Check all partitions, then open the device unless the reference is requested.

        Raises:
            BadProgram: a partition is not for this backend.
            MissingLibrary: there is no device, and `options.reference` is False.
        """
        self._options = options
        blocks = [
            _checked_block(options, partition)
            for partition in options.program.delegates
            if partition.backend == "vulkan"
        ]
        # A requested device is not replaced by the reference.
        asked = options.reference is None and options.device is not None
        reference = False if asked else options.reference
        find = partial(_open, options.device)
        self._device = library_unless(reference, find, "vulkan")
        self._weights: dict[int, Array] = {}
        self._buffers: list[DeviceBuffer] = []
        self._held: list[FreeableBuffer] = []
        self._copied: set[int] = set()
        self._loading = threading.Lock()
        nbytes = max((block.graph.scratch_nbytes for block in blocks), default=0)
        self._scratch_nbytes = nbytes

    @staticmethod
    def check_library() -> None:
        """Check that a device can be opened.

        Raises:
            MissingLibrary: there is no device.
        """
        open_device()

    @staticmethod
    def devices() -> Sequence[FoundDevice]:
        """Return the devices that Vulkan finds; see `Delegate.devices`."""
        return [
            FoundDevice(
                f"vulkan:{each.number}",
                each.what,
                each.why_not,
                each.kind is Kind.SOFTWARE,
            )
            for each in find_devices()
        ]

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Return the handle of a checked partition; see `Delegate`."""
        program = self._options.program
        method = program.methods[partition.method]
        block = method.blocks[partition.block]
        if self._device is None:
            return ReferenceHandle(program, partition, data)
        buffers = {
            number: data[program.names[number].name] for number in partition.names
        }
        self._held += buffers.values()
        return VulkanHandle(method.name, block, buffers, self, self._device)

    def owner(
        self, groups: Sequence[Group], sizes: Mapping[str, int], initial: InitialValue
    ) -> Owner | None:
        """Return an owner that keeps states in device memory; see `Delegate.owner`."""
        if self._device is None:
            return None
        return DeviceOwner(self._device, groups, sizes, initial)

    def load(self, buffers: Mapping[int, FreeableBuffer]) -> None:
        """Load weights into memory that the device reads; load each weight once.

        If device and host share memory and the driver accepts the host's pages, the
        device reads these pages; otherwise it reads copies.

        Raises:
            OutOfMemory: the weights do not fit.
            DigestMismatch, FileChanged: the weights are damaged.
        """
        assert self._device is not None, "handles of the reference load nothing"
        with self._loading:
            missing = {n: b for n, b in buffers.items() if n not in self._weights}
            if missing:
                self._weights |= self._load(self._device, missing)

    def _load(
        self, device: Device, buffers: Mapping[int, FreeableBuffer]
    ) -> dict[int, Array]:
        arrays = {number: buffer.array() for number, buffer in buffers.items()}
        imported = _imported(device, arrays)
        if imported is not None:
            self._buffers += imported
            return arrays
        found: dict[int, Array] = {}
        made: list[DeviceBuffer] = []
        try:
            for numbers in _chunks(arrays, device.largest):
                found |= _load_chunk(device, {n: arrays[n] for n in numbers}, made)
        except BaseException:
            for memory in made:
                memory.close()
            raise
        self._buffers += made
        self._copied |= found.keys()
        for buffer in buffers.values():
            buffer.free()
        return found

    def weight(self, number: int) -> Array:
        """Return the array that represents a loaded weight."""
        return self._weights[number]

    def memory(self, workspace: Workspace) -> Sequence[DeviceBuffer]:
        """Return all buffers that the partitions of a context use on the device.

        The context's scratch memory is the first; the buffers of weights follow.
        """
        device = self._device
        assert device is not None, "handles of the reference ask for nothing"
        what, shared = "scratch memory on a Vulkan device", not device.separate
        make = partial(DeviceBuffer, device, self._scratch_nbytes, what, shared=shared)
        return [workspace.own(self, make), *self._buffers]

    def packed(self) -> Mapping[str, int]:
        """Return the number of bytes copied to the device for each weight, by name."""
        names = self._options.program.names
        return {names[n].name: self._weights[n].nbytes for n in sorted(self._copied)}

    def close(self) -> None:
        """Free the buffers of weights, then the host's pages that some of them use."""
        self._weights.clear()
        self._copied.clear()
        for memory in self._buffers:
            memory.close()
        for buffer in self._held:
            buffer.free()
        self._buffers.clear()
        self._held.clear()


class VulkanHandle(Handle):
    """A partition that runs on a device."""

    def __init__(
        self,
        method: str,
        block: Block,
        buffers: Mapping[int, FreeableBuffer],
        backend: Vulkan,
        device: Device,
    ) -> None:
        self._method, self._block, self._buffers = method, block, buffers
        self._backend, self._device = backend, device

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the partition's code, and record its commands; see `Handle.prepare`."""
        self.pack()
        graph, device = self._block.graph, self._device
        written = [*outputs, *self._lent_for_writing(inputs)]
        mirrors = Mirrors(device, _on_host(inputs), _on_host(written))
        scratch, *weights = self._backend.memory(workspace)
        states = {buffer.memory for buffer in inputs if isinstance(buffer, DeviceState)}
        places = Places([mirrors.buffer, scratch, *weights, *states])
        steps = Steps(places.find, partial(_temporary, device, places))
        ins, outs = (
            [_inside(buffer, mirrors) for buffer in some] for some in (inputs, outputs)
        )
        memory = GraphMemory(
            scratch=Within(scratch.bytes),
            constant=self._backend.weight,
            given=place_outputs(graph, sizes, outs),
            callers=dict(zip(graph.inputs, ins, strict=True)),
        )
        binder = Binder(self._method, self._block, sizes, memory, steps)
        binder.bind(outs)
        return Bound(device, mirrors, steps, places, binder.fail_at)

    def _lent_for_writing(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        graph = self._block.graph
        accesses = (a for update in self._block.updates for a in update.accesses)
        roots = {access.root for access in accesses}
        roots |= {graph.root_of(value) for value in graph.outputs}
        lent = [(v, b) for v, b in zip(graph.inputs, inputs, strict=True) if v in roots]
        return [b for v, b in lent if isinstance(graph.values[v].storage, Caller)]

    def pack(self) -> None:
        """Load the partition's weights to the device."""
        self._backend.load(self._buffers)

    def close(self) -> None:
        """Do nothing: the backend frees the weights, after the buffers over them."""


def _open(number: int | None) -> Device:
    """Open the device with a number, or the default device for None.

    Warn once if the default device is emulated in software.
    """
    device = open_device(number)
    if number is None and device.found.kind is Kind.SOFTWARE and not _told:
        _told.append(device.found.name)
        target = f"vulkan:{device.found.number}"
        text = (
            f"the only Vulkan device is {device.found.what}, which is slow; "
            f"name it with load(..., device='{target}') or --device {target}, and this "
            "is not said"
        )
        warnings.warn(text, SoftwareDevice, stacklevel=2)
    return device


_told: list[str] = []


def _checked_block(options: Options, partition: Partition) -> Block:
    """Return the block of a partition, after checking that the backend supports it.

    Raises:
        BadProgram: the block is not for this backend.
    """
    refuse_payload(options.program, options.path, partition)
    return taken_block(options.program, options.path, partition, why_not)


def _chunks(arrays: Mapping[int, Array], largest: int) -> Iterator[list[int]]:
    """Yield groups of arrays, by their ids, that fit one buffer of the device each.

    A group has at most `largest` bytes, or has a single array.
    """
    chunk: list[int] = []
    nbytes = 0
    for number, array in arrays.items():
        if chunk and nbytes + array.nbytes > min(largest, _CHUNK):
            yield chunk
            chunk, nbytes = [], 0
        chunk.append(number)
        nbytes = align_up(nbytes + array.nbytes)
    if chunk:
        yield chunk


def _imported(device: Device, arrays: Mapping[int, Array]) -> list[DeviceBuffer] | None:
    """Return buffers over the host's pages of arrays; None if they must be copied."""
    if device.separate or not device.imports:
        return None
    made: list[DeviceBuffer] = []
    try:
        for low, high in pages_of([*arrays.values()], min(device.largest, _CHUNK)):
            made.append(HostBuffer(device, low, high))
    except (NativeCallFailed, OutOfMemory):
        for memory in made:
            memory.close()
        return None
    return made


def _load_chunk(
    device: Device, arrays: Mapping[int, Array], made: list[DeviceBuffer]
) -> dict[int, Array]:
    """Copy weights to one new buffer, and append the buffer to `made`.

    Returns:
        The arrays that represent the weights on the device, by the weights' ids.

    Raises:
        OutOfMemory: the weights do not fit.
    """
    offsets, end = dict[int, int](), 0
    for number, array in arrays.items():
        offsets[number] = end
        end = align_up(end + array.nbytes)
    what, shared = "weights on a Vulkan device", not device.separate
    memory = DeviceBuffer(device, end, what, shared=shared)
    made.append(memory)
    found = {
        n: np.ndarray(like.shape, like.dtype, memory.bytes.data, offsets[n])
        for n, like in arrays.items()
    }
    upload(device, memory, [(found[n], array) for n, array in arrays.items()])
    return found


def upload(
    device: Device, memory: DeviceBuffer, pairs: Sequence[tuple[Array, Array]]
) -> None:
    """Copy arrays of the host to arrays of the device.

    Args:
        device: the device.
        memory: the buffer with the arrays of the device.
        pairs: each array of the device, with the array of the host to copy there.
    """
    for target, source in pairs:
        if memory.shared:
            copy_into(target, source)
            continue
        mirrors = Mirrors(device, [source], [])
        places = Places([memory, mirrors.buffer])
        steps = Steps(places.find, partial(_temporary, device, places))
        steps.copy(target, mirrors.array(source))
        Bound(device, mirrors, steps, places, _cannot_fail)()


def _cannot_fail(step: int, fault: int, facts: Sequence[int]) -> NoReturn:
    raise AssertionError(f"step {step} refuses to copy: {fault}, {facts}")


def _temporary(device: Device, places: Places, nbytes: int) -> Array:
    what, shared = "scratch memory on a Vulkan device", not device.separate
    made = DeviceBuffer(device, nbytes, what, shared=shared)
    places.add(made)
    return made.bytes


def _on_host(buffers: Sequence[Buffer]) -> list[Array]:
    return [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]


def _inside(buffer: Buffer, mirrors: Mirrors) -> Array:
    """Return the device array for an input or output of a partition."""
    if isinstance(buffer, DeviceState):
        return buffer.array
    assert isinstance(buffer, np.ndarray), "no other backend owns its operands"
    return mirrors.array(buffer)
