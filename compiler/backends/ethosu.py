"""The backend of Arm's Ethos-U NPUs, ahead of time.

Takes the operators that `kvc.schema.backends.ethosu` lists, with states that are
written whole or from a position on. Values become int8 or int16: the payload of a
partition contains the grids (quantization scales and zero points) of its values.
`kvc.runtime` converts a partition's code to a TOSA graph, and the graph to a command
stream.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from kvc.compiler.backends.base import Backend, able_nodes, views_left
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Constant, Method, Node
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends.ethosu import (
    ADDITIONS,
    CHECK_INDEX,
    ROTARY,
    WRITERS,
    why_not,
    why_not_u55,
)
from kvc.schema.backends.grids import Grid, Stored, asymmetric, symmetric, write_grids
from kvc.schema.backends.operands import WhyNot
from kvc.schema.calibration import Range
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadOption
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol

# Select the grids (quantization parameters) of values.


_NORM, _PRODUCT, _LINEAR = "aten::rms_norm", "aten::mul.Tensor", "aten::linear"
_FARTHER: Final = 2.0  # a factor on the range of the samples
# The scale of a value that is 0 in all samples: small, so that it coarsens no other.
_NEVER: Final = 2.0**-20


def payload(partition: Partition, stored: Stored) -> bytes:
    """Return the grids of a partition.

    Args:
        partition: a partition with the ranges of its values.
        stored: the dtype of the partition's values.

    Raises:
        RangeUnbounded: a value of the partition becomes infinite.
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
    """Return the grid for a range of values, int16 if `fine`, else int8.

    int16 grids have zero point 0, as TOSA demands.
    """
    if found.low == found.high == 0:
        return Grid(Stored.INT16 if fine else Stored.INT8, _NEVER)
    if fine:
        reach = Range(_FARTHER * found.low, _FARTHER * found.high)
        return symmetric(reach, Stored.INT16)
    return asymmetric(found, Stored.INT8)


def _fine(graph: Method) -> frozenset[int]:
    """Return the ids of the values that are int16 in an otherwise int8 graph.

    A view has the type of its base, and the operands of a sum have the type of the sum.
    Values in the memory of an input that is written stay int8, since other partitions
    may read that input.
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


# The Ethos-U backend.


_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {  # the default first
    "activations": ("int8", "int16"),
    "npu": ("u85", "u55"),
}


_TO_FLOAT: Final = "aten::_to_copy"
_OF_ANGLES: Final = ("aten::cos", "aten::sin")


class EthosU(Backend):
    """The backend `ethosu`: runs graphs on integers, with fixed shapes."""

    name: ClassVar[str] = "ethosu"
    in_place = True
    fixed_shapes = True
    calibrated = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take the options `activations` and `npu`.

        `activations` is the dtype of values, int8 or int16; `npu` is the oldest NPU to
        support.

        Raises:
            BadOption: an option is unknown, or has an unknown value.
        """
        rest = dict(options)
        chosen = {}
        for option, known in _OPTIONS.items():
            found = chosen[option] = rest.pop(option, known[0])
            if found not in known:
                raise BadOption(
                    backend=self.name,
                    option=option,
                    expected=" or ".join(map(repr, known)),
                    found=repr(found),
                )
        super().__init__(rest)
        self._stored = Stored.INT16 if chosen["activations"] == "int16" else Stored.INT8
        self._why_not: WhyNot = why_not if chosen["npu"] == "u85" else why_not_u55

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions.

        A node that writes is taken only if it writes into a whole state or input, not
        into a view. Nodes that compute angles are left out: they need more than 16
        bits.
        """
        whole = {value.id for value in (*method.inputs, *method.bound)}
        able = able_nodes(method, self._why_not)
        angles = _angles(method, able)
        return frozenset(
            i
            for i, node in able.items()
            if node.op != CHECK_INDEX
            and i not in angles
            and (node.op not in WRITERS or node.inputs[0].id in whole)
        )

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the indices of views that TOSA does not support."""
        return views_left(method, self._why_not)

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
            name: [Lowered(payload=payload(one, self._stored)) for one in some]
            for name, some in partitions.items()
        }


def _angles(method: Method, able: Mapping[int, Node]) -> set[int]:
    """Return the indices of nodes that compute angles from positions and constants."""
    constants = {value.id for value, _ in method.constants}
    counts: set[int] = set()  # floats converted from integers
    made: set[int] = set()
    for index, node in enumerate(method.nodes):
        read = {value.id for value in node.inputs} - constants
        if node.op == _TO_FLOAT and node.inputs[0].type.dtype is DType.INT64:
            counts |= {value.id for value in node.outputs}
        elif index in able and read and read <= counts:
            made.add(index)
            counts |= {value.id for value in node.outputs}
    angles: set[int] = set()
    wanted: set[int] = set()
    for index, node in reversed([*enumerate(method.nodes)]):
        feeds = index in made and any(value.id in wanted for value in node.outputs)
        if feeds:
            angles.add(index)
        if feeds or node.op in _OF_ANGLES:
            wanted |= {value.id for value in node.inputs}
    return angles
