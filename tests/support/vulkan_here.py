"""Tell whether Vulkan can be used on this machine, and what to install if it cannot.

`KVC_REQUIRE_VULKAN=1` says that it must be usable. Then tests that need it fail and are
not skipped, so that nobody takes results of the reference for those of a device.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvc.runtime.delegates.vulkan.device import Device, open_device
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
def memory(*, separate: bool) -> Iterator[Device]:
    """Yield the device as one with memory of its own, or as sharing the host's."""
    found = device()
    was, found.separate = found.separate, separate
    try:
        yield found
    finally:
        found.separate = was
