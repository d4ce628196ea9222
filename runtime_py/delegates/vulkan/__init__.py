"""The run-time part of the backend `vulkan`: methods and their states on a device."""

from kvc.runtime.delegates.vulkan.backend import Vulkan

__all__ = ["Vulkan"]
