"""The XNNPACK backend, ahead of time.

Takes the nodes that `kvc.schema.backends.xnnpack` lists, in methods that include a
matrix product or a convolution: for other methods, calling the library would cost more
than it saves. `kvc.runtime` translates a partition's block into an XNNPACK subgraph, or
runs it with its own kernels, which compute with XNNPACK's numerics.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.backends.base import Backend, able_nodes
from kvc.compiler.ir import Constant, Method, Node
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.schema.backends.xnnpack import (
    PRODUCTS,
    QUANTIZE,
    QUANTIZED_LINEARS,
    TAIL_NBYTES,
    why_not,
)
from kvc.schema.backends.xnnpack_spatial import INDEXED
from kvc.schema.model import MemoryKind
from kvc.schema.types import Symbol


class Xnnpack(Backend):
    """The backend `xnnpack`: runs float32 graphs with quantized linear layers."""

    name: ClassVar[str] = "xnnpack"

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions.

        No node is taken from a method that has neither a product nor a convolution.
        """
        able = _without_read_indices(method, able_nodes(method, why_not))
        taken = _with_whole_quantization(method, able)
        if any(method.nodes[i].op in PRODUCTS for i in taken):
            return taken
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the memory that XNNPACK needs for each partition.

        The code of a partition is in the partition's block.
        """
        made = Lowered(memory=MemoryKind.OPAQUE, tail_nbytes=TAIL_NBYTES)
        return {name: (made,) * len(some) for name, some in partitions.items()}


def _without_read_indices(method: Method, able: Mapping[int, Node]) -> dict[int, Node]:
    """Return the supported nodes, by index, without some max pools.

    A pool that also returns indices is left out if a node or the method reads them.
    """
    read = {v.id for v in method.results}.union(
        *({value.id for value in node.inputs} for node in method.nodes)
    )
    return {
        i: node
        for i, node in able.items()
        if node.op not in INDEXED or node.outputs[1].id not in read
    }


def _with_whole_quantization(
    method: Method, able: Mapping[int, Node]
) -> frozenset[int]:
    """Return the supported nodes such that quantized rows stay within a partition.

    XNNPACK keeps quantized rows as one value that only its linear operators can read.
    So `quantize_rows` is taken only if all its readers are linear operators, and these
    operators are taken only together with the `quantize_rows` that they read.
    """
    makers = {v.id: i for i, n in able.items() if n.op == QUANTIZE for v in n.outputs}
    outside = {makers[v.id] for v in method.results if v.id in makers}
    fed: dict[int, int] = {}  # quantized linear -> the node that quantizes its rows
    for i, node in enumerate(method.nodes):
        read = {makers[value.id] for value in node.inputs if value.id in makers}
        trio = [makers.get(value.id, -1) for value in node.inputs[:3]]
        linear = i in able and node.op in QUANTIZED_LINEARS
        if linear and len(read) == 1 and trio == [*read] * 3:
            fed[i] = trio[0]
        else:
            outside |= read
    return frozenset(
        i
        for i, node in able.items()
        if (node.op not in QUANTIZED_LINEARS or fed.get(i, i) not in {i} | outside)
        and not (node.op == QUANTIZE and i in outside)
    )
