"""Store matrices as bfloat16, for linear layers and embeddings.

A linear layer rounds its input to bfloat16, sums products in float32 like torch's
bfloat16 kernel, rounds the sums to bfloat16, and widens them to float32. An embedding
widens the rows that it looks up. Everything else stays float32. Widening whole weights
in each call instead would cost more memory than it saves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.passes.weight_book import MethodBuilder, WeightBook, kept_weights
from kvc.compiler.weights.sources import Transform
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class _Reader:
    """An operator that reads one matrix, or a stack of matrices if `rank` is 3.

    `weight` is the index of the matrix operand. `floats` are the indices of the other
    operands that must have the dtype of the matrix.
    """

    weight: int
    rank: int = 2
    floats: tuple[int, ...] = ()


_READERS: Final = {
    "aten::linear": _Reader(1, floats=(0, 2)),
    "aten::embedding": _Reader(0),
    "kvc::expert_linear": _Reader(1, rank=3, floats=(0, 3)),
}


@dataclass(frozen=True, slots=True)
class StoreBfloat16:
    """Store the float32 matrices of linear layers and embeddings as bfloat16.

    Attributes:
        keep: patterns of weights that stay float32, such as routers.
    """

    name: ClassVar[str] = "store-bfloat16"
    keep: tuple[str, ...] = ()

    def run(self, program: Program) -> Program:
        """Return the program over bfloat16 matrices.

        Raises:
            UnmatchedPattern: a pattern of `keep` matches no weight.
        """
        kept = kept_weights(program, self.keep)
        book = WeightBook(program.constants, self.name)
        methods = tuple(_rewrite(method, book, kept) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


def _rewrite(method: Method, book: WeightBook, kept: frozenset[str]) -> Method:
    builder = MethodBuilder(method, kept)
    nodes: list[Node] = []
    for node in method.nodes:
        nodes += _rewrite_node(node, builder, book)
    return builder.method(nodes)


def _rewrite_node(
    node: Node, builder: MethodBuilder, book: WeightBook
) -> Iterator[Node]:
    reader = _READERS.get(node.op)
    if reader is None:
        yield node
        return
    name = builder.weight_name(node.arguments[reader.weight], reader.rank)
    if name is None:
        yield node
        return
    weight = node.arguments[reader.weight]
    assert isinstance(weight, Value)
    stored = book.derive(
        name, Transform.BFLOAT16, TensorType(DType.BFLOAT16, weight.type.dims)
    )
    arguments: list[Argument] = list(node.arguments)
    arguments[reader.weight] = builder.constant(stored)
    for place in reader.floats:
        if isinstance(arguments[place], Value):
            narrow = _narrowed(arguments[place], builder, node.source)
            yield narrow
            arguments[place] = narrow.outputs[0]
    result = builder.value(DType.BFLOAT16, *node.outputs[0].type.dims)
    yield replace(node, arguments=tuple(arguments), outputs=(result,))
    yield Node("aten::_to_copy", (result, DType.FLOAT32), node.outputs, node.source)


def _narrowed(argument: Argument, builder: MethodBuilder, source: str) -> Node:
    assert isinstance(argument, Value)
    narrow = builder.value(DType.BFLOAT16, *argument.type.dims)
    return Node("aten::_to_copy", (argument, DType.BFLOAT16), (narrow,), source)
