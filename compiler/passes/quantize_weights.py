"""Quantize linear layers and embeddings; rows with exactly XNNPACK's numerics.

`linear(x, weight)` becomes `quantize_rows(x)` and a product: `linear_qd8(...)` over
int8 weights with one scale per output channel, or `linear_qb4(...)` over int4 weights
with one scale per block of 32 inputs; or `linear_w8(x, ...)` over the int8 weights,
with activations as they are. `embedding(weight, ids)` reads int8 rows. An int8 matrix
is stored in the same way for both, so a tied embedding is one blob. That is why a
matrix that is also an int8 embedding is never multiplied as int4: a second copy would
cost more than it saves, and be less exact. The matrices of experts are int8 where rows
are quantized, with a scale for each output channel of each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvc.compiler.constants import Transform
from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.kept import kept_weights
from kvc.compiler.passes.weights import MethodBuilder, WeightBook
from kvc.schema.dtypes import DType
from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class QuantizeWeights:
    """Use quantized weights where an op reads a constant float32 matrix.

    Attributes:
        linear: how linear layers multiply; activations are quantized per row at run
            time, but with "w8", whose experts stay float32. "qb4" falls back to "qd8"
            where rows cannot be cut into blocks, or are no multiple of eight.
        embedding: store embeddings as int8.
        keep: patterns of what stays float32, as routers do.
    """

    name: ClassVar[str] = "quantize-weights"
    linear: Literal["float32", "qd8", "qb4", "w8"]
    embedding: bool
    keep: tuple[str, ...] = ()

    def run(self, program: Program) -> Program:
        """Return the program over quantized weights.

        Raises:
            UnmatchedPattern: there is nothing of a name in `keep`.
        """
        kept = kept_weights(program, self.keep)
        book = WeightBook(program.constants, self.name)
        tables = frozenset(_tables(program)) if self.embedding else frozenset[str]()
        methods = tuple(self._rewrite(m, tables, book, kept) for m in program.methods)
        return replace(program, constants=book.all_constants(), methods=methods)

    def _rewrite(
        self,
        method: Method,
        tables: frozenset[str],
        book: WeightBook,
        kept: frozenset[str],
    ) -> Method:
        builder = MethodBuilder(method, kept)
        nodes: list[Node] = []
        for node in method.nodes:
            nodes += self._rewrite_node(node, tables, builder, book)
        constants = (*method.constants, *builder.new_bindings)
        return replace(method, nodes=tuple(nodes), constants=constants)

    def _rewrite_node(
        self,
        node: Node,
        tables: frozenset[str],
        builder: MethodBuilder,
        book: WeightBook,
    ) -> Iterator[Node]:
        if self.linear != "float32" and node.op == "aten::linear":
            weight = builder.weight_name(node.arguments[1])
            quantizable = _has_columns(node.arguments[1])
            if weight is not None and quantizable and _is_float(node.arguments[0]):
                if self.linear == "w8":
                    yield _floats_by_int8(node, weight, builder, book)
                    return
                narrow = self.linear == "qb4" and weight not in tables
                yield from _quantized_linear(node, weight, narrow, builder, book)
                return
        quantizing = self.linear in ("qd8", "qb4")
        if quantizing and node.op == "kvc::expert_linear":
            weight = builder.weight_name(node.arguments[1], rank=3)
            if weight is not None and _has_columns(node.arguments[0]):
                yield from _quantized_experts(node, weight, builder, book)
                return
        if self.embedding and node.op == "aten::embedding":
            weight = builder.weight_name(node.arguments[0])
            if weight is not None and _has_columns(node.arguments[0]):
                values, scale = _int8_weight(node.arguments[0], weight, builder, book)
                arguments = (values, scale, node.arguments[1])
                yield replace(node, op="kvc::embedding_q8", arguments=arguments)
                return
        yield node


def _has_columns(weight: object) -> bool:
    """Tell whether rows have elements; without any there is no scale of a row."""
    return isinstance(weight, Value) and weight.type.dims[-1] != 0


def _is_float(argument: object) -> bool:
    return isinstance(argument, Value) and argument.type.dtype is DType.FLOAT32


def _tables(program: Program) -> Iterator[str]:
    """Yield the names of the constants that are embeddings."""
    for method in program.methods:
        names = {value.id: name for value, name in method.constants}
        for node in method.nodes:
            if node.op == "aten::embedding" and node.inputs[0].id in names:
                yield names[node.inputs[0].id]


def _int8_weight(
    weight: object, name: str, builder: MethodBuilder, book: WeightBook
) -> tuple[Value, Value]:
    """Return the int8 values [out, in] and the scales [out] of a weight."""
    assert isinstance(weight, Value)
    dims = weight.type.dims
    values = book.derive(name, Transform.INT8, TensorType(DType.INT8, dims))
    scale = book.derive(name, Transform.INT8_SCALE, TensorType(DType.FLOAT32, dims[:1]))
    return builder.constant(values), builder.constant(scale)


def _int4_weight(
    weight: Value, name: str, builder: MethodBuilder, book: WeightBook
) -> tuple[Value, Value]:
    """Return the packed values [out / 8, in / 8, 8, 4], the scales beside them."""
    rows, columns = weight.type.dims
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    groups, fours = rows // QB4_ROWS, columns // (2 * QB4_BYTES)
    packed = TensorType(DType.UINT8, (groups, fours, QB4_ROWS, QB4_BYTES))
    scales = TensorType(DType.BFLOAT16, (groups, columns // QB4_BLOCK, QB4_ROWS))
    values = book.derive(name, Transform.INT4, packed)
    scale = book.derive(name, Transform.INT4_SCALE, scales)
    return builder.constant(values), builder.constant(scale)


def _in_blocks(weight: Value) -> bool:
    rows, columns = weight.type.dims
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return False
    return rows % QB4_ROWS == 0 and columns > 0 and columns % QB4_BLOCK == 0


def _quantized_linear(
    node: Node, name: str, narrow: bool, builder: MethodBuilder, book: WeightBook
) -> Iterator[Node]:
    x, weight, bias = node.arguments
    assert isinstance(x, Value)
    assert isinstance(weight, Value)
    quantizing = _quantized_rows(x, builder, node.source)
    yield quantizing
    quantized = quantizing.outputs
    if narrow and _in_blocks(weight):
        op, stored = "kvc::linear_qb4", _int4_weight(weight, name, builder, book)
    else:
        op, stored = "kvc::linear_qd8", _int8_weight(weight, name, builder, book)
    yield replace(node, op=op, arguments=(*quantized, *stored, bias))


def _floats_by_int8(
    node: Node, name: str, builder: MethodBuilder, book: WeightBook
) -> Node:
    x, weight, bias = node.arguments
    stored = _int8_weight(weight, name, builder, book)
    return replace(node, op="kvc::linear_w8", arguments=(x, *stored, bias))


def _quantized_experts(
    node: Node, name: str, builder: MethodBuilder, book: WeightBook
) -> Iterator[Node]:
    x, weight, experts, bias, turned = node.arguments
    assert isinstance(x, Value)
    assert isinstance(weight, Value)
    count, *sizes = weight.type.dims
    dims = (count, *(reversed(sizes) if turned else sizes))
    values = book.derive(
        name, Transform.INT8, TensorType(DType.INT8, dims), bool(turned)
    )
    kind = TensorType(DType.FLOAT32, dims[:2])
    scale = book.derive(name, Transform.INT8_SCALE, kind, bool(turned))
    stored = builder.constant(values), builder.constant(scale)
    quantizing = _quantized_rows(x, builder, node.source)
    yield quantizing
    arguments = (*quantizing.outputs, *stored, experts, bias)
    yield replace(node, op="kvc::expert_linear_qd8", arguments=arguments)


def _quantized_rows(x: Value, builder: MethodBuilder, source: str) -> Node:
    rows = x.type.dims[:-1]
    quantized = (
        builder.value(DType.INT8, *x.type.dims),
        builder.value(DType.FLOAT32, *rows, 1),
        builder.value(DType.INT32, *rows, 1),
    )
    return Node("kvc::quantize_rows", (x,), quantized, source)
