"""Programs whose methods are one delegate each, drawn with `partition_sketch.Sketch`.

`partition_program` makes a program of several sketches. `linear_sketch` draws a
quantized linear layer with a given weight, scales and bias.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from hand_built import Built, method, program
from partition_sketch import SEQ, Sketch
from sample_programs import GraphBuilder

from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Block, Delegate, MemoryKind
from kvc.schema.types import Symbol

Drawn = tuple[Sketch, tuple[Ref, ...]]


def partition_program(partitions: Mapping[str, Drawn]) -> Built:
    """Return a program with a method for each sketch; its inputs are x0, x1, ...

    The sketch's data is named after the method and the sketch's own name: "forward.c0".
    """
    arrays, methods, delegates, symbols = {}, [], [], {}
    for index, (name, (sketch, outputs)) in enumerate(partitions.items()):
        own = {f"{name}.{key}": array for key, array in sketch.arrays.items()}
        first = len(arrays)
        arrays.update(own)
        inside = sketch.graph(*outputs, first_name=first)
        ids = tuple(range(first, len(arrays)))
        delegates.append(_delegate(inside, index, ids))
        inputs = [f"x{i}" for i in range(len(inside.inputs))]
        caller = _caller(inside, sketch.symbols)
        methods.append(method(name, caller, inputs, blocks=(Block(inside, ()),)))
        symbols.update(sketch.symbols)
    return program(methods, arrays, symbols=list(symbols.values()), delegates=delegates)


def _delegate(graph: Graph, method_id: int, names: tuple[int, ...]) -> Delegate:
    nbytes, opaque = graph.scratch_nbytes, MemoryKind.OPAQUE
    return Delegate("xnnpack", method_id, 0, b"", names, opaque, nbytes, 16)


def _caller(graph: Graph, symbols: Mapping[str, Symbol]) -> Graph:
    b = GraphBuilder(symbols)
    ends = [graph.values[value].type for value in (*graph.inputs, *graph.outputs)]
    values, count = list(map(b.scratch, ends)), len(graph.inputs)
    inputs, results = values[:count], values[count:]
    operands = tuple(map(Ref, inputs))
    called = (0, operands, (None,) * len(results))
    b.step("kvc::delegate", called, *results, source="model:1")
    made = b.graph(inputs, results)
    nbytes = b.top + 64  # after the last one, where the library may read
    return replace(made, scratch_nbytes=nbytes, peak_nbytes=b.top)


def linear_sketch(
    weight: np.ndarray, scales: np.ndarray, bias: np.ndarray | None = None
) -> Drawn:
    """Return a sketch of a linear layer of x float32 [seq, in].

    The weight is int8 [out, in], the scales float32 [out].
    """
    sketch = Sketch()
    x = sketch.input(SEQ, weight.shape[1])
    rows = sketch("kvc::quantize_rows", x)
    constants = [sketch.constant(weight), sketch.constant(scales)]
    added = None if bias is None else sketch.constant(bias)
    return sketch, (sketch("kvc::linear_qd8", *rows, *constants, added),)


def float_sketch(weight: np.ndarray, bias: np.ndarray | None = None) -> Drawn:
    """Return a sketch of a linear layer of x float32 [seq, in], weight [out, in]."""
    sketch = Sketch()
    x = sketch.input(SEQ, weight.shape[1])
    added = None if bias is None else sketch.constant(bias)
    return sketch, (sketch("aten::linear", x, sketch.constant(weight), added),)


def product_sketch(matrices: np.ndarray) -> Drawn:
    """Return a sketch of x [batch, 4, in] times `matrices` float32 [batch, in, out]."""
    sketch = Sketch()
    batch, columns, _ = matrices.shape
    x = sketch.input(batch, 4, columns)
    return sketch, (sketch("aten::bmm", x, sketch.constant(matrices)),)


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return random int8 numbers of this shape."""
    generator = np.random.default_rng(seed)
    return generator.integers(-127, 128, shape, dtype=np.int8)
