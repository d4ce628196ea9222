"""Quantize linear layers and embeddings to int8, with exactly XNNPACK's numerics.

`linear(x, weight)` becomes `quantize_rows(x)` and `linear_qd8(...)` over int8
weights with one scale per output channel; `embedding(weight, ids)` reads int8 rows.
Both store a matrix in the same way, so a tied embedding is still one blob.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.constants import Transform
from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.weights import MethodBuilder, WeightBook
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class QuantizeWeights:
    """Use int8 weights where an op reads a constant float32 matrix.

    Attributes:
        linear: quantize linear layers, activations per row at run time.
        embedding: quantize embeddings.
    """

    name: ClassVar[str] = "quantize-weights"
    linear: bool
    embedding: bool

    def run(self, program: Program) -> Program:
        """Return the program over quantized weights."""
        book = WeightBook(program.constants, self.name)
        methods = tuple(self._rewrite(method, book) for method in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)

    def _rewrite(self, method: Method, book: WeightBook) -> Method:
        builder = MethodBuilder(method)
        nodes: list[Node] = []
        for node in method.nodes:
            nodes += self._rewrite_node(node, builder, book)
        constants = (*method.constants, *builder.new_bindings)
        return replace(method, nodes=tuple(nodes), constants=constants)

    def _rewrite_node(
        self, node: Node, builder: MethodBuilder, book: WeightBook
    ) -> Iterator[Node]:
        if self.linear and node.op == "aten::linear":
            weight = builder.weight_name(node.arguments[1])
            if weight is not None and _is_float(node.arguments[0]):
                yield from _quantized_linear(node, weight, builder, book)
                return
        if self.embedding and node.op == "aten::embedding":
            weight = builder.weight_name(node.arguments[0])
            if weight is not None:
                values, scale = _int8_weight(node.arguments[0], weight, builder, book)
                arguments = (values, scale, node.arguments[1])
                yield replace(node, op="kvc::embedding_q8", arguments=arguments)
                return
        yield node


def _is_float(argument: object) -> bool:
    return isinstance(argument, Value) and argument.type.dtype is DType.FLOAT32


def _int8_weight(
    weight: object, name: str, builder: MethodBuilder, book: WeightBook
) -> tuple[Value, Value]:
    """Return the int8 values [out, in] and the scales [out] of a weight."""
    assert isinstance(weight, Value)
    dims = weight.type.dims
    values = book.derive(name, Transform.INT8, TensorType(DType.INT8, dims))
    scale = book.derive(name, Transform.INT8_SCALE, TensorType(DType.FLOAT32, dims[:1]))
    return builder.constant(values), builder.constant(scale)


def _quantized_linear(
    node: Node, name: str, builder: MethodBuilder, book: WeightBook
) -> Iterator[Node]:
    x, weight, bias = node.arguments
    assert isinstance(x, Value)
    rows = x.type.dims[:-1]
    quantized = (
        builder.value(DType.INT8, *x.type.dims),
        builder.value(DType.FLOAT32, *rows, 1),
        builder.value(DType.INT32, *rows, 1),
    )
    yield Node("kvc::quantize_rows", (x,), quantized, node.source)
    values, scale = _int8_weight(weight, name, builder, book)
    arguments = (*quantized, values, scale, bias)
    yield replace(node, op="kvc::linear_qd8", arguments=arguments)
