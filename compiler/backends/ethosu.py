"""The backend of Arm's Ethos-U NPUs, ahead of time.

Takes what `kvc.schema.backends.ethosu` lists, with the states that it writes whole. All
values become int8: the payload of a partition is their grids. `kvc.runtime` makes a
TOSA graph of the code, and a command stream of that.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.backends.base import Backend, Lowered, Partition
from kvc.compiler.backends.operands import able_nodes
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Constant, Method
from kvc.schema.backends.ethosu import why_not
from kvc.schema.backends.grids import Stored, asymmetric, write_grids
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol

_COPY = "aten::copy"


class EthosU(Backend):
    """Runs fixed shapes of int8 values."""

    name: ClassVar[str] = "ethosu"
    in_place = True
    fixed_shapes = True
    calibrated = True

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take: of copies, those over all of a state or input."""
        whole = {value.id for value in (*method.inputs, *method.bound)}
        return frozenset(
            i
            for i, node in able_nodes(method, why_not).items()
            if node.op != _COPY or node.inputs[0].id in whole
        )

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the views that TOSA has no operator for, or not of such values."""
        able = able_nodes(method, why_not)
        return frozenset(
            i
            for i, node in enumerate(method.nodes)
            if i not in able and OPS[node.op].aliasing is Aliasing.VIEW
        )

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the grids of each partition.

        Raises:
            RangeUnbounded: a value becomes infinite.
        """
        return {
            name: [Lowered(payload=_payload(one)) for one in some]
            for name, some in partitions.items()
        }


def _payload(partition: Partition) -> bytes:
    numbers = value_numbers(partition.graph)
    return write_grids(
        {
            numbers[value]: asymmetric(found, Stored.INT8)
            for value, found in partition.ranges.items()
        }
    )
