"""The backend `mlx`, ahead of time: takes the operators that MLX supports."""

from typing import ClassVar

from kvc.compiler.backends.base import BlockBackend, able_nodes
from kvc.compiler.ir import Method
from kvc.schema.backends import mlx
from kvc.schema.backends.operands import WhyNot
from kvc.schema.ops import OPS, Aliasing


class Mlx(BlockBackend):
    """Takes whole methods, with the states that they write whole or by rows."""

    name: ClassVar[str] = "mlx"

    @property
    def supported(self) -> WhyNot:
        """Return the function that says why MLX does not support a node."""
        return mlx.why_not

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions.

        A node that writes is taken only if it writes into a whole state or input, not
        into a view: MLX's arrays are immutable, so no part of an array can be written
        in place.
        """
        whole = {value.id for value in (*method.inputs, *method.bound)}
        return frozenset(
            index
            for index, node in able_nodes(method, self.supported).items()
            if OPS[node.op].aliasing is not Aliasing.UPDATE
            or node.inputs[0].id in whole
        )
