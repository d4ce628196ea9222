"""Weights in the host's own pages, where device and host share memory."""

import mmap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import vulkan_here

from kvc.compiler import compile_program
from kvc.runtime import load
from kvc.runtime.delegates.vulkan import backend, host_pages
from kvc.runtime.delegates.vulkan.binding import Bound, Places
from kvc.runtime.delegates.vulkan.device import Device
from kvc.runtime.delegates.vulkan.host_pages import HostBuffer, pages_of
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.mirrors import Mirrors
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.memory.arrays import address_of
from kvc.schema.errors import NativeCallFailed, OutOfMemory

PAGE = mmap.PAGESIZE
TOKENS = np.arange(3, 20)[None]


@pytest.fixture
def device() -> Device:
    found = vulkan_here.device()
    if found.separate or not found.imports:
        pytest.skip("the device cannot use pages of the host")
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_decoder.factory()
    path = tmp_path_factory.mktemp("pages") / "tiny.kvc"
    compile_program(spec.model, spec.methods, recipe="vulkan_q8").save(path)
    return path


def answers(path: Path, mode: str = "map") -> tuple[np.ndarray, int]:
    """Return logits, and how many bytes of weights were copied."""
    device = f"vulkan:{vulkan_here.device().found.number}"
    with load(path, mode, device=device) as program, program.session() as session:
        found = [session.prefill(TOKENS[:, :9]), session.decode(TOKENS[:, 9:10])]
        return np.stack(found), program.residency().totals.packed


def test_a_shader_reads_pages_of_the_host(device: Device) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 4 * PAGE), np.float32)
    weight = memory[100:1600]
    weight[:] = np.arange(1500)
    pages = HostBuffer(device, *pages_of([weight], 1 << 20)[0])
    out = np.zeros(1500, np.float32)
    mirrors = Mirrors(device, [], [out])
    places = Places([pages, mirrors.buffer])
    steps = Steps(places.find, partial(np.empty, dtype=np.uint8))
    steps.copy(mirrors.array(out), weight)
    run = Bound(device, mirrors, steps, places, pytest.fail)
    run()
    assert np.array_equal(out, weight)
    weight[7] = -1  # these are the very pages
    run()
    assert out[7] == -1
    del run, steps, places
    pages.close()


@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_nothing_is_copied_and_the_results_are_the_same(
    device: Device, path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, copied = answers(path, mode)
    assert copied == 0
    monkeypatch.setattr(device, "imports", False)
    usual, all_of_it = answers(path, mode)
    assert all_of_it > 0
    assert np.array_equal(own, usual)


def test_pages_that_a_driver_does_not_take_are_copied(
    device: Device, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[HostBuffer] = []

    class Some(HostBuffer):
        """The first is taken, all others are not."""

        def __init__(self, device: Device, low: int, high: int) -> None:
            if made:
                raise NativeCallFailed(library="Vulkan", what="x", reason="refused")
            super().__init__(device, low, high)
            made.append(self)

    monkeypatch.setattr(backend, "HostBuffer", Some)
    monkeypatch.setattr(backend, "_CHUNK", PAGE)
    _, copied = answers(path)
    assert copied > 0
    (first,) = made
    assert not first._free.alive


def test_a_driver_without_a_type_for_the_pages_is_an_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = np.frombuffer(mmap.mmap(-1, PAGE), np.uint8)
    low = address_of(memory)
    monkeypatch.setattr(host_pages, "host_pointer_types", lambda *_: 0)
    with pytest.raises(NativeCallFailed, match="no memory type"):
        HostBuffer(device, low, low + PAGE)


def test_runs_of_pages_hold_their_arrays_and_touch_only_where_they_are_large() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 16 * PAGE), np.uint8)
    base = address_of(memory)
    arrays = [memory[10:20], memory[PAGE - 5 : PAGE + 5], memory[2 * PAGE : 3 * PAGE]]
    far = memory[9 * PAGE + 1 : 9 * PAGE + 2]
    runs = pages_of([far, *arrays, memory[:0]], 1 << 20)
    assert [((a - base) // PAGE, (b - base) // PAGE) for a, b in runs] == [
        (0, 3),
        (9, 10),
    ]
    small = pages_of(arrays, 2 * PAGE)
    assert [((a - base) // PAGE, (b - base) // PAGE) for a, b in small] == [
        (0, 2),
        (2, 3),
    ]


def test_types_of_memory_that_need_a_flush_are_not_for_pages(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = np.frombuffer(mmap.mmap(-1, PAGE), np.uint8)
    low = address_of(memory)
    for kind in device.memory.memoryTypes:
        monkeypatch.setattr(kind, "propertyFlags", kind.propertyFlags & ~4)  # COHERENT
    with pytest.raises(NativeCallFailed, match="no memory type"):
        HostBuffer(device, low, low + PAGE)


def test_more_pages_than_the_driver_allocates_at_once_are_not_taken(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.uint8)
    low = address_of(memory)
    monkeypatch.setattr(device, "largest", 2 * PAGE - 1)
    with pytest.raises(OutOfMemory, match="pages of the host"):
        HostBuffer(device, low, low + 2 * PAGE)
    HostBuffer(device, low, low + PAGE).close()


def placed(base: int, nbytes: int, address: int) -> DeviceBuffer:
    """Return what `Places` sees of a buffer."""
    made = object.__new__(DeviceBuffer)
    made.base, made.nbytes, made.address = base, nbytes, address
    made.bytes = np.zeros(nbytes, np.uint8)
    return made


@pytest.mark.parametrize("turned", [False, True])
def test_an_array_lies_in_the_buffer_that_has_all_of_it(turned: bool) -> None:
    # Loaded one after the other, these share the first page, and the third.
    buffers = [
        placed(PAGE, 3 * PAGE, 1 << 30),
        placed(PAGE, PAGE, 2 << 30),
        placed(3 * PAGE, 2 * PAGE, 3 << 30),
    ]
    if turned:
        buffers.reverse()
    added = Places(buffers[:1])
    for buffer in buffers[1:]:
        added.add(buffer)
    for places in (Places(buffers), added):
        assert places.find(PAGE + 8) == (1 << 30) + 8
        assert places.find(3 * PAGE + 8) == (3 << 30) + 8
