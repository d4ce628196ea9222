"""The backend of Arm's Ethos-U NPUs, ahead of time.

Takes what `kvc.schema.backends.ethosu` lists, with the states that it writes whole or
from a position on. Values become int8 or int16: the payload of a partition is their
grids. `kvc.runtime` makes a TOSA graph of the code, and a command stream of that.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from kvc.compiler.backends.base import Backend
from kvc.compiler.backends.ethosu_grids import payload
from kvc.compiler.backends.operands import able_nodes
from kvc.compiler.ir import Constant, Method, Node
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends.ethosu import CHECK_INDEX, WRITERS, why_not, why_not_u55
from kvc.schema.backends.grids import Stored
from kvc.schema.backends.operands import WhyNot
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadOption
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {  # the default first
    "activations": ("int8", "int16"),
    "npu": ("u85", "u55"),
}


_TO_FLOAT: Final = "aten::_to_copy"
_OF_ANGLES: Final = ("aten::cos", "aten::sin")


class EthosU(Backend):
    """Runs fixed shapes of integers."""

    name: ClassVar[str] = "ethosu"
    in_place = True
    fixed_shapes = True
    calibrated = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take how activations are stored, and which NPUs are to run all of it.

        Raises:
            BadOption: a value that it does not have, or another option.
        """
        rest = dict(options)
        chosen = {}
        for option, known in _OPTIONS.items():
            found = chosen[option] = rest.pop(option, known[0])
            if found not in known:
                expected = " or ".join(map(repr, known))
                raise BadOption(
                    backend=self.name,
                    option=option,
                    expected=expected,
                    found=repr(found),
                )
        super().__init__(rest)
        self._stored = Stored.INT16 if chosen["activations"] == "int16" else Stored.INT8
        self._why_not: WhyNot = why_not if chosen["npu"] == "u85" else why_not_u55

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take: of writers, those of whole states or inputs.

        Not those that angles are made of, which need more than 16 bits.
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
        """Return the views that TOSA has no operator for, or not of such values."""
        able = able_nodes(method, self._why_not)
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
            name: [Lowered(payload=payload(one, self._stored)) for one in some]
            for name, some in partitions.items()
        }


def _angles(method: Method, able: Mapping[int, Node]) -> set[int]:
    """Return the nodes that make angles of positions and constants alone."""
    constants = {value.id for value, _ in method.constants}
    counts: set[int] = set()  # floats made of integers
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
