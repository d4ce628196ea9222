"""What Vulkan tells of a device: its kind, its memory, what it lacks."""

from enum import IntEnum

from kvc.schema.frozen import frozen


class Kind(IntEnum):
    """VkPhysicalDeviceType."""

    OTHER = 0
    INTEGRATED = 1
    DISCRETE = 2
    VIRTUAL = 3
    SOFTWARE = 4


@frozen
class Found:
    """A device that Vulkan has found.

    Attributes:
        number: how `vulkan:N` names it, in the order of the loader.
        name: what the driver calls it.
        kind: what it is.
        nbytes: of its own memory.
        missing: what kvc needs and it does not have; nothing where kvc can use it.
    """

    number: int
    name: str
    kind: Kind
    nbytes: int
    missing: tuple[str, ...]

    @property
    def what(self) -> str:
        """Say what it is."""
        kinds = {Kind.SOFTWARE: "a program of the host", Kind.OTHER: "of another kind"}
        kind = kinds.get(self.kind, self.kind.name.lower())
        return f"{self.name} ({kind}, {self.nbytes / 1e9:.1f} GB)"

    @property
    def why_not(self) -> str:
        """Say what it lacks, "" for nothing."""
        return f"lacks {', '.join(self.missing)}" if self.missing else ""
