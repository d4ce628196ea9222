"""Whether Vulkan can be used here, and what to install where it cannot.

`KVC_REQUIRE_VULKAN=1` says that it must be: then tests of it fail instead of being
skipped, so that nobody takes the reference for a device.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvc.runtime.delegates.vulkan.device import Device, open_device
from kvc.schema.errors import MissingLibrary

REQUIRED = os.environ.get("KVC_REQUIRE_VULKAN") == "1"


def device() -> Device:
    """Return the device of these tests; skip the one that runs where there is none."""
    try:
        return open_device()
    except MissingLibrary as error:
        if REQUIRED:
            raise
        pytest.skip(f"Vulkan is not here: {error}")


def is_here() -> bool:
    """Tell whether there is a device; raise where there must be one."""
    try:
        open_device()
    except MissingLibrary:
        if REQUIRED:
            raise
        return False
    return True


@contextmanager
def memory(*, separate: bool) -> Iterator[Device]:
    """Treat the device's memory as apart from the host's, or as shared with it."""
    found = device()
    was, found.separate = found.separate, separate
    try:
        yield found
    finally:
        found.separate = was
