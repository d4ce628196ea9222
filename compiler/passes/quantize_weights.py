"""Quantize linear layers and embeddings.

`linear(x, weight)` becomes a product with quantized weights, in one of three forms. By
rows, with exactly XNNPACK's numerics: `quantize_rows(x)`, then `linear_qd8(...)` over
int8 weights with one scale per output channel, or `linear_qb4(...)` over int4 weights
with one scale per block of 32 inputs. By blocks: `quantize_blocks(x)`, then
`linear_q8(...)` over int8 weights or `linear_q4(...)` over int4 weights, both with a
scale per block of an output channel. With float activations: `linear_w8(x, ...)` over
int8 weights. `embedding(weight, ids)` reads int8 rows. Linear layers and embeddings
store an int8 matrix in the same way, so a tied embedding is one blob. For that reason a
matrix that is also an int8 embedding is never multiplied as int4: a second copy would
cost more than it saves, and be less exact. The matrices of experts are int8 if
activations are quantized. A matrix that a checkpoint has quantized in blocks is used as
it is by products by blocks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.stored_weights import (
    can_be_used,
    int4_as_stored,
    int8_as_stored,
)
from kvc.compiler.passes.weight_book import MethodBuilder, WeightBook, kept_weights
from kvc.compiler.weights.int4 import Moments
from kvc.compiler.weights.sources import Transform
from kvc.compiler.weights.stored_layout import StoredLayout
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.ops.row_blocks import block_count, weight_blocks
from kvc.schema.types import TensorType

NARROW: Final = ("qb4", "q4")  # int4


@dataclass(frozen=True, slots=True)
class _Form:
    """The operators of one quantization scheme, and the transforms of its weights."""

    rows: str
    int8: str
    int4: str
    experts: str
    values: Transform
    scales: Transform
    narrow_values: Transform
    narrow_scales: Transform

    @property
    def in_blocks(self) -> bool:
        """Tell whether each block of a row has a scale."""
        return self.values is Transform.INT8_BLOCKS


_BY_ROW: Final = _Form(
    rows="kvc::quantize_rows",
    int8="kvc::linear_qd8",
    int4="kvc::linear_qb4",
    experts="kvc::expert_linear_qd8",
    values=Transform.INT8,
    scales=Transform.INT8_SCALE,
    narrow_values=Transform.INT4,
    narrow_scales=Transform.INT4_SCALE,
)
_BY_BLOCK: Final = _Form(
    rows="kvc::quantize_blocks",
    int8="kvc::linear_q8",
    int4="kvc::linear_q4",
    experts="kvc::expert_linear_q8",
    values=Transform.INT8_BLOCKS,
    scales=Transform.INT8_BLOCKS_SCALE,
    narrow_values=Transform.INT4_SIGNED,
    narrow_scales=Transform.INT4_SIGNED_SCALE,
)


@dataclass(frozen=True, slots=True)
class QuantizeWeights:
    """Use quantized weights where an operator reads a constant float32 matrix.

    Attributes:
        linear: the scheme of linear layers. Activations are quantized at run time: by
            rows with "qd8" and "qb4", by blocks of 32 with "q8" and "q4". With "w8"
            activations stay float, and the matrices of experts stay float32. If the
            rows of a weight cannot be cut into blocks, or the number of rows is no
            multiple of eight, "qd8" replaces "qb4", and "q8" replaces "q4".
        embedding: whether embeddings are stored as int8.
        keep: patterns of weights that stay float32, such as routers.
        wide: names of weights that are stored as int8 even with "qb4" and "q4".
        moments: name of a weight -> moments of its layer's inputs; empty without
            samples.
    """

    name: ClassVar[str] = "quantize-weights"
    linear: Literal["float32", "qd8", "qb4", "w8", "q8", "q4"]
    embedding: bool
    keep: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()
    moments: Mapping[str, Moments] = field(default_factory=dict)

    def run(self, program: Program) -> Program:
        """Return the program over quantized weights.

        Raises:
            UnmatchedPattern: a pattern of `keep` matches no weight.
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
        return builder.method(nodes)

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
                yield from self._quantized(node, weight, tables, builder, book)
                return
        quantizing = self.linear not in ("float32", "w8")
        if quantizing and node.op == "kvc::expert_linear":
            weight = builder.weight_name(node.arguments[1], rank=3)
            if weight is not None and _has_columns(node.arguments[0]):
                yield from _quantized_experts(node, weight, self._form, builder, book)
                return
        if self.embedding and node.op == "aten::embedding":
            weight = builder.weight_name(node.arguments[0])
            if weight is not None and _has_columns(node.arguments[0]):
                table = node.arguments[0]
                stored = _int8_weight(table, weight, self._form, builder, book)
                arguments = (*stored, node.arguments[1])
                yield replace(node, op="kvc::embedding_q8", arguments=arguments)
                return
        yield node

    def _quantized(
        self,
        node: Node,
        name: str,
        tables: frozenset[str],
        builder: MethodBuilder,
        book: WeightBook,
    ) -> Iterator[Node]:
        narrow = self.linear in NARROW and name not in tables | self.wide
        x, weight, bias = node.arguments
        assert isinstance(x, Value)
        assert isinstance(weight, Value)
        form = self._form
        quantizing = _quantized_rows(x, form, builder, node.source)
        yield quantizing
        layout = _stored_layout(name, weight, form, book)
        if layout is not None and layout.bits == 4 and name not in tables:
            *kept, minimums = int4_as_stored(weight, name, layout, builder, book)
            arguments = (*quantizing.outputs, *kept, bias, minimums)
            yield replace(node, op=form.int4, arguments=arguments)
            return
        if narrow and _in_whole_blocks(weight) and layout is None:
            moments = self.moments.get(name)
            op = form.int4
            stored = _int4_weight(weight, name, form, moments, builder, book)
        else:
            op, stored = form.int8, _int8_weight(weight, name, form, builder, book)
        given = (*quantizing.outputs, *stored, bias)
        absent = (None,) * (len(OPS[op].params) - len(given))
        yield replace(node, op=op, arguments=(*given, *absent))

    @property
    def _form(self) -> _Form:
        return _BY_BLOCK if self.linear in ("q8", "q4") else _BY_ROW


