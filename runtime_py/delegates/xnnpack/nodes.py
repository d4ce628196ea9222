"""A subgraph before the library gets it: tensors, and the calls that define nodes.

Translation records nodes here, so that views can be merged and unused nodes dropped
before anything is defined; `subgraph.py` then makes the calls.
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
        dims: its shape.
        producer: the node that computes it, None for inputs and constants.
        rows: whether it is int8 instead, with a scale and a zero point for each row
            (the last dim).
    """

    dims: Dims
    producer: "Node | None" = None
    rows: bool = False


@dataclass(eq=False, slots=True)
class Constant(Tensor):
    """Named data, read where it lies.

    Attributes:
        name: id of the name in the program.
    """

    name: int = -1


@dataclass(eq=False, slots=True)
class Literal(Tensor):
    """Numbers that the subgraph keeps itself.

    Attributes:
        array: float32, of the tensor's shape.
    """

    array: Array | None = None


@dataclass(eq=False, slots=True)
class Weight(Tensor):
    """Named data that XNNPACK packs into a form of its own.

    Attributes:
        kind: "float32", "int8" with a scale for each row, or "int4" with a scale for
            each block of a row.
        names: ids of the names of the weight, its scales and the bias beside it.
        layout: how the weight's bytes are arranged for XNNPACK, see `layouts.py`.
    """

    kind: str = "float32"
    names: tuple[int, int | None, int | None] = (-1, None, None)
    layout: str = "plain"


@dataclass(eq=False, slots=True)
class Node:
    """One call of a function.

    Attributes:
        function: its name without `xnn_define_`.
        arguments: what follows the subgraph, as the library takes it; a tensor stands
            for its id, a tuple of tensors for an array of ids.
        outputs: those tensors among the arguments that it computes.
    """

    function: str
    arguments: tuple[object, ...]
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> Iterator[Tensor]:
        """Yield the tensors that it reads, in order."""
        for argument in self.arguments:
            for item in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(item, Tensor) and item not in self.outputs:
                    yield item

    def read_instead(self, old: Tensor, new: Tensor) -> None:
        """Put one tensor in the place of another among the arguments."""
        self.arguments = tuple(
            tuple(new if item is old else item for item in argument)
            if isinstance(argument, tuple)
            else (new if argument is old else argument)
            for argument in self.arguments
        )


# Records the nodes of an op: from a builder, the dims of the op's first result and its
# arguments, tensors in the place of references, to its result or to all of them.
Define = Callable[..., Tensor | tuple[Tensor, ...]]


def live_nodes(nodes: list[Node], results: list[Tensor]) -> list[Node]:
    """Return the nodes that the results depend on, in order."""
    needed = set(results)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]
