"""Device copies of host memory that a partition reads or writes.

In: arrays of the host that are inputs and outputs of a partition. Out: arrays of the
same shapes and strides over a buffer of the device, and the copies of their elements
before and after a run. Arrays that overlap on the host overlap on the device, too. If
the device's memory is separate from the host's, elements are copied through a staging
buffer, which host and device can both access.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.delegates.vulkan.commands import Copy
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.memory.arenas import align_up
from kvc.runtime.memory.arrays import Array, address_of, copy_into, place_of
from kvc.schema.frozen import frozen

FAULTS_NBYTES = 64
_NO_FAULT = 0xFFFFFFFF


@frozen
class _Region:
    """A part of the host's memory, and whether the part is read or written."""

    low: int
    high: int
    read: bool
    written: bool


class Mirrors:
    """The device arrays of one prepared partition.

    Attributes:
        buffer: the buffer that shaders use.
        before, after: copies that commands make before and after a run.
        read_nbytes, written_nbytes: bytes of the host's arrays that each run copies.
    """

    def __init__(
        self, device: Device, read: Sequence[Array], written: Sequence[Array]
    ) -> None:
        """Allocate device memory for the host's arrays.

        Args:
            device: the device.
            read: arrays that are copied to the device before a run.
            written: arrays that are copied from the device after a run.

        Raises:
            OutOfMemory, DeviceLost, NativeCallFailed: memory cannot be allocated.
        """
        own = [a for a in read if a.size]
        made = list({place_of(a): a for a in written if a.size}.values())
        regions = _regions(own, made)
        offset, starts = 0, dict[_Region, int]()
        order = sorted(regions, key=lambda r: (r.written, not r.read))
        inputs = sum(region.read and not region.written for region in order)
        both = sum(region.read for region in order)
        ends = [0]
        faults = 0
        for number, region in enumerate(order):
            if number == inputs:
                faults, offset = _next(offset, 0), _next(offset, 0) + FAULTS_NBYTES
            starts[region] = _next(offset, region.low)
            offset = starts[region] + region.high - region.low
            ends.append(offset)
        if inputs == len(order):
            faults, offset = _next(offset, 0), _next(offset, 0) + FAULTS_NBYTES
        uploaded = max(faults + FAULTS_NBYTES, ends[both])
        what = "memory that a Vulkan device reads and writes in a call"
        shared = not device.separate
        self.buffer = staging = DeviceBuffer(device, offset, what, shared=shared)
        self.before: Sequence[Copy] = ()
        self.after: Sequence[Copy] = ()
        if not shared:
            staging = DeviceBuffer(device, offset, what, shared=True, local=False)
            self.before = [Copy(staging, self.buffer, 0, uploaded)]
            self.after = [Copy(self.buffer, staging, faults, offset - faults)]
        self._staging, self._starts, self._faults = staging, starts, faults
        self._in = [(self._over(staging, array), array) for array in own]
        self._out = [(array, self._over(staging, array)) for array in made]
        self._fault = np.ndarray(2, np.uint32, staging.bytes.data, faults)
        self._facts = np.ndarray(4, np.int64, staging.bytes.data, faults + 8)
        self.read_nbytes = sum(array.nbytes for array in own)
        self.written_nbytes = sum(array.nbytes for array in made)

    @property
    def faults(self) -> int:
        """Return the address where shaders report faults."""
        return self.buffer.address + self._faults

    def array(self, array: Array) -> Array:
        """Return the device array for an array of the host."""
        if not array.size:
            return array
        return self._over(self.buffer, array)

    def copy_in(self) -> None:
        """Copy the host's inputs to the memory that commands read."""
        for target, source in self._in:
            copy_into(target, source)
        self._fault[0] = _NO_FAULT

    def fault(self) -> tuple[int, int, Sequence[int]] | None:
        """Return the fault that shaders reported in the last run, or None without one.

        Returns:
            The number of the failed step, the kind of fault, and numbers that describe
            it.
        """
        step, kind = self._fault.tolist()
        return None if step == _NO_FAULT else (step, kind, self._facts.tolist())

    def copy_out(self) -> None:
        """Copy results to the host's arrays."""
        for target, source in self._out:
            copy_into(target, source)

    def _over(self, buffer: DeviceBuffer, array: Array) -> Array:
        at = address_of(array)
        region, start = next(
            (r, s) for r, s in self._starts.items() if r.low <= at < r.high
        )
        offset, memory = start + at - region.low, buffer.bytes.data
        return np.ndarray(array.shape, array.dtype, memory, offset, array.strides)


def _next(offset: int, address: int) -> int:
    """Return the first offset, from `offset` on, that is aligned like an address."""
    return align_up(offset) + address % 64


def _regions(read: Sequence[Array], written: Sequence[Array]) -> list[_Region]:
    """Return the parts of memory that arrays cover, ascending and without overlap."""
    runs = [(*_run(array), True, False) for array in read]
    runs += [(*_run(array), False, True) for array in written]
    found: list[_Region] = []
    for low, high, reads, writes in sorted(runs):
        if found and low < found[-1].high:
            last = found.pop()
            low, high = last.low, max(high, last.high)
            reads, writes = reads or last.read, writes or last.written
        found.append(_Region(low, high, reads, writes))
    return found


def _run(array: Array) -> tuple[int, int]:
    """Return the start and end address of an array's bytes."""
    spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = address_of(array) + sum(span for span in spans if span < 0)
    high = address_of(array) + sum(span for span in spans if span > 0)
    return low, high + array.itemsize
