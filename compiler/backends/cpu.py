"""The native backend `cpu`, ahead of time.

Takes every node of `kvc.schema.backends.cpu`, cache writes and attention included, so
that most methods are one part and one native call. The code of a part is its block:
`kvc.runtime` binds it to kernels of its own.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.backends.base import Backend, Lowered, Partition
from kvc.compiler.backends.operands import operands_of
from kvc.compiler.ir import Constant, Method
from kvc.recipes import Option
from kvc.schema.backends.cpu import why_not
from kvc.schema.errors import BadOption
from kvc.schema.types import Symbol


class Cpu(Backend):
    """Runs float32 and int8 graphs with kvc's own kernels."""

    name: ClassVar[str] = "cpu"
    in_place = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        for option, found in options.items():
            expected, shown = "no options", repr(found)
            raise BadOption(
                backend=self.name, option=option, expected=expected, found=shown
            )

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take."""
        constants = {value.id for value, _ in method.constants}
        return frozenset(
            index
            for index, node in enumerate(method.nodes)
            if not why_not(
                node.op,
                operands_of(node, constants),
                [value.type for value in node.outputs],
            )
        )

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return nothing to know: the code is the part's block."""
        return {name: (Lowered(),) * len(parts) for name, parts in partitions.items()}
