"""Which device is used, and what is said of one that is lost or too small."""

import ctypes
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import vulkan_here

from kvc.runtime.delegates.vulkan import device as devices
from kvc.runtime.delegates.vulkan.binding import Bound, Places
from kvc.runtime.delegates.vulkan.blocks import SMALL_NBYTES
from kvc.runtime.delegates.vulkan.device import Device, choose
from kvc.runtime.delegates.vulkan.found import Found, Kind
from kvc.runtime.delegates.vulkan.functions import error_of
from kvc.runtime.delegates.vulkan.memory import DeviceBuffer
from kvc.runtime.delegates.vulkan.mirrors import Mirrors
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.schema.errors import DeviceLost, MissingLibrary, OutOfMemory

SOFTWARE = Found(0, "a program", Kind.SOFTWARE, 1 << 30, ())
DISCRETE = replace(SOFTWARE, number=1, kind=Kind.DISCRETE)
OLD = replace(SOFTWARE, number=2, kind=Kind.DISCRETE, missing=("shaderInt64",))


@pytest.fixture
def device() -> Device:
    return vulkan_here.device()


def doubling(device: Device) -> tuple[Bound, np.ndarray]:
    x = np.arange(5, dtype=np.float32)
    mirrors = Mirrors(device, [x], [x])
    places = Places([mirrors.buffer])
    steps = Steps(places.find, lambda nbytes: np.empty(nbytes, np.uint8))
    on_device = mirrors.array(x)
    steps.each(1, [on_device, on_device, on_device], numbers={3: 1.0})
    return Bound(device, mirrors, steps, places, pytest.fail), x


def test_software_is_the_last_resort() -> None:
    assert choose([SOFTWARE, DISCRETE, OLD]) is DISCRETE
    assert choose([OLD, SOFTWARE]) is SOFTWARE


def test_what_a_device_lacks_is_said() -> None:
    with pytest.raises(MissingLibrary, match="a program lacks shaderInt64"):
        choose([OLD])
    with pytest.raises(MissingLibrary, match="finds no device"):
        choose([])


def test_a_device_without_a_queue_that_computes_is_not_used(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.Instance, "family", lambda *_: None)
    found = devices.find_devices()[device.found.number]
    assert found.missing == ("a queue that computes",)


def test_a_device_of_narrow_workgroups_is_not_used(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_WIDEST_GROUP", 1 << 30)
    found = devices.find_devices()[device.found.number]
    assert found.missing == (f"workgroups of {1 << 30}",)


def test_a_system_without_vulkan_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(MissingLibrary, match="apt install libvulkan1"):
        devices.Functions()


def test_a_loader_without_a_driver_is_no_vulkan() -> None:
    error = error_of("vkCreateInstance", -9)
    assert isinstance(error, MissingLibrary)
    assert "no driver" in str(error)
    assert "mesa-vulkan-drivers" in str(error)


def test_a_step_runs_once_for_each_element_and_again_in_each_call(
    device: Device,
) -> None:
    run, x = doubling(device)
    run()
    run()
    assert x.tolist() == [0, 4, 8, 12, 16]


def test_more_memory_than_there_is_is_refused_before_the_driver_is_asked(
    device: Device,
) -> None:
    with pytest.raises(OutOfMemory, match="a test") as caught:
        DeviceBuffer(device, 1 << 50, "a test", shared=True)
    assert caught.value.nbytes == 1 << 50


@pytest.mark.parametrize("result", [-1, -2])
def test_a_driver_without_memory_is_an_error_of_its_kind(
    device: Device, monkeypatch: pytest.MonkeyPatch, result: int
) -> None:
    library = device.functions._library
    monkeypatch.setattr(library, "vkAllocateMemory", lambda *_: result)
    nbytes = 2 * SMALL_NBYTES
    with pytest.raises(OutOfMemory, match=f"{nbytes} bytes for a test"):
        DeviceBuffer(device, nbytes, "a test", shared=True)


@pytest.mark.parametrize("name", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_lost_device_is_an_error_of_its_kind_from_then_on(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run, x = doubling(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.functions._library, name, lambda *_: -4)
        with pytest.raises(DeviceLost) as caught:
            run()
    assert caught.value.what == name
    try:
        with pytest.raises(DeviceLost, match=name):
            run()
        with pytest.raises(DeviceLost):
            DeviceBuffer(device, 64, "a test", shared=True)
        assert x.tolist() == [0, 1, 2, 3, 4]
    finally:
        device._lost = ""
        if name == "vkWaitForFences":  # what was submitted runs all the same
            device.wait(run._commands._fence)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_what_a_signal_raises_waits_for_the_device(
    device: Device, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    run, x = doubling(device)
    library, calls = device.functions._library, []
    wait = library.vkWaitForFences

    def interrupted(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 1:
            raise kind
        return int(wait(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(library, "vkWaitForFences", interrupted)
        with pytest.raises(kind):
            run()
    assert len(calls) > 1
    run()
    assert x.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("name", ["vkQueueSubmit", "vkWaitForFences", "vkResetFences"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_leaves_nothing_running_wherever_it_comes(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    """Before a native call, or after it and before anybody knows of it."""
    run, x = doubling(device)
    library, calls = device.functions._library, []
    call = getattr(library, name)
    idle = library.vkQueueWaitIdle

    def interrupted(*arguments: object) -> int:
        calls.append(name)
        if len(calls) > 1:
            return int(call(*arguments))
        if not before:
            call(*arguments)
        raise KeyboardInterrupt

    def waited(*arguments: object) -> int:
        calls.append("idle")
        return int(idle(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(library, name, interrupted)
        patch.setattr(library, "vkQueueWaitIdle", waited)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert name == "vkWaitForFences" or "idle" in calls
    run()
    assert x.tolist() == [0, 2, 4, 6, 8]


def test_an_interrupt_while_it_settles_changes_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, x = doubling(device)
    library, calls = device.functions._library, []
    submit, idle = library.vkQueueSubmit, library.vkQueueWaitIdle

    def submitted(*arguments: object) -> int:
        submit(*arguments)
        raise KeyboardInterrupt

    def interrupted(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) < 3:
            raise TimeoutError
        return int(idle(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(library, "vkQueueSubmit", submitted)
        patch.setattr(library, "vkQueueWaitIdle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert len(calls) == 3
    run()
    assert x.tolist() == [0, 2, 4, 6, 8]


def test_a_process_may_end_while_a_thread_computes(device: Device) -> None:
    code = """
        import threading
        import numpy as np
        from kvc.runtime.delegates.vulkan.binding import (Bound, Places)
        from kvc.runtime.delegates.vulkan.device import (open_device)
        from kvc.runtime.delegates.vulkan.mirrors import (Mirrors)
        from kvc.runtime.delegates.vulkan.steps import (Steps)

        device, x = open_device(), np.ones(1 << 15, np.float32)
        mirrors = Mirrors(device, [x], [x])
        places = Places([mirrors.buffer])
        steps = Steps(places.find, None)
        on_device = mirrors.array(x)
        for _ in range(20):
            steps.each(1, [on_device, on_device, on_device], numbers={3: 0.0})
        run = Bound(device, mirrors, steps, places, print)
        ran = threading.Event()

        def work():
            while True:
                run()
                ran.set()

        threading.Thread(target=work, daemon=True).start()
        ran.wait()
        del mirrors, places, steps, run
        print("ends")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
