"""Programs whose methods are one delegate each, drawn with `xnnpack_graphs.Sketch`.

`partition_program` makes one of sketches; `linear_sketch` draws a quantized linear,
whose weight, scales and bias the tests choose.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from hand_built import Built, method, program
from partition_sketch import SEQ, Sketch

from kvc.schema.graph import Graph, Instruction, Ref, Scratch, Value
from kvc.schema.model import Block, Delegate, MemoryKind
from kvc.schema.types import Symbol

Drawn = tuple[Sketch, tuple[Ref, ...]]


def partition_program(partitions: Mapping[str, Drawn]) -> Built:
    """Return a program with a method for each sketch; its inputs are x0, x1, ...

    Names of data are those of the sketch after the method's: "forward.c0".
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
        caller = _caller(inside, list(sketch.symbols.values()))
        methods.append(method(name, caller, inputs, blocks=(Block(inside, ()),)))
        symbols.update(sketch.symbols)
    return program(methods, arrays, symbols=list(symbols.values()), delegates=delegates)


def _delegate(graph: Graph, method_id: int, names: tuple[int, ...]) -> Delegate:
    nbytes, opaque = graph.scratch_nbytes, MemoryKind.OPAQUE
    return Delegate("xnnpack", method_id, 0, b"", names, opaque, nbytes, 16)


def _caller(graph: Graph, symbols: Sequence[Symbol]) -> Graph:
    values, offset = [], 0
    for kind in [graph.values[value].type for value in (*graph.inputs, *graph.outputs)]:
        nbytes = kind.max_nbytes({symbol.name: symbol for symbol in symbols})
        values.append(Value(kind, Scratch(offset, nbytes)))
        offset += -(-nbytes // 64) * 64
    count = len(graph.inputs)
    results = tuple(range(count, len(values)))
    operands = tuple(Ref(i) for i in range(count))
    arguments = (0, operands, (None,) * len(results))
    call = Instruction("kvc::delegate", arguments, results, "model:1")
    inputs = tuple(range(count))
    nbytes = offset + 64  # after the last one, where the library may read
    return Graph(tuple(values), inputs, results, (call,), nbytes, offset)


def linear_sketch(
    weight: np.ndarray, scales: np.ndarray, bias: np.ndarray | None = None
) -> Drawn:
    """Return `x [seq, in] -> linear`; weight int8 [out, in], scales float32 [out]."""
    sketch = Sketch()
    x = sketch.input(SEQ, weight.shape[1])
    rows = sketch("kvc::quantize_rows", x)
    constants = [sketch.constant(weight), sketch.constant(scales)]
    added = None if bias is None else sketch.constant(bias)
    return sketch, (sketch("kvc::linear_qd8", *rows, *constants, added),)


def float_sketch(weight: np.ndarray, bias: np.ndarray | None = None) -> Drawn:
    """Return `x [seq, in] -> linear`; weight float32 [out, in]."""
    sketch = Sketch()
    x = sketch.input(SEQ, weight.shape[1])
    added = None if bias is None else sketch.constant(bias)
    return sketch, (sketch("aten::linear", x, sketch.constant(weight), added),)


def product_sketch(matrices: np.ndarray) -> Drawn:
    """Return `x [batch, 4, in] -> x @ matrices`; float32 [batch, in, out]."""
    sketch = Sketch()
    batch, columns, _ = matrices.shape
    x = sketch.input(batch, 4, columns)
    return sketch, (sketch("aten::bmm", x, sketch.constant(matrices)),)


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return int8 numbers."""
    generator = np.random.default_rng(seed)
    return generator.integers(-127, 128, shape, dtype=np.int8)
