"""Write products with a constant matrix as linear layers.

`x @ weight`, `mm` and `addmm` read a matrix [in, out] down its columns. Kernels and
quantization take a linear layer's matrix [out, in], whose rows are contiguous. In: a
program. Out: the same program, with such products as `aten::linear`. The matrix is
transposed when its blob is written. If the product reads a transposed view of a
constant, the layer takes the constant itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method
from kvc.compiler.passes.weight_book import MethodBuilder, WeightBook
from kvc.compiler.weights.sources import Transform
from kvc.schema.dtypes import DType
from kvc.schema.ops.row_blocks import ROW_ARGUMENTS
from kvc.schema.types import TensorType

# The index of the matrix among the arguments.
_WEIGHT: Final = {"aten::linear": 1, "aten::mm": 1, "aten::matmul": 1, "aten::addmm": 2}
_TURNS: Final = {
    "aten::transpose.int": ((0, 1), (1, 0), (-2, -1), (-1, -2), (0, -1), (-1, 0)),
    "aten::permute": (((1, 0),), ((-1, -2),), ((-1, 0),), ((1, -2),)),
}


@dataclass(frozen=True, slots=True)
class LinearProducts:
    """Replace products of a float32 tensor with a constant matrix by linear layers.

    A matrix that any other node reads stays unchanged, since it would be stored twice.
    """

    name: ClassVar[str] = "linear-products"

    def run(self, program: Program) -> Program:
        """Return the program with linear layers for products with constant matrices."""
        book = WeightBook(program.constants, self.name)
        kept = frozenset(name for m in program.methods for name in _read_otherwise(m))
        methods = tuple(_rewrite(method, kept, book) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of `x` with a matrix.

    The matrix is [in, out] if `by_columns` is set, else [out, in].
    """

    x: Value
    weight: Value
    by_columns: bool
    bias: Argument


def _rewrite(method: Method, kept: frozenset[str], book: WeightBook) -> Method:
    builder, makers = MethodBuilder(method), method.makers()
    nodes = [_linear(node, kept, makers, builder, book) for node in method.nodes]
    return builder.method(nodes)


def _linear(
    node: Node,
    kept: frozenset[str],
    makers: Mapping[int, Node],
    builder: MethodBuilder,
    book: WeightBook,
) -> Node:
    product = _product(node, makers)
    name = None if product is None else builder.weight_name(product.weight)
    if product is None or name is None or (product.by_columns and name in kept):
        return node
    weight = product.weight
    if product.by_columns:
        kind = TensorType(DType.FLOAT32, weight.type.dims[::-1])
        weight = builder.constant(book.derive(name, Transform.TRANSPOSED, kind))
    return replace(node, op="aten::linear", arguments=(product.x, weight, product.bias))


def _product(node: Node, makers: Mapping[int, Node]) -> _Product | None:
    """Return a node's product with a matrix, None if the node is no such product."""
    place = _WEIGHT.get(node.op)
    if place is None:
        return None
    x, weight, *others = node.arguments[place - 1 :]
    assert isinstance(x, Value)
    assert isinstance(weight, Value)
    floats = x.type.dtype is weight.type.dtype is DType.FLOAT32
    if not floats or len(x.type.dims) < 2 or len(weight.type.dims) != 2:
        return None
    by_columns, bias = node.op != "aten::linear", None
    if not by_columns:
        (bias,) = others
    elif others:
        bias = node.arguments[0]
        assert isinstance(bias, Value)
        row = TensorType(DType.FLOAT32, weight.type.dims[1:])
        if bias.type != row or others != [1, 1]:  # factors of the sum and the product
            return None
    while (maker := makers.get(weight.id)) is not None and _is_turn(maker):
        weight, by_columns = maker.inputs[0], not by_columns
    return _Product(x, weight, by_columns, bias)


def _is_turn(node: Node) -> bool:
    return node.arguments[1:] in _TURNS.get(node.op, ())


def _read_otherwise(method: Method) -> Iterator[str]:
    """Yield the constants that are read in other ways than as a matrix [in, out].

    A constant is read as a matrix [in, out] if it is the matrix of a product that reads
    it down its columns, directly or through transposed views.
    """
    makers, read = method.makers(), {value.id for value in method.results}
    for node in reversed(method.nodes):
        product = _product(node, makers)
        if product is not None:
            also = (product.x, product.bias, product.weight)
            read |= {
                v.id for v in also[: 3 - product.by_columns] if isinstance(v, Value)
            }
        elif not _is_turn(node) or node.outputs[0].id in read:
            read |= {value.id for value in node.inputs}
    yield from (name for value, name in method.constants if value.id in read)


# Group products of the same quantized rows.


_NEAR = 16  # nodes


@dataclass(frozen=True, slots=True)
class GatherProducts:
    """Move each product up to a preceding product of the same rows.

    The rows are the operand that is multiplied with the weights. Results of moved
    products live longer, so a product is moved only over a short distance. Otherwise,
    all layers of a decoder that read the encoder's result would have their products in
    memory at once.
    """

    name: ClassVar[str] = "gather-products"

    def run(self, program: Program) -> Program:
        """Return the program with products of the same rows side by side."""
        return each_method(program, _gather)


def _gather(method: Method) -> Method:
    made = {value.id for node in method.nodes for value in node.outputs}
    ends: dict[tuple[Argument, ...], int] = {}  # rows -> index of the last product
    # Index of a node that stays -> the node and those moved after it.
    groups: dict[int, list[Node]] = {}
    heads: dict[tuple[Argument, ...], int] = {}
    for index, node in enumerate(method.nodes):
        rows = node.arguments[: ROW_ARGUMENTS.get(node.op, 0)]
        if not _may_move(node, made):
            groups[index] = [node]
        elif rows in heads and index - ends[rows] <= _NEAR:
            groups[heads[rows]].append(node)
            ends[rows] = index
        else:
            groups[index] = [node]
            heads[rows] = ends[rows] = index
    return replace(method, nodes=tuple(n for group in groups.values() for n in group))


def _may_move(node: Node, made: set[int]) -> bool:
    """Tell whether a node is a product whose weights no node computes (`made`)."""
    rows = ROW_ARGUMENTS.get(node.op)
    return rows is not None and not made & {v.id for v in node.inputs[rows:]}


# Split the matrices of experts that lie in one matrix into constants.


_VIEWS: Final = frozenset({"aten::view", "aten::reshape"})


@dataclass(frozen=True, slots=True)
class DivideMatrices:
    """Replace the views by which experts read parts of one matrix by constants."""

    name: ClassVar[str] = "divide-matrices"

    def run(self, program: Program) -> Program:
        """Return the program with the matrices of experts as constants."""
        book = WeightBook(program.constants, self.name)
        methods = tuple(_divide(method, book) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


def _divide(method: Method, book: WeightBook) -> Method:
    builder, makers = MethodBuilder(method), method.makers()
    nodes = [_divided(node, makers, builder, book) for node in method.nodes]
    return builder.method(nodes)


def _divided(
    node: Node, makers: Mapping[int, Node], builder: MethodBuilder, book: WeightBook
) -> Node:
    if node.op != "kvc::expert_linear":
        return node
    x, weight, *others = node.arguments
    assert isinstance(weight, Value)
    view = makers.get(weight.id)
    if view is None or view.op not in _VIEWS:
        return node
    whole = view.inputs[0]
    name = builder.weight_name(whole)
    rows, columns = whole.type.dims if name is not None else (0, 0)
    if name is None or not rows or columns != weight.type.dims[2]:
        return node
    divided = builder.constant(book.divide(name, weight.type))
    return replace(node, arguments=(x, divided, *others))