def _has_columns(weight: object) -> bool:
    """Tell whether the rows of a weight have elements; an empty row has no scale."""
    return isinstance(weight, Value) and weight.type.dims[-1] != 0


def _is_float(argument: object) -> bool:
    return isinstance(argument, Value) and argument.type.dtype is DType.FLOAT32


def _tables(program: Program) -> Iterator[str]:
    """Yield the names of the constants that `aten::embedding` nodes read as tables."""
    for method in program.methods:
        names = {value.id: name for value, name in method.constants}
        for node in method.nodes:
            if node.op == "aten::embedding" and node.inputs[0].id in names:
                yield names[node.inputs[0].id]


def _stored_layout(
    name: str, weight: Value, form: _Form, book: WeightBook
) -> StoredLayout | None:
    """Return the layout in which a checkpoint has a matrix, if products can use it."""
    layout = (
        book.layout(name) if form.in_blocks and len(weight.type.dims) == 2 else None
    )
    return layout if layout is not None and can_be_used(layout, weight) else None


def _int8_weight(
    weight: object,
    name: str,
    form: _Form,
    builder: MethodBuilder,
    book: WeightBook,
    turned: bool = False,
) -> tuple[Value, Value]:
    """Return the values and the scales of a matrix, or stack of matrices, as int8.

    The values are int8 [..., out, in]. The scales are float32 [..., out], or [..., out,
    m] for m blocks in a row. If `turned` is set, the weights are [..., in, out], and
    their last two axes are exchanged before they are quantized.
    """
    assert isinstance(weight, Value)
    layout = _stored_layout(name, weight, form, book)
    if layout is not None and layout.bits == 8 and not turned:
        return int8_as_stored(weight, name, layout, builder, book)
    *count, rows, columns = weight.type.dims
    *lead, width = (*count, columns, rows) if turned else weight.type.dims
    assert isinstance(width, int)
    blocks = (weight_blocks(width),) if form.in_blocks else ()
    kind = TensorType(DType.INT8, (*lead, width))
    values = book.derive(name, form.values, kind, turned)
    kind = TensorType(DType.FLOAT32, (*lead, *blocks))
    scale = book.derive(name, form.scales, kind, turned)
    return builder.constant(values), builder.constant(scale)


def _int4_weight(
    weight: Value,
    name: str,
    form: _Form,
    moments: Moments | None,
    builder: MethodBuilder,
    book: WeightBook,
) -> tuple[Value, Value]:
    """Return the packed int4 values of a weight, and the scales.

    The values are uint8 [out / 8, in / 8, 8, 4], with two values in a byte; the scales
    are bfloat16 [out / 8, in / 32, 8].
    """
    rows, columns = weight.type.dims
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    groups, fours = rows // QB4_ROWS, columns // (2 * QB4_BYTES)
    packed = TensorType(DType.UINT8, (groups, fours, QB4_ROWS, QB4_BYTES))
    scales = TensorType(DType.BFLOAT16, (groups, columns // QB4_BLOCK, QB4_ROWS))
    values = book.derive(name, form.narrow_values, packed, moments=moments)
    scale = book.derive(name, form.narrow_scales, scales, moments=moments)
    return builder.constant(values), builder.constant(scale)


def may_be_int4(node: Node) -> bool:
    """Tell whether a node is a linear layer whose weight, if constant, can be int4."""
    if node.op != "aten::linear":
        return False
    x, weight = node.arguments[:2]
    return _is_float(x) and _is_float(weight) and _in_whole_blocks(weight)


def _in_whole_blocks(weight: object) -> bool:
    if not isinstance(weight, Value) or len(weight.type.dims) != 2:
        return False
    rows, columns = weight.type.dims
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return False
    return rows % QB4_ROWS == 0 and columns > 0 and columns % QB4_BLOCK == 0


def _floats_by_int8(
    node: Node, name: str, builder: MethodBuilder, book: WeightBook
) -> Node:
    x, weight, bias = node.arguments
    stored = _int8_weight(weight, name, _BY_ROW, builder, book)
    return replace(node, op="kvc::linear_w8", arguments=(x, *stored, bias))


def _quantized_experts(
    node: Node, name: str, form: _Form, builder: MethodBuilder, book: WeightBook
) -> Iterator[Node]:
    x, weight, experts, bias, turned = node.arguments
    assert isinstance(x, Value)
    stored = _int8_weight(weight, name, form, builder, book, bool(turned))
    quantizing = _quantized_rows(x, form, builder, node.source)
    yield quantizing
    arguments = (*quantizing.outputs, *stored, experts, bias)
    yield replace(node, op=form.experts, arguments=arguments)


def _quantized_rows(x: Value, form: _Form, builder: MethodBuilder, source: str) -> Node:
    *rows, width = x.type.dims
    values = builder.value(DType.INT8, *rows, width)
    scale = builder.value(DType.FLOAT32, *rows, 1)
    if form.in_blocks:
        assert isinstance(width, int)
        kinds = [(DType.INT8, block_count(width))] * 2  # zero points, factors
    else:
        kinds = [(DType.INT32, 1)]
    others = (builder.value(dtype, *rows, count) for dtype, count in kinds)
    return Node(form.rows, (x,), (values, scale, *others), source)
