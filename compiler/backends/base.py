"""The interface of a backend's ahead-of-time half: take nodes, lower partitions.

A backend gets all partitions of all methods at once, so it can find data that they
share. In addition to what a backend returns, the bundle always contains the code of
each partition, as a block of its method, and the weights under their names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvc.compiler.ir import Argument, Constant, Method, Node, Value
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends.operands import Operand, WhyNot
from kvc.schema.errors import BadOption
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol


class Backend(ABC):
    """The ahead-of-time half of a backend.

    Attributes:
        name: the name of the backend in recipes and bundles.
        in_place: whether the backend's partitions accept tensors of any strides, and
            can overwrite parts of an input, such as a state, that they also read. If
            not, a node stays outside of a partition if it overwrites a state whose old
            content the partition reads.
        fixed_shapes: whether the backend must know all sizes with which a partition is
            called. If so, recipes must give buckets for each size of its partitions.
        fuses: whether the backend is faster with fused operators (linear layers for all
            products, gated units, rotary embeddings), and with adjacent products of the
            same rows.
        calibrated: whether the backend stores values as integers and needs the ranges
            of the values. If so, the caller must give samples of inputs.
        over_operands: whether the memory plan of a partition may place the result of a
            pointwise operator over an operand that nothing reads later. The kernels
            that run the partition's block must then read each element of the operand
            before they write the element of the result.
    """

    name: ClassVar[str]
    in_place: ClassVar[bool] = False
    fixed_shapes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    calibrated: bool = False
    over_operands: ClassVar[bool] = False

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
        """Return the indices of a method's nodes that the backend can run."""

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the indices of a method's views that the backend cannot make.

        Partitions read clones of these views. If the backend is `in_place`, a partition
        that reads any other view makes the view again inside.
        """
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return each partition's payload and memory needs; the default has none.

        Args:
            partitions: the partitions of all methods, by the name of the caller: a
                method, or a block that is a branch or the body of a loop.
            constants: the program's constants, by name.
            symbols: the program's symbols.

        Returns:
            name of a caller -> one `Lowered` for each partition of the caller, in
            order.
        """
        return {name: (Lowered(),) * len(some) for name, some in partitions.items()}


# Select nodes by a backend's list of supported operators.


def able_nodes(method: Method, why_not: WhyNot) -> dict[int, Node]:
    """Return index -> node, for the nodes of a method that a backend can run."""
    constants = {value.id for value, _ in method.constants}
    able = {}
    for index, node in enumerate(method.nodes):
        results = [value.type for value in node.outputs]
        if not why_not(node.op, operands_of(node, constants), results):
            able[index] = node
    return able


def views_left(method: Method, why_not: WhyNot) -> frozenset[int]:
    """Return the indices of a method's views that a backend cannot run."""
    able = able_nodes(method, why_not)
    return frozenset(
        index
        for index, node in enumerate(method.nodes)
        if index not in able and OPS[node.op].aliasing is Aliasing.VIEW
    )


def operands_of(node: Node, constants: set[int]) -> list[object]:
    """Return a node's arguments, with an `Operand` for each tensor.

    `constants` are the ids of the values that are constants.
    """
    return [_operand(argument, constants) for argument in node.arguments]


def _operand(argument: Argument, constants: set[int]) -> object:
    if isinstance(argument, tuple):
        return tuple(_operand(item, constants) for item in argument)
    if isinstance(argument, Value):
        return Operand(argument.type, argument.id in constants)
    return argument


# Backends that run the block of a partition, which `kvc.runtime` binds.


class BlockBackend(Backend):
    """A backend whose runtime half runs the block that has the partition's code."""

    in_place = True

    @property
    @abstractmethod
    def supported(self) -> WhyNot:
        """Return the function that gives the reason why a node is not supported.

        The function returns "" for a supported node.
        """

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions."""
        return frozenset(able_nodes(method, self.supported))
