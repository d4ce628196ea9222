"""The backend `vulkan`, ahead of time; `kvc.runtime` runs it with kvc's own shaders."""

from typing import ClassVar

from kvc.compiler.backends.base import BlockBackend
from kvc.schema.backends import vulkan
from kvc.schema.backends.operands import WhyNot


class Vulkan(BlockBackend):
    """Runs float32 and int8 graphs with kvc's shaders; keeps states on the device."""

    name: ClassVar[str] = "vulkan"

    @property
    def supported(self) -> WhyNot:
        """Return the function that says why kvc's shaders do not support a node."""
        return vulkan.why_not
