"""The properties of a Vulkan device: kind, memory, and missing features."""

from enum import IntEnum

from kvc.schema.frozen import frozen


class Kind(IntEnum):
    """The kind of a device, VkPhysicalDeviceType."""

    OTHER = 0
    INTEGRATED = 1
    DISCRETE = 2
    VIRTUAL = 3
    SOFTWARE = 4


@frozen
class Found:
    """A device that Vulkan has found.

    Attributes:
        number: N in the device's name `vulkan:N`; devices are numbered in the order in
            which Vulkan's loader lists them.
        name: the driver's name of the device.
        kind: the kind of the device.
        nbytes: the size of the device's own memory in bytes.
        missing: features that kvc needs and the device lacks; empty if kvc can use the
            device.
    """

    number: int
    name: str
    kind: Kind
    nbytes: int
    missing: tuple[str, ...]

    @property
    def what(self) -> str:
        """Return a description of the device."""
        kinds = {Kind.SOFTWARE: "a program of the host", Kind.OTHER: "of another kind"}
        kind = kinds.get(self.kind, self.kind.name.lower())
        return f"{self.name} ({kind}, {self.nbytes / 1e9:.1f} GB)"

    @property
    def why_not(self) -> str:
        """Return the device's missing features as text, "" if none is missing."""
        return f"lacks {', '.join(self.missing)}" if self.missing else ""
