"""The interface of a backend's ahead-of-time half: take nodes, say what they need.

A backend sees every partition of every method before it says what the first needs, so
it can know what is shared. The code of a partition is in the file in any case, as a
block of its method; weights stay in the blob store under their names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.ir import Argument, Constant, Method, Node, Value
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends.operands import Operand, WhyNot
from kvc.schema.errors import BadOption
from kvc.schema.types import Symbol


class Backend(ABC):
    """The ahead-of-time half of a backend.

    Attributes:
        name: of the backend, as recipes and bundles have it.
        in_place: whether its partitions may write what they are lent, states above all,
            piece by piece and while they read it, and take memory of any strides. What
            writes a state over an old content that its partition reads is left outside
            of the partitions of other backends.
        fixed_shapes: whether it needs to know all sizes that a partition is called
            with. Recipes must then give each size of its partitions buckets.
        fuses: whether it is quicker with operators that stand for several: linear
            layers of all products, gated units, rotary embeddings; and with products
            of the same rows one after the other.
        calibrated: whether it stores values as integers, and needs to know how large
            they become: whoever compiles must then give samples.
    """

    name: ClassVar[str]
    in_place: ClassVar[bool] = False
    fixed_shapes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    calibrated: bool = False

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take what a recipe says in `[backend.options]`; here, that it says nothing.

        Raises:
            RecipeError: an option that this backend does not have, or a wrong value.
        """
        for option, found in options.items():
            raise BadOption(
                backend=self.name,
                option=option,
                expected="no options",
                found=repr(found),
            )

    @abstractmethod
    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes that it can run."""

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the views that it cannot make: partitions read clones of them.

        All others that its partitions read are made once more in these, where they are
        `in_place`.
        """
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return what each partition needs beside its code: here, nothing.

        Args:
            partitions: those of all methods, proven, by the name of what calls them: a
                method, or a block that is a branch or a turn of a loop.
            constants: the program's constants, by name.
            symbols: the program's symbols.

        Returns:
            for each of the names one for each of its partitions, in order.
        """
        return {name: (Lowered(),) * len(some) for name, some in partitions.items()}


# Choose nodes by a backend's list of what it supports.


def able_nodes(method: Method, why_not: WhyNot) -> dict[int, Node]:
    """Return the nodes that a backend can run, by index."""
    constants = {value.id for value, _ in method.constants}
    able = {}
    for index, node in enumerate(method.nodes):
        results = [value.type for value in node.outputs]
        if not why_not(node.op, operands_of(node, constants), results):
            able[index] = node
    return able


def operands_of(node: Node, constants: set[int]) -> list[object]:
    """Return a node's arguments, tensors as `Operand`s; `constants` are ids."""
    return [_operand(argument, constants) for argument in node.arguments]


def _operand(argument: Argument, constants: set[int]) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(item, constants) for item in argument)
    if isinstance(argument, Value):
        return Operand(argument.type, argument.id in constants)
    return argument


# Backends whose code is the block of a partition, which `kvc.runtime` binds.


class BlockBackend(Backend):
    """Runs all of its nodes from the block."""

    in_place = True

    @property
    @abstractmethod
    def supported(self) -> WhyNot:
        """Return the list of what it supports."""

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take."""
        return frozenset(able_nodes(method, self.supported))
