"""A subgraph before it is defined in the library: tensors and nodes.

Nodes are only recorded during translation. So views can be merged, and unused nodes
dropped, before `subgraph.py` calls the library.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvc.runtime.memory.arrays import Array
from kvc.schema.types import Dim

Dims = tuple[Dim, ...]


@dataclass(eq=False, slots=True)
class Tensor:
    """A contiguous float32 value.

    Attributes:
        dims: the tensor's shape.
        producer: the node that computes the tensor; None for inputs and constants.
        rows: whether the elements are int8 instead of float32, with a scale and a zero
            point for each row (the last dim).
    """

    dims: Dims
    producer: "Node | None" = None
    rows: bool = False


@dataclass(eq=False, slots=True)
class Constant(Tensor):
    """Named data that the library reads where it lies, without packing.

    Attributes:
        name: id of the name in the program.
    """

    name: int = -1


@dataclass(eq=False, slots=True)
class Literal(Tensor):
    """A constant that is stored in the subgraph, not in the program.

    Attributes:
        array: float32, of the tensor's shape.
    """

    array: Array | None = None


@dataclass(eq=False, slots=True)
class Weight(Tensor):
    """Named data that XNNPACK packs into its internal form.

    Attributes:
        kind: "float32", "int8" with a scale for each row, or "int4" with a scale for
            each block of a row.
        names: ids of the names of the weight, its scales and the bias that is packed
            with it; None for a missing one.
        layout: the layout of the weight's bytes for XNNPACK, see `layouts.py`.
    """

    kind: str = "float32"
    names: tuple[int, int | None, int | None] = (-1, None, None)
    layout: str = "plain"


@dataclass(eq=False, slots=True)
class Node:
    """One call of a function of the library, which adds a node to a subgraph.

    Attributes:
        function: name of the function without `xnn_define_`.
        arguments: the arguments after the subgraph, in the library's order; a tensor
            stands for its id, a tuple of tensors for an array of ids.
        outputs: the tensors among the arguments that the node computes.
    """

    function: str
    arguments: tuple[object, ...]
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> Iterator[Tensor]:
        """Yield the tensors that the node reads, in order."""
        for argument in self.arguments:
            for item in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(item, Tensor) and item not in self.outputs:
                    yield item

    def read_instead(self, old: Tensor, new: Tensor) -> None:
        """Replace the tensor `old` by `new` among the arguments."""
        self.arguments = tuple(
            tuple(new if item is old else item for item in argument)
            if isinstance(argument, tuple)
            else (new if argument is old else argument)
            for argument in self.arguments
        )


# Records the nodes of an operator: a function of a builder, the dims of the first
# result and the operator's arguments, with tensors for references, returns one or all
# results.
Define = Callable[..., Tensor | tuple[Tensor, ...]]


def live_nodes(nodes: list[Node], results: list[Tensor]) -> list[Node]:
    """Return the nodes on which `results` depend, in the order of `nodes`."""
    needed = set(results)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]
