"""Operators one by one, by the host, by Arm's reference model, and by Vela."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tosa_reference import needs_tosa, reference

from kvc.runtime.delegates.ethosu import vela
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder
from kvc.runtime.delegates.ethosu.tosa_file import tosa_bytes
from kvc.schema.errors import ExportFailed

INT8, INT16, INT32 = Element.INT8, Element.INT16, Element.INT32
SHAPE = (2, 3, 16)
BOUNDS = {INT8: (-128, 128), INT16: (-(1 << 15), 1 << 15), INT32: (-9999, 9999)}
POINT = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
needs_vela = pytest.mark.skipif(
    find_spec("ethosu") is None, reason="no Vela here: pip install 'kvc[ethosu]'"
)


def rescale(given, made):
    def build(builder):
        x = builder.input(SHAPE, given)
        return builder.rescale(x, [(1 << 30, 33)], (0, 0), made)

    return build


def arithmetic(kind, shape=SHAPE):
    def build(builder):
        one, other = builder.input(SHAPE, INT32), builder.input(shape, INT32)
        return builder.arithmetic(kind, one, other)

    return build


def shift(kind):
    def build(builder):
        one, other = builder.input(SHAPE, INT32), builder.input(SHAPE, INT32)
        few = builder.with_number("MINIMUM", other, 9)
        return builder.arithmetic(kind, one, builder.with_number("MAXIMUM", few, 0))

    return build


def multiply(bits):
    def build(builder):
        one, other = builder.input(SHAPE, INT32), builder.input((2, 3, 1), INT32)
        return builder.multiply(one, other, bits)

    return build


def convolution(kind, shape):
    def build(builder):
        random, x = np.random.default_rng(0), builder.input((1, 4, 3, 8), INT16)
        weight = random.integers(-127, 128, shape)
        bias = random.integers(-(1 << 34), 1 << 34, 8)
        sums = builder.convolution(kind, x, weight, bias, 0, POINT)
        numbers = [(20_000 + i, 36) for i in range(8)]
        return builder.rescale(sums, numbers, (0, 0), INT16)

    return build


def matmul(builder):
    one, other = builder.input((2, 3, 16), INT16), builder.input((2, 16, 5), INT16)
    made = builder.matmul(one, other)
    return builder.rescale(made, [(32_767, 20)], (0, 0), INT32)


def table(builder):
    entries = np.random.default_rng(0).integers(-16_000, 16_000, 513)
    return builder.table(builder.input(SHAPE, INT16), entries)


def scatter(builder):
    rows = builder.input((2, 2, 4), INT16)
    indices = builder.constant(np.array([[0, 4], [3, 1]]), INT32)
    return builder.scatter(builder.input((2, 5, 4), INT16), indices, rows)


def moves(builder):
    x = builder.input(SHAPE, INT16)
    part = builder.slice(x, (0, 1, 0), (2, 2, 16))
    turned = builder.transpose(part, (0, 2, 1))
    joined = builder.concat([turned, turned], 2)
    return builder.tile(builder.reshape(joined, (1, 1, 128)), (1, 3, 128))


CASES = {
    **{
        f"RESCALE {given.value} to {made.value}": rescale(given, made)
        for given in (INT8, INT16, INT32)
        for made in (INT8, INT16, INT32)
    },
    "ADD": arithmetic("ADD"),
    "SUB of one for each row": arithmetic("SUB", (2, 3, 1)),
    "MAXIMUM": arithmetic("MAXIMUM"),
    "MINIMUM": arithmetic("MINIMUM"),
    "LOGICAL_LEFT_SHIFT": shift("LOGICAL_LEFT_SHIFT"),
    "ARITHMETIC_RIGHT_SHIFT": shift("ARITHMETIC_RIGHT_SHIFT"),
    "MUL": multiply(0),
    "MUL with a shift": multiply(7),
    "CLZ": lambda builder: builder.leading_zeros(builder.input(SHAPE, INT32)),
    "REDUCE_SUM": lambda b: b.reduce("REDUCE_SUM", b.input(SHAPE, INT32)),
    "REDUCE_MAX": lambda b: b.reduce("REDUCE_MAX", b.input(SHAPE, INT32)),
    "CONV2D": convolution("CONV2D", (8, 2, 1, 8)),
    "DEPTHWISE_CONV2D": convolution("DEPTHWISE_CONV2D", (2, 1, 8, 1)),
    "MATMUL": matmul,
    "TABLE": table,
    "SCATTER": scatter,
    "CONCAT, RESHAPE, SLICE, TILE, TRANSPOSE": moves,
}
NOT_ON_U55 = {"MATMUL", "SCATTER", "REDUCE_MAX"}


def graph_of(name):
    builder = GraphBuilder()
    return builder.graph([CASES[name](builder)])


@needs_tosa
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_what_the_reference_model_computes(tmp_path: Path, name: str):
    graph, random = graph_of(name), np.random.default_rng(1)
    inputs = [
        random.integers(*BOUNDS[tensor.element], tensor.shape)
        for tensor in (graph.tensors[one] for one in graph.inputs)
    ]
    (found,), (wanted,) = evaluate(graph, inputs), reference(graph, inputs, tmp_path)
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()


@needs_vela
@pytest.mark.parametrize("name", CASES)
def test_u85_runs_an_operator(name: str):
    vela.compile_graph(tosa_bytes(graph_of(name)), "ethos-u85-256", "u85-256", name)


@needs_vela
@pytest.mark.parametrize("name", CASES)
def test_u55_runs_an_operator_or_vela_says_that_it_does_not(name: str):
    raw = tosa_bytes(graph_of(name))
    if name in NOT_ON_U55:
        with pytest.raises(ExportFailed, match="could not run on NPU"):
            vela.compile_graph(raw, "ethos-u55-128", "u55-128", name)
    else:
        vela.compile_graph(raw, "ethos-u55-128", "u55-128", name)
