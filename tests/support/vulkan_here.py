"""Tell whether Vulkan can be used on this machine, and what to install if it cannot.

`KVC_REQUIRE_VULKAN=1` says that it must be usable. Then tests that need it fail and are
not skipped, so that nobody takes results of the reference for those of a device.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvc.runtime.delegates.vulkan.device import Device, find_devices, open_device
from kvc.schema.errors import MissingLibrary

REQUIRED = os.environ.get("KVC_REQUIRE_VULKAN") == "1"


def device() -> Device:
    """Return the device of these tests; skip the running test if there is none."""
    try:
        return open_device()
    except MissingLibrary as error:
        if REQUIRED:
            raise
        pytest.skip(f"Vulkan is not here: {error}")


def is_here() -> bool:
    """Tell whether there is a Vulkan device.

    Raise the library's error if there is none but `KVC_REQUIRE_VULKAN` is 1.
    """
    try:
        open_device()
    except MissingLibrary:
        if REQUIRED:
            raise
        return False
    return True


@contextmanager
def right_code() -> Iterator[None]:
    """Skip a test whose comparison fails where the driver is known to be wrong.

    llvmpipe with LLVM 15 miscompiles some of these shaders on processors with AMX: the
    same ones are right on all others, and in its code for SSE 4.1.
    """
    try:
        yield
    except AssertionError:
        if REQUIRED or not _miscompiles():
            raise
        pytest.skip("llvmpipe with LLVM 15 computes this wrongly on this processor")


def _miscompiles() -> bool:
    cpu = Path("/proc/cpuinfo")
    amx = cpu.exists() and " amx_tile" in cpu.read_text()
    return amx and any("LLVM 15" in found.what for found in find_devices())


@contextmanager
def memory(*, separate: bool) -> Iterator[Device]:
    """Yield the device as one with memory of its own, or as sharing the host's."""
    found = device()
    was, found.separate = found.separate, separate
    try:
        yield found
    finally:
        found.separate = was
