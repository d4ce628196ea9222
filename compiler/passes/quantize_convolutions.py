"""Store the weights of convolutions as int8, with a float32 scale per output channel.

Inputs and results stay float32: a weight is multiplied by its scale before it is used.
`kvc::convolution_w8`, `kvc::pointwise_depthwise_w8` and `kvc::conv_transpose_w8` read
such weights. Runs after the passes that join convolutions with their neighbours.

Weights that do not pay stay float32, see `kvc.schema.ops.convolution_channels`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.weight_book import MethodBuilder, WeightBook, matched_weights
from kvc.compiler.weights.sources import SCALES, Transform
from kvc.schema.dtypes import DType
from kvc.schema.ops.convolution_channels import OVER_INT8, TRANSPOSED, becomes_int8
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class QuantizeConvolutions:
    """Use int8 weights where a convolution reads a constant float32 weight.

    Attributes:
        keep: patterns of weights that stay float32; one that matches nothing is
            ignored, as `QuantizeWeights` refuses it before.
    """

    name: ClassVar[str] = "quantize-convolutions"
    keep: tuple[str, ...] = ()

    def run(self, program: Program) -> Program:
        """Return the program whose convolutions read int8 weights."""
        kept = matched_weights(program, self.keep)
        book = WeightBook(program.constants, self.name)
        methods = tuple(_rewrite(method, book, kept) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)


def _rewrite(method: Method, book: WeightBook, kept: frozenset[str]) -> Method:
    builder = MethodBuilder(method, kept)
    return builder.method([_rewrite_node(n, builder, book) for n in method.nodes])


def _rewrite_node(node: Node, builder: MethodBuilder, book: WeightBook) -> Node:
    if node.op not in OVER_INT8:
        return node
    x, weight, *rest = node.arguments
    assert isinstance(weight, Value)
    name = builder.weight_name(weight, rank=len(weight.type.dims))
    sizes = tuple(size for size in weight.type.dims if isinstance(size, int))
    if name is None or not becomes_int8(node.op, node.arguments, sizes):
        return node
    turned = node.op in TRANSPOSED
    transform = Transform.INT8_OUTPUTS if turned else Transform.INT8_CHANNELS
    stored = _int8_weight(weight, name, transform, builder, book)
    if node.op == "aten::convolution":
        bias, *settings = rest
        rest = [bias, None, *settings, "identity", None, None]
    return replace(node, op=OVER_INT8[node.op], arguments=(x, *stored, *rest))


def _int8_weight(
    weight: Value,
    name: str,
    transform: Transform,
    builder: MethodBuilder,
    book: WeightBook,
) -> tuple[Value, Value]:
    """Return the values, int8 of the weight's shape, and the scales, float32 [out]."""
    axis = 1 if transform is Transform.INT8_OUTPUTS else 0
    kind = TensorType(DType.INT8, weight.type.dims)
    values = book.derive(name, transform, kind)
    kind = TensorType(DType.FLOAT32, weight.type.dims[axis : axis + 1])
    scale = book.derive(name, SCALES[transform], kind)
    return builder.constant(values), builder.constant(scale)
