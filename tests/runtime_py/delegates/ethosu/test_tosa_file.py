"""Files of TOSA: what a reader that knows only FlatBuffers finds in them."""

import re
from pathlib import Path

import numpy as np
import pytest
from flatbuffers.table import Table
from tosa_reference import MODEL, needs_tosa, reference

from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder
from kvc.runtime.delegates.ethosu.tosa_file import KINDS, tosa_bytes

ELEMENTS = {"int8": 3, "int16": 4, "int32": 5, "int48": 6}
POINT = {"pad": (1, 0, 2, 1), "stride": (1, 2), "dilation": (2, 1)}


def sample():
    """Return a graph of every kind of operator."""
    builder = GraphBuilder()
    x, y = (
        builder.input(shape, Element.INT8) for shape in ((1, 5, 6, 2), (1, 1, 6, 2))
    )
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (3, 2, 3, 2))
    wide = builder.convolution(
        "CONV2D", x, weight, random.integers(-999, 999, 3), -7, POINT
    )
    numbers = [(1 << 30, 38), (3 << 29, 40), (1 << 30, 36)]
    small = builder.rescale(wide, numbers, (0, 5), Element.INT8)
    deep = builder.convolution(
        "DEPTHWISE_CONV2D", x, random.integers(-127, 128, (2, 2, 2, 2)),
        np.arange(4), 9, {"pad": (1, 0, 1, 0), "stride": (2, 1), "dilation": (1, 1)},
    )  # fmt: skip
    narrow = builder.rescale(deep, [(1 << 30, 39)], (0, -3), Element.INT8)
    ints = [builder.rescale(v, [(1 << 30, 30)], (4, 0), Element.INT32) for v in (x, y)]
    total = builder.arithmetic("ADD", *ints)
    least = builder.arithmetic("SUB", total, ints[1])
    product = builder.multiply(least, ints[1])
    back = builder.rescale(product, [(1 << 30, 38)], (0, 1), Element.INT8)
    looked = builder.table(back, random.integers(-128, 128, 256))
    both = builder.concat([looked, x], 2)
    part = builder.slice(both, (0, 1, 3, 0), (1, 2, 4, 1))
    turned = builder.transpose(part, (0, 3, 1, 2))
    flat = builder.reshape(turned, (1, 8))
    tiled = builder.tile(flat, (3, 8))
    return builder.graph([small, narrow, tiled, x, looked, looked])


class Reader:
    """Reads a FlatBuffers table by slots."""

    def __init__(self, raw, place=None):
        self.raw = raw
        start = int.from_bytes(raw[:4], "little") if place is None else place
        self.table = Table(raw, start)

    def at(self, slot):
        offset = self.table.Offset(4 + 2 * slot)
        return self.table.Pos + offset if offset else None

    def number(self, slot, nbytes=4):
        at = self.at(slot)
        return (
            None if at is None else int.from_bytes(self.raw[at : at + nbytes], "little")
        )

    def text(self, slot):
        return self.table.String(self.at(slot)).decode()

    def child(self, slot):
        return Reader(self.raw, self.table.Indirect(self.at(slot)))

    def _vector(self, slot):
        offset = self.table.Offset(4 + 2 * slot)
        return self.table.Vector(offset), self.table.VectorLen(offset)

    def children(self, slot):
        start, count = self._vector(slot)
        places = [self.table.Indirect(start + 4 * i) for i in range(count)]
        return [Reader(self.raw, place) for place in places]

    def texts(self, slot):
        start, count = self._vector(slot)
        return [self.table.String(start + 4 * i).decode() for i in range(count)]

    def array(self, slot, dtype):
        start, count = self._vector(slot)
        return np.frombuffer(self.raw, dtype, count, start), start


def test_a_file_is_of_version_1_0_0_and_no_draft():
    raw = tosa_bytes(sample())
    assert raw[4:8] == b"TOSA"
    version = Reader(raw).child(0)
    assert [version.number(slot) for slot in range(3)] == [1, 0, 0]
    assert version.number(3, 1) == 0


def test_a_file_has_all_of_a_graph():
    graph = sample()
    (region,) = Reader(tosa_bytes(graph)).children(1)
    (block,) = region.children(1)
    assert block.texts(3) == [*graph.inputs]
    assert block.texts(4) == [*graph.outputs]
    operators = {one.texts(4)[0]: one for one in block.children(1)}
    for operator in graph.operators:
        found = operators[operator.output]
        number, _ = KINDS[operator.kind]
        assert (found.number(0), found.number(1, 1)) == (number, number)
        assert found.texts(3) == [*operator.inputs]
    tensors = {one.text(0): one for one in block.children(2)}
    shapes = {one.text(0): one for one in block.children(5)}
    assert tensors.keys() | shapes.keys() == graph.tensors.keys() == {
        *operators, *graph.inputs,
    }  # fmt: skip
    for name, tensor in graph.tensors.items():
        if tensor.element is Element.SHAPE:
            content, start = shapes[name].array(2, np.uint8)
            assert content.view(np.int64).tolist() == tensor.content.tolist()
            assert shapes[name].number(1) == tensor.content.size
            assert start % 8 == 0
            continue
        assert tensors[name].array(1, np.int32)[0].tolist() == [*tensor.shape]
        assert tensors[name].number(2) == ELEMENTS[tensor.element.value]
        if tensor.content is not None:
            content, start = tensors[name].array(3, np.uint8)
            assert content.tobytes() == tensor.content.tobytes()
            assert start % 8 == 0


def test_attributes_are_where_the_schema_has_them():
    graph = sample()
    (region,) = Reader(tosa_bytes(graph)).children(1)
    operators = {one.texts(4)[0]: one for one in region.children(1)[0].children(1)}
    first = {
        one.kind: operators[one.output].child(2) for one in reversed(graph.operators)
    }
    convolution = first["CONV2D"]
    assert [convolution.array(s, np.int32)[0].tolist() for s in range(3)] == [
        [1, 0, 2, 1], [1, 2], [2, 1],
    ]  # fmt: skip
    assert convolution.number(4) == 5  # sums are int32
    rescale = first["RESCALE"]
    assert [rescale.number(0, 1), rescale.number(1), rescale.number(2, 1)] == [1, 1, 1]
    assert first["CONCAT"].number(0) == 2
    assert first["TRANSPOSE"].array(0, np.int32)[0].tolist() == [0, 3, 1, 2]


def test_equal_graphs_are_equal_bytes():
    assert tosa_bytes(sample()) == tosa_bytes(sample())


def test_an_output_is_no_input_and_none_stands_twice():
    graph = sample()
    assert len({*graph.outputs}) == len(graph.outputs) == 6
    assert not {*graph.outputs} & {*graph.inputs}


@pytest.mark.parametrize("seed", range(3))
@needs_tosa
def test_every_operator_is_what_the_reference_model_computes(tmp_path: Path, seed: int):
    graph, random = sample(), np.random.default_rng(seed)
    inputs = [
        random.integers(-128, 128, graph.tensors[name].shape) for name in graph.inputs
    ]
    found = evaluate(graph, inputs)
    wanted = reference(graph, inputs, tmp_path)
    assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


@needs_tosa
def test_the_numbers_of_operators_are_those_of_the_schema():
    (schema,) = (MODEL.parents[1] / "lib").rglob("tosa.fbs")
    body = re.search(r"enum Op:uint32 \{(.*?)\}", schema.read_text(), re.DOTALL)[1]
    names = [one.strip().partition(" ")[0] for one in body.split(",")]
    assert {kind: names.index(kind) for kind in KINDS} == {
        kind: number for kind, (number, _) in KINDS.items()
    }
