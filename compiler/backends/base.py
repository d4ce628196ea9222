"""The interface of a backend's ahead-of-time half: take nodes, lower partitions.

A backend gets all partitions of all methods at once, so it can find data that they
share. Whatever a backend returns, the bundle contains a partition's code as a block of
its method, and the weights under their names.
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
        name: the name of the backend in recipes and bundles.
        in_place: whether the backend's partitions can overwrite parts of their inputs,
            such as states, while they read the inputs, and accept tensors of any
            strides. If not, a node that overwrites the old content of a state that its
            partition reads is left outside of the partitions.
        fixed_shapes: whether the backend must know all sizes with which a partition is
            called. If so, recipes must give buckets for each size of its partitions.
        fuses: whether the backend is faster with fused operators (linear layers for all
            products, gated units, rotary embeddings), and with adjacent products of the
            same rows.
        calibrated: whether the backend stores values as integers and needs their
            ranges. If so, the caller must give samples.
    """

    name: ClassVar[str]
    in_place: ClassVar[bool] = False
    fixed_shapes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    calibrated: bool = False

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take the options of the recipe; this base class accepts no option.

        Raises:
            RecipeError: this backend does not have the option, or the value is wrong.
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
        """Return the indices of the nodes that the backend can run."""

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the views that the backend cannot make.

        Partitions read clones of these views. All other views that partitions read are
        made again inside, if the backend is `in_place`.
        """
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the payload and memory needs of each partition; by default, none.

        Args:
            partitions: the proven partitions of all methods, by the name of the caller:
                a method, or a block that is a branch or the body of a loop.
            constants: the program's constants, by name.
            symbols: the program's symbols.

        Returns:
            For each name of a caller, one `Lowered` for each of its partitions, in
            order.
        """
        return {name: (Lowered(),) * len(some) for name, some in partitions.items()}


# Select nodes by a backend's list of supported operators.


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


# Backends that run the block of a partition, which `kvc.runtime` binds.


class BlockBackend(Backend):
    """A backend whose runtime half reads the code in the partition's block."""

    in_place = True

    @property
    @abstractmethod
    def supported(self) -> WhyNot:
        """Return the function that says why a node is not supported, if it is not."""

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take."""
        return frozenset(able_nodes(method, self.supported))
