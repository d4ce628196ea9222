"""Small buffers share allocations of the driver, and give them back."""

import gc
import random

import numpy as np
import pytest
import vulkan_here

from kvc.runtime.delegates.vulkan import backend
from kvc.runtime.delegates.vulkan.blocks import (
    BLOCK_NBYTES,
    SMALL_NBYTES,
    Allocation,
    Blocks,
)
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.schema.errors import OutOfMemory


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return the device, with allocations of this test's own."""
    found = vulkan_here.device()
    monkeypatch.setattr(found, "blocks", Blocks(found))
    return found


def buffers(device: Device, count: int, nbytes: int) -> list[DeviceBuffer]:
    return [DeviceBuffer(device, nbytes, "a test", shared=True) for _ in range(count)]


def test_ten_thousand_small_buffers_are_a_few_allocations(device: Device) -> None:
    made = buffers(device, 10_000, 100)
    assert device.blocks.allocations <= 10_000 * 256 // BLOCK_NBYTES + 1
    for number, buffer in enumerate(made):
        buffer.bytes[:] = number % 251
    assert all((b.bytes == i % 251).all() for i, b in enumerate(made))
    assert len({buffer.address for buffer in made}) == len(made)


def test_all_of_it_goes_back(device: Device) -> None:
    made = buffers(device, 50, SMALL_NBYTES) + buffers(device, 2, BLOCK_NBYTES)
    assert device.blocks.allocations > 5
    made[0].close()
    del made
    gc.collect()
    assert device.blocks.allocations == 0


def test_what_a_finalizer_gives_back_within_an_allocation_waits(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = buffers(device, 1, 100)
    make = device.blocks._allocate

    def closing(nbytes: int, kind: int, mapped: bool) -> Allocation:
        first.close()  # as the collector does, wherever it runs
        return make(nbytes, kind, mapped)

    monkeypatch.setattr(device.blocks, "_allocate", closing)
    (large,) = buffers(device, 1, BLOCK_NBYTES)
    assert device.blocks.allocations == 2
    large.close()
    assert device.blocks.allocations == 0


def test_runs_never_overlap_and_join_again() -> None:
    dice = random.Random(1)
    space = Allocation.__new__(Allocation)
    space.nbytes, space.free = 1 << 16, [(0, 1 << 16)]
    held: list[tuple[int, int]] = []
    for _ in range(3000):
        if held and dice.random() < 0.5:
            space.give(*held.pop(dice.randrange(len(held))))
            continue
        nbytes, align = dice.randrange(1, 3000), 1 << dice.randrange(9)
        offset = space.take(nbytes, align)
        if offset is None:
            continue
        assert offset % align == 0
        assert offset + nbytes <= space.nbytes
        assert all(offset >= o + n or o >= offset + nbytes for o, n in held)
        held.append((offset, nbytes))
    free = sum(nbytes for _, nbytes in space.free)
    assert free + sum(nbytes for _, nbytes in held) == space.nbytes
    for run in held:
        space.give(*run)
    assert space.is_free


def test_weights_that_do_not_all_fit_leave_nothing_behind(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {n: np.full(SMALL_NBYTES, n, np.uint8) for n in range(4)}
    monkeypatch.setattr(device, "largest", 2 * SMALL_NBYTES)
    monkeypatch.setattr(device, "imports", False)
    half = backend.Vulkan.__new__(backend.Vulkan)
    half._buffers, half._copied = [], set()
    taken = {n: Held(array) for n, array in arrays.items()}
    upload, calls = backend.upload, []

    def failing(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OutOfMemory(what="a test", nbytes=1)
        upload(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(backend, "upload", failing)
        with pytest.raises(OutOfMemory):
            half._load(device, taken)  # type: ignore[arg-type]
    assert (device.blocks.allocations, half._buffers) == (0, [])
    assert not any(held.freed for held in taken.values())
    found = half._load(device, taken)  # type: ignore[arg-type]
    assert len(half._buffers) == 2
    assert all(held.freed for held in taken.values())
    if not device.separate:
        assert all((found[n] == n).all() for n in arrays)
    for memory in half._buffers:
        memory.close()


class Held:
    """A buffer of a weight."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.freed = content, False

    def array(self) -> np.ndarray:
        return self.content

    def free(self) -> None:
        self.freed = True
