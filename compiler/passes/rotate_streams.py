"""Rotate the streams between layers, so that no coordinate of a row is large.

A stream is defined in `kvc.compiler.analysis.streams`. A quantized row has one scale
for all its values, so a few large coordinates make the small ones inexact. Trained
models have such coordinates, at the same index of each row. A rotation spreads the
large coordinates over the whole row. The program computes the same results: embedding
tables and the layers that write the stream produce rotated rows. The layers after the
norms read rotated rows, and their matrices include the norms' weights. A table that is
tied to an output layer stays one matrix; the weight of the norm before that layer is
applied by an added product. In: a program. Out: the same program over rotated weights,
which are computed when they are read.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch
from torch import Tensor

from kvc.compiler.analysis.streams import PLAIN, Norm, Side, Streams, find_streams
from kvc.compiler.ir import Argument, Constant, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import NodeList
from kvc.compiler.weights.rotation import Rotated, RotatedBias, RotatedScale, rotated
from kvc.compiler.weights.sources import ROTATED, Computed, Make, Source
from kvc.compiler.weights.weight_reader import WeightReader, read
from kvc.schema.dtypes import DType
from kvc.schema.errors import PassFailed
from kvc.schema.types import TensorType

# A rotated weight is rounded to float32 once more than its original.
_TOLERANCE: Final = 1e-5
_CHECKED_ROWS: Final = 16


@dataclass(frozen=True, slots=True)
class RotateStreams:
    """Rotate every stream all of whose readers and writers can be rotated."""

    name: ClassVar[str] = "rotate-streams"

    def run(self, program: Program) -> Program:
        """Return the program with rotated streams.

        Raises:
            PassFailed: a sample of the rotated weights does not compute the same as the
                original weights.
        """
        done = (c.name for c in program.constants if isinstance(c.source, Computed))
        streams = find_streams(program, frozenset(done))
        if not streams.sides:
            return program
        book = _Book(program, streams)
        methods = tuple(_Rewriting(m, book).run() for m in program.methods)
        constants = (*program.constants, *book.made.values())
        _check_weights(book)
        return replace(program, constants=constants, methods=methods)


class _Book:
    """The constants of a program, and the constants derived from them, by name."""

    def __init__(self, program: Program, streams: Streams) -> None:
        self.streams = streams
        self.methods = [method.name for method in program.methods]
        self.originals = {c.name: c for c in program.constants}
        self.made: dict[str, Constant] = {}

    def is_rotated(self, name: str, side: str) -> bool:
        """Tell whether the side "reads" or "makes" of a constant is rotated."""
        return Side(name, side) in self.streams.sides  # type: ignore[arg-type]

    def rotated(self, name: str) -> Constant | None:
        """Return the rotated form of a constant, None if no side of it is rotated."""
        make = Rotated(self.is_rotated(name, "makes"), self.is_rotated(name, "reads"))
        if not (make.rows or make.columns):
            return None
        norm = self.streams.folded.get(name, PLAIN) if make.columns else PLAIN
        bases = (name,) if norm.weight is None else (name, norm.weight)
        return self._make(
            f"{name}{ROTATED}", make, bases, self.originals[name].type.dims
        )

    def bias(self, weight: str, before: str, bias: str | None) -> Constant:
        """Return the bias of a layer whose matrix includes the preceding norm.

        Args:
            weight: name of the layer's matrix.
            before: name of the norm's bias.
            bias: name of the layer's own bias, None if it has none.
        """
        name = ".".join((weight, "bias", before, *([bias] if bias else [])))
        bases = (weight, before, *([bias] if bias else []))
        make = RotatedBias(self.is_rotated(weight, "makes"))
        return self._make(name, make, bases, self.originals[weight].type.dims[:1])

    def scale(self, weight: str) -> Constant:
        """Return the matrix that replaces the norm weight named `weight`."""
        (width,) = self.originals[weight].type.dims
        name = f"{weight}.rotated_scale"
        return self._make(name, RotatedScale(), (weight,), (width, width))

    def row(self, vector: str) -> Constant:
        """Return the rotated form of the norm bias named `vector`."""
        dims = self.originals[vector].type.dims
        return self._make(f"{vector}{ROTATED}", Rotated(False, True), (vector,), dims)

    def _make(
        self, name: str, make: Make, bases: tuple[str, ...], dims: tuple[object, ...]
    ) -> Constant:
        sources: tuple[Source, ...] = tuple(self.originals[b].source for b in bases)
        shape = tuple(size for size in dims if isinstance(size, int))
        kind = TensorType(DType.FLOAT32, shape)
        provenance = f"{RotateStreams.name} of {bases[0]}"
        made = Constant(name, kind, Computed(make, sources, shape), provenance)
        assert self.made.setdefault(name, made) == made
        return made


class _Rewriting:
    """Rewrites a method over rotated weights."""

    def __init__(self, method: Method, book: _Book) -> None:
        self._method, self._book = method, book
        self._names = {value.id: name for value, name in method.constants}
        self._values = {name: value for value, name in method.constants}
        self._nodes = NodeList(method)

    def run(self) -> Method:
        """Return the method over rotated weights."""
        for node in self._method.nodes:
            self._nodes.keep(self._changed(node))
        return replace(
            self._method,
            nodes=tuple(self._nodes.nodes),
            constants=tuple((value, name) for name, value in self._values.items()),
        )

    def _changed(self, node: Node) -> Node:
        match node.op:
            case "aten::rms_norm" | "aten::layer_norm":
                if not self._is_rotated(node.outputs[0]):
                    return node
                x, *rest = node.arguments
                plain = (None if isinstance(a, Value) else a for a in rest)
                return replace(node, arguments=(self._operand(x), *plain))
            case "aten::linear":
                return self._linear(node)
            case _:
                made = tuple(self._operand(a) for a in node.arguments)
                return replace(node, arguments=made)

    def _linear(self, node: Node) -> Node:
        x, weight, bias = node.arguments
        assert isinstance(x, Value)
        assert isinstance(weight, Value)
        name = self._names.get(weight.id)
        if name is None:
            return node
        norm = PLAIN
        if self._is_rotated(x):
            norm = self._book.streams.norms.get((self._method.name, x.id), PLAIN)
            if norm != self._book.streams.folded.get(name):
                x, norm = self._scaled(x, norm, node.source), PLAIN
        if norm.bias is not None:
            own = None if not isinstance(bias, Value) else self._names[bias.id]
            bias = self._constant(self._book.bias(name, norm.bias, own))
        else:
            bias = self._operand(bias)
        return replace(node, arguments=(self._operand(x), self._operand(weight), bias))

    def _scaled(self, x: Value, norm: Norm, source: str) -> Value:
        """Add nodes that apply a norm's weight and bias to its rotated result `x`."""
        if norm.weight is not None:
            scale = self._constant(self._book.scale(norm.weight))
            x = self._nodes.add("aten::matmul", (x, scale), x.type, source)
        if norm.bias is not None:
            bias = self._constant(self._book.row(norm.bias))
            x = self._nodes.add("aten::add.Tensor", (x, bias, 1), x.type, source)
        return x

    def _is_rotated(self, value: Value) -> bool:
        name = self._names.get(value.id)
        if name is not None:
            return self._book.is_rotated(name, "reads")
        return (self._method.name, value.id) in self._book.streams.values

    def _operand(self, argument: Argument) -> Argument:
        """Return the rotated form of a constant argument, or the argument itself.

        A constant without a rotated form, or any other argument, is returned unchanged.
        """
        if not isinstance(argument, Value) or argument.id not in self._names:
            return argument
        made = self._book.rotated(self._names[argument.id])
        return argument if made is None else self._constant(made)

    def _constant(self, constant: Constant) -> Value:
        if constant.name not in self._values:
            self._values[constant.name] = self._nodes.value(constant.type)
        return self._values[constant.name]


