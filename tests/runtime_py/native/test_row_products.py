"""Rows that are quantized and all their products, as one native step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from native_calls import run_native
from op_cases import type_of
from quantized_rows import some_blocks
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.runtime.delegates.cpu import binding
from kvc.schema.backends import cpu_rows
from kvc.schema.backends.cpu_rows import products_of_rows, unwritten
from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Caller,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    Storage,
    Value,
)
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType

WIDTH, ROWS = 40, 50


class Gated(nn.Module):
    """Two products of normed rows, views in between, a gated one, and a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 51), nn.Linear(WIDTH, 51, bias=False)
        self.more, self.down = nn.Linear(WIDTH, 7), nn.Linear(51, 5)
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.transpose(0, 1)
        normed = self.norm(x)
        gated = torch.nn.functional.silu(self.gate(normed)) * self.up(normed)
        return self.down(gated), self.more(x).transpose(0, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    rows = Dim("rows", 1, ROWS)
    method = Method("forward", args=(torch.randn(WIDTH, 9),), dynamic={"x": {1: rows}})
    path = tmp_path_factory.mktemp("merging") / "gated.kvc"
    compile_program(Gated().eval(), (method,), recipe="cpu_q8").save(path)
    return path


def test_products_that_run_together_have_the_bits_of_the_reference(path: Path):
    with load(path) as native, load(path, reference=True) as other:
        for rows in (*range(1, 20), 24, 33, ROWS):
            x = np.random.default_rng(rows).normal(size=(WIDTH, rows))
            x = x.astype(np.float32)
            found, expected = native.session().forward(x), other.session().forward(x)
            assert np.array_equal(found[1], expected[1])
            np.testing.assert_allclose(found[0], expected[0], rtol=0.02, atol=0.01)


def test_rows_made_with_products_have_the_bits_of_those_made_before(path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(WIDTH, ROWS)).astype(np.float32)
    found = _answers(path, [x[:, :n] for n in (1, 3, 9, ROWS)])
    monkeypatch.setattr(cpu_rows, "_source", lambda *_: ())
    expected = _answers(path, [x[:, :n] for n in (1, 3, 9, ROWS)])
    assert all(map(np.array_equal, found, expected))


class Wide(nn.Module):
    """Rows so wide that it takes several threads to make a few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.RMSNorm(2048), nn.Linear(2048, 8)
        self.gate, self.up = nn.Linear(8, 4100), nn.Linear(8, 4100)
        self.down = nn.Linear(4100, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.first(self.norm(x))
        gate = torch.nn.functional.gelu(self.gate(normed))
        return normed, self.down(gate * self.up(normed))


def test_few_wide_rows_have_the_bits_of_those_made_before(tmp_path, monkeypatch):
    rows = Dim("rows", 1, ROWS)
    method = Method("forward", (torch.zeros(9, 2048),), dynamic={"x": {0: rows}})
    path = tmp_path / "wide.kvc"
    compile_program(Wide().eval(), (method,), recipe="cpu_q8").save(path)
    x = np.random.default_rng(0).normal(size=(ROWS, 2048)).astype(np.float32)
    found = _answers(path, [x[:n] for n in (1, 7, 9, 32, ROWS)])
    monkeypatch.setattr(cpu_rows, "_source", lambda *_: ())
    expected = _answers(path, [x[:n] for n in (1, 7, 9, 32, ROWS)])
    assert all(map(np.array_equal, found, expected))


def _answers(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    with load(path) as program:
        return [part for x in inputs for part in program.session().forward(x)]


def test_products_of_the_same_rows_are_one_group(path: Path):
    with load(path) as program:
        (method,) = program._engine.program.methods
        (block,) = method.blocks
        groups = products_of_rows(block.graph)
    # Rows as they are and a product, of a gated unit, and normed ones with two.
    assert sorted(len(group) for group in groups.values()) == [2, 3, 4]


SOURCES = {
    "kvc::glu": (Ref(0), Ref(1), "silu"),
    "aten::rms_norm": (Ref(0), (96,), Ref(2), 1e-5),
}


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("op", "parts"), [("q8", 1), ("q8", 3), ("q4", 1)])
def test_rows_in_blocks_have_the_bits_of_those_made_before(
    source: str, op: str, parts: int, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    if op == "q8":
        weight = torch.randint(-128, 128, (56, 96), dtype=torch.int8)
        scale = torch.rand(56, parts)
    else:
        weight = torch.randint(0, 256, (7, 12, 8, 4), dtype=torch.uint8)
        scale = torch.rand(7, 3, 8).bfloat16()
    for rows in (1, 3, 9, 33):
        x = some_blocks(rows, 96)
        given = x, x.flip(0).contiguous(), torch.rand(96), weight, scale
        built = _two_products(source, f"kvc::linear_{op}", given)
        assert len(products_of_rows(built)[3]) == 4
        together = _run(built, given)
        with monkeypatch.context() as patched:
            patched.setattr(binding, "products_of_rows", lambda _: {})
            apart = _run(built, given)
        assert torch.equal(together[0], apart[0])
        assert torch.equal(together[1], apart[1])


def _two_products(source: str, op: str, given: tuple[Tensor, ...]) -> Graph:
    """Return a graph of rows that are made, quantized, and multiplied twice."""
    rows = len(given[0])
    made = [
        ((rows, 96), DType.FLOAT32),
        ((rows, 96), DType.INT8),
        ((rows, 1), DType.FLOAT32),
        ((rows, 3), DType.INT8),
        ((rows, 3), DType.INT8),
        ((rows, 56), DType.FLOAT32),
        ((rows, 56), DType.FLOAT32),
    ]
    size = -(-rows * 96 * 4 // 64) * 64
    values = [
        Value(type_of(x), Caller() if i < 3 else Constant(i))
        for i, x in enumerate(given)
    ]
    values += [
        Value(TensorType(dtype, shape), Scratch(i * size, size))
        for i, (shape, dtype) in enumerate(made)
    ]
    absent = (None,) * (len(OPS[op].params) - 6)
    arguments = (*(Ref(i) for i in (6, 7, 8, 9, 3, 4)), *absent)
    instructions = (
        Instruction(source, SOURCES[source], (5,)),
        Instruction("kvc::quantize_blocks", (Ref(5),), (6, 7, 8, 9)),
        Instruction(op, arguments, (10,)),
        Instruction(op, arguments, (11,)),
    )
    nbytes = size * len(made)
    return Graph(tuple(values), (0, 1, 2), (10, 11), instructions, nbytes, nbytes)


def _run(built: Graph, given: tuple[Tensor, ...]) -> list[Tensor]:
    return run_native(
        built, dict(enumerate(given)), [torch.empty(len(given[0]), 56)] * 2, 2
    )


def graph(
    *instructions: Instruction, outputs: tuple[int, ...] = (6, 8), **lies: Storage
) -> Graph:
    """Return a graph in which values 4 and 5 are constants, and others scratch."""
    storages = [Caller(), *(Scratch(64 * i, 64) for i in range(1, 12))]
    storages[4], storages[5] = Constant(0), Constant(1)
    storages[11] = Constant(2)
    for name, storage in lies.items():
        storages[int(name.removeprefix("value"))] = storage
    kind = TensorType(DType.FLOAT32, (1, 4))
    values = [Value(kind, storage) for storage in storages]
    values[11] = Value(TensorType(DType.FLOAT32, (1, 2)), storages[11])
    return Graph(tuple(values), (0,), outputs, instructions, 768, 768)


QUANTIZE = Instruction("kvc::quantize_rows", (Ref(0),), (1, 2, 3))


def product(
    result: int, *, zero_point: int = 3, weight: int = 4, bias: Ref | None = None
) -> Instruction:
    arguments = (Ref(1), Ref(2), Ref(zero_point), Ref(weight), Ref(5), bias)
    return Instruction("kvc::linear_qd8", arguments, (result,))


BLOCKS = Instruction("kvc::quantize_blocks", (Ref(0),), (1, 2, 3, 10))


def of_blocks(
    result: int, *, factor: int = 10, scale: int = 5, op: str = "kvc::linear_q8"
) -> Instruction:
    rows = Ref(1), Ref(2), Ref(3), Ref(factor)
    absent = (None,) * (len(OPS[op].params) - 6)
    return Instruction(op, (*rows, Ref(4), Ref(scale), *absent), (result,))


def view(operand: int, result: int) -> Instruction:
    return Instruction("aten::view", (Ref(operand), (4,)), (result,))


def test_a_group_ends_where_something_else_runs_in_between():
    together = graph(QUANTIZE, product(6), view(6, 7), product(8))
    assert products_of_rows(together) == {3: (0, 1, 3)}
    other = Instruction("aten::neg", (Ref(6),), (7,))
    assert not products_of_rows(graph(QUANTIZE, product(6), other, product(8)))


def test_rows_in_blocks_go_with_their_products():
    made = graph(NORM, BLOCKS, of_blocks(6), of_blocks(8), value0=Scratch(0, 64))
    assert products_of_rows(made) == {3: (0, 1, 2, 3)}
    assert unwritten(made) == {0, 1, 2, 3, 10}
    int4 = [of_blocks(result, op="kvc::linear_q4") for result in (6, 8)]
    assert products_of_rows(graph(BLOCKS, *int4)) == {2: (0, 1, 2)}


def test_products_of_blocks_run_on_their_own_where_they_read_rows_in_two_forms():
    assert not products_of_rows(graph(BLOCKS, of_blocks(6), of_blocks(8, factor=9)))
    # Scales of one and of several parts of the same rows.
    assert not products_of_rows(graph(BLOCKS, of_blocks(6), of_blocks(8, scale=11)))
    int4 = of_blocks(8, op="kvc::linear_q4")
    assert not products_of_rows(graph(BLOCKS, of_blocks(6), int4))
    assert not products_of_rows(graph(BLOCKS, product(6), product(8)))


def test_rows_that_others_read_are_quantized_on_their_own():
    assert not products_of_rows(graph(QUANTIZE, product(6), outputs=(2, 6)))
    reader = Instruction("aten::neg", (Ref(2),), (7,))
    assert not products_of_rows(graph(QUANTIZE, product(6), reader))
    assert not products_of_rows(graph(QUANTIZE, product(6, zero_point=9)))
    assert not products_of_rows(graph(QUANTIZE))


GLU = Instruction("kvc::glu", (Ref(7), Ref(9), "silu"), (0,))
OTHER = Instruction("aten::neg", (Ref(7),), (9,))
NORM = Instruction("aten::rms_norm", (Ref(7), (4,), None, 1e-5), (0,))


@pytest.mark.parametrize("source", [GLU, NORM])
def test_what_makes_the_rows_alone_goes_with_them(source: Instruction):
    rows = {"value0": Scratch(0, 64)}
    made = graph(source, QUANTIZE, product(6), product(8), **rows)
    assert products_of_rows(made) == {3: (0, 1, 2, 3)}
    assert unwritten(made) == {0, 1, 2, 3}
    parted = (source, view(7, 9), QUANTIZE, product(6))
    assert products_of_rows(graph(*parted, **rows)) == {3: (0, 2, 3)}


@pytest.mark.parametrize("source", [GLU, NORM])
def test_rows_that_others_read_are_made_on_their_own(source: Instruction):
    rows = {"value0": Scratch(0, 64)}
    reader = Instruction("aten::neg", (Ref(0),), (9,))
    apart = [
        graph(source, QUANTIZE, product(6)),  # in the memory of the caller
        graph(source, QUANTIZE, product(6), outputs=(0, 6), **rows),
        graph(source, QUANTIZE, product(6), reader, **rows),
        graph(source, reader, QUANTIZE, product(6), **rows),
        graph(source, OTHER, QUANTIZE, product(6), **rows),
    ]  # fmt: skip
    for one in apart:
        assert all(0 not in group for group in products_of_rows(one).values())
        assert products_of_rows(one)


def test_a_norm_over_two_axes_is_made_on_its_own():
    wide = Instruction("aten::rms_norm", (Ref(7), (1, 4), None, 1e-5), (0,))
    one = graph(wide, QUANTIZE, product(6), value0=Scratch(0, 64))
    assert products_of_rows(one) == {2: (1, 2)}


def test_products_that_read_what_is_computed_run_on_their_own():
    bias = view(6, 7)
    last = product(8, bias=Ref(7))
    lies = {"value7": Alias(6)}
    assert not products_of_rows(graph(QUANTIZE, product(6), bias, last, **lies))
    before = Instruction("aten::neg", (Ref(0),), (9,))
    first = product(6, bias=Ref(9))
    assert not products_of_rows(graph(before, QUANTIZE, first, product(8)))
    assert not products_of_rows(graph(QUANTIZE, product(6, weight=1)))


def test_products_whose_results_others_may_lie_over_run_on_their_own():
    """Of a result that nobody reads, the next product may have the memory."""
    both = (QUANTIZE, product(6), product(8))
    assert products_of_rows(graph(*both))
    assert not products_of_rows(graph(*both, outputs=(8,)))
    assert not products_of_rows(graph(*both, value6=Alias(0)))
    assert not products_of_rows(graph(*both, value1=Alias(0)))
