"""The backend `vulkan`, ahead of time.

Takes every node of `kvc.schema.backends.vulkan`, cache writes and attention included,
so that most methods are one partition, with their states on the device. The code of a
partition is its block: `kvc.runtime` binds it to shaders of its own.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.backends.base import Backend, Lowered, Partition
from kvc.compiler.backends.operands import able_nodes
from kvc.compiler.ir import Constant, Method
from kvc.schema.backends.vulkan import why_not
from kvc.schema.types import Symbol


class Vulkan(Backend):
    """Runs float32 graphs with kvc's shaders."""

    name: ClassVar[str] = "vulkan"
    in_place = True

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take."""
        return frozenset(able_nodes(method, why_not))

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return nothing to know: the code is the partition's block."""
        return {name: (Lowered(),) * len(some) for name, some in partitions.items()}