def _check_weights(book: _Book) -> None:
    """Compare one rotated matrix for each way to rotate with its original, in float64.

    Raises:
        PassFailed: products with the rotated and the original matrix differ.
    """
    checked = set[Make]()
    for made in book.made.values():
        source = made.source
        assert isinstance(source, Computed)
        is_matrix = isinstance(source.make, Rotated) and len(made.type.dims) == 2
        if is_matrix and source.make not in checked:
            checked.add(source.make)
            if not _is_same(source):
                raise PassFailed(
                    step=RotateStreams.name,
                    method=", ".join(book.methods),
                    node=f"constant {made.name}",
                    place="",
                    reason="it does not equal the rotated original",
                )


def _is_same(source: Computed) -> bool:
    """Tell whether a rotated matrix computes the same as its original."""
    make = source.make
    assert isinstance(make, Rotated)
    if make.rows:
        before, after = read(source.bases[0]), read(source)
    else:
        blocks = (WeightReader().blocks(s, True) for s in (source.bases[0], source))
        before, after = (next(b)[:_CHECKED_ROWS] for b in blocks)
    row = torch.linspace(-1, 1, before.shape[1], dtype=torch.float64).exp()
    given = row[None]
    for scale in source.bases[1:]:
        row = row * read(scale).double()
    wanted = _product(before, row)
    wanted = rotated(wanted) if make.rows else wanted
    found = _product(after, (rotated(given) if make.columns else given)[0])
    size = _product(before.abs(), row.abs()).max()
    return not bool(((found - wanted).abs() > size * _TOLERANCE).any())


def _product(matrix: Tensor, row: Tensor) -> Tensor:
    """Return the dot product of each row of `matrix` with `row`, float64 [out]."""
    return (matrix.double() * row).sum(-1)
