"""Write products with a constant matrix as linear layers.

`x @ weight`, `mm` and `addmm` read a matrix [in, out] down its columns. Kernels and
quantization take a linear layer's [out, in], whose rows lie together. In: a program.
Out: the same, where such products are `aten::linear`; the matrix is turned when its
blob is written, or is the base of the turned view that was read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from kvc.compiler.constants import Transform
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.passes.weights import MethodBuilder, WeightBook
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

# Where the matrix stands among the arguments.
_WEIGHT: Final = {"aten::mm": 1, "aten::matmul": 1, "aten::addmm": 2}
_TURNS: Final = {
    "aten::transpose.int": ((0, 1), (1, 0), (-2, -1), (-1, -2), (0, -1), (-1, 0)),
    "aten::permute": (((1, 0),), ((-1, -2),), ((-1, 0),), ((1, -2),)),
}


@dataclass(frozen=True, slots=True)
class LinearProducts:
    """Use linear layers where a float32 tensor is multiplied by a constant matrix.

    A matrix that something else reads, too, stays as it is: it would be stored twice.
    """

    name: ClassVar[str] = "linear-products"

    def run(self, program: Program) -> Program:
        """Return the program with such products as linear layers."""
        book = WeightBook(program.constants, self.name)
        kept = frozenset(_read_otherwise(program))
        methods = tuple(_rewrite(method, kept, book) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


def _rewrite(method: Method, kept: frozenset[str], book: WeightBook) -> Method:
    builder, makers = MethodBuilder(method), method.makers()
    nodes = tuple(_linear(node, kept, makers, builder, book) for node in method.nodes)
    constants = (*method.constants, *builder.new_bindings)
    return replace(method, nodes=nodes, constants=constants)


def _linear(
    node: Node,
    kept: frozenset[str],
    makers: Mapping[int, Node],
    builder: MethodBuilder,
    book: WeightBook,
) -> Node:
    found = _operands(node)
    if found is None:
        return node
    x, weight, bias = found
    turn = makers.get(weight.id)
    if turn is not None:
        if not _is_turn(turn) or builder.weight_name(turn.inputs[0]) is None:
            return node
        weight = turn.inputs[0]
    else:
        name = builder.weight_name(weight)
        if name is None or name in kept:
            return node
        dims = weight.type.dims[::-1]
        kind = TensorType(DType.FLOAT32, dims)
        weight = builder.constant(book.derive(name, Transform.TRANSPOSED, kind))
    return replace(node, op="aten::linear", arguments=(x, weight, bias))


def _operands(node: Node) -> tuple[Value, Value, Argument] | None:
    """Return x, matrix and bias of a product that a linear layer can be, else None."""
    place = _WEIGHT.get(node.op)
    if place is None:
        return None
    x, weight = node.arguments[place - 1 : place + 1]
    assert isinstance(x, Value)
    assert isinstance(weight, Value)
    floats = x.type.dtype is weight.type.dtype is DType.FLOAT32
    if not floats or len(x.type.dims) < 2 or len(weight.type.dims) != 2:
        return None
    if place == 1:
        return x, weight, None
    bias, _, _, beta, alpha = node.arguments
    assert isinstance(bias, Value)
    fits = bias.type == TensorType(DType.FLOAT32, weight.type.dims[1:])
    return (x, weight, bias) if fits and beta == alpha == 1 else None


def _is_turn(node: Node) -> bool:
    return node.arguments[1:] in _TURNS.get(node.op, ())


def _read_otherwise(program: Program) -> Iterator[str]:
    """Yield the names of constants that anything but such products reads."""
    for method in program.methods:
        names = {value.id: name for value, name in method.constants}
        for node in method.nodes:
            found = _operands(node)
            weight = None if found is None else found[1].id
            yield from (
                names[v.id] for v in node.inputs if v.id in names and v.id != weight
            )
        yield from (names[v.id] for v in method.results if v.id in names)
    yield from (state.initial for state in program.states if state.initial is not None)
