"""Choose the grids of what an Ethos-U computes.

In: a partition with ranges, and how its values are stored. Out: its payload. Of int8,
some values are int16 all the same, whose small numbers count beside their large ones:
what norms read, with the sums it comes from; the angles of rotary embeddings; products
of two tensors, such as what a gate lets through; and what a linear layer gives to
others, such as logits. int16 reach twice as far as the samples did: a bit of 16 costs
nothing that can be measured, a number that is cut off may.
"""

from typing import Final

from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Method, Node
from kvc.compiler.ir.partitions import Partition
from kvc.schema.backends.ethosu import ADDITIONS, ROTARY, WRITERS
from kvc.schema.backends.grids import Grid, Stored, asymmetric, symmetric, write_grids
from kvc.schema.calibration import Range
from kvc.schema.ops import OPS, Aliasing

_NORM, _PRODUCT, _LINEAR = "aten::rms_norm", "aten::mul.Tensor", "aten::linear"
_FARTHER: Final = 2.0  # than the samples
_NEVER: Final = 2.0**-20  # the scale of what is 0 in all samples: it coarsens no other


def payload(partition: Partition, stored: Stored) -> bytes:
    """Return the grids of a partition.

    Args:
        partition: with the ranges of its values.
        stored: what its values are.

    Raises:
        RangeUnbounded: a value becomes infinite.
    """
    graph = partition.graph
    numbers = value_numbers(graph)
    fine = _fine(graph) if stored is Stored.INT8 else frozenset(partition.ranges)
    return write_grids(
        {
            numbers[value]: _grid(found, value in fine)
            for value, found in partition.ranges.items()
        }
    )


def _grid(found: Range, fine: bool) -> Grid:
    """Return a grid; those of int16 have no zero of their own, as TOSA demands."""
    if found.low == found.high == 0:
        return Grid(Stored.INT16 if fine else Stored.INT8, _NEVER)
    if fine:
        reach = Range(_FARTHER * found.low, _FARTHER * found.high)
        return symmetric(reach, Stored.INT16)
    return asymmetric(found, Stored.INT8)


def _fine(graph: Method) -> frozenset[int]:
    """Return the values that are int16 among int8, by id.

    A view is as what it shows, a sum as what reads it. What lies in the memory of an
    input that is written stays int8, since other partitions may read it.
    """
    fine: set[int] = set()
    read = {value.id for node in graph.nodes for value in node.inputs}
    for node in reversed(graph.nodes):
        made = {value.id for value in node.outputs}
        if node.op == _NORM:
            fine.add(node.inputs[0].id)
        elif node.op == _PRODUCT or (node.op == _LINEAR and not made & read):
            fine |= made
        elif node.op == ROTARY:
            fine |= {value.id for value in node.inputs[1:]}
        elif node.op in ADDITIONS or _is_view(node):
            fine |= {value.id for value in node.inputs if made & fine}
    for node in graph.nodes:
        if _is_view(node) and node.inputs[0].id in fine:
            fine |= {value.id for value in node.outputs}
    writers = (node for node in graph.nodes if node.op in WRITERS)
    return frozenset(fine) - {v.id for n in writers for v in (n.inputs[0], *n.outputs)}


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW
