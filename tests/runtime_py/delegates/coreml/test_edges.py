"""Operands at the edges of what an operator takes, as functions of Core ML."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from coreml_operators import check, function_of, given, graph_of
from coreml_programs import functions
from mil_numpy import Interpreter
from op_cases import Case
from op_cases.case import index, rand
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.runtime.delegates.coreml import worker
from kvc.runtime.delegates.coreml.calls import function_of as written
from kvc.runtime.delegates.coreml.mil import Data, Emitter, Function
from kvc.runtime.delegates.coreml.package import stored, write_job
from kvc.runtime.delegates.coreml.translation import TRAITS
from kvc.runtime.delegates.lowering.builder import Builder
from kvc.schema.backends.coreml import why_not
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

F32, I64, I8 = DType.FLOAT32, DType.INT64, DType.INT8


def masked(q: tuple[int, ...], k: tuple[int, ...], *mask: int) -> Case:
    given = rand(*mask) if mask else None
    arguments = (rand(*q), rand(*k), rand(*k), given, False, None, q[1] > k[1])
    return Case("aten::scaled_dot_product_attention", arguments)


def kept(start: int, count: int, *lengths: int) -> Case:
    """Return a write to a ring of 8 slots that keeps its first 3 positions."""
    starts, counted = index(start, start + 1), index(*lengths) if lengths else None
    written = rand(2, 1, 8, 4), rand(2, 1, count, 4), starts, 2, "circular", counted, 3
    return Case("kvc::cache_update", written)


EDGES = {
    "a ring that keeps, at its beginning": kept(0, 4),
    "a ring that keeps, over its end": kept(6, 4),
    "a ring that keeps, often round": kept(21, 1),
    "a ring that keeps, rows of several lengths": kept(2, 5, 1, 4),
    "truths among numbers": Case(
        "aten::cat", ((index([1, 2]) > 1, index([3, 4]), rand(1, 2)), 0)
    ),
    "truths or numbers": Case(
        "aten::where.self", (index(0, 1) > 0, index(1, 0) > 0, rand(2))
    ),
    "a sum of integers and floats": Case("aten::add.Tensor", (index(1, 2), rand(2), 1)),
    "the sine of integers": Case("aten::sin", (index(1, 2),)),
    "a table of integers": Case("aten::embedding", (index([7, 8], [9, 5]), index(1))),
    "one row of a mask for all queries": masked((2, 4, 5, 8), (2, 2, 7, 8), 1, 1, 1, 7),
    "one for each head": masked((2, 4, 5, 8), (2, 2, 7, 8), 2, 4, 1, 7),
    "queries of one head": masked((1, 1, 5, 8), (1, 4, 7, 8)),
    "queries of one row": masked((1, 4, 5, 8), (3, 4, 7, 8)),
    "an integer and a half": Case("aten::lt.Scalar", (index(0, 1, 2), 0.5)),
    "a row of equal numbers": Case(
        "aten::layer_norm", (torch.ones(2, 4), (4,), None, None, 1e-12)
    ),
}


@pytest.mark.parametrize("case", EDGES.values(), ids=EDGES)
def test_an_edge_is_near_eager(case: Case):
    run = Interpreter([function_of(case)], lambda name: graph_of(case)[1][name].numpy())
    check(list(run("call", **given(case)).values()), case)


def test_an_integer_of_more_than_32_bits_is_refused():
    told = why_not("aten::full", ((2,), 2**40, DType.INT64), (TensorType(I64, (2,)),))
    assert told == "1099511627776 is no number of 32 bits"


def test_scales_that_are_computed_are_not_taken():
    x, rows = Operand(TensorType(F32, (2, 4)), False), TensorType(F32, (3,))
    weight = Operand(TensorType(I8, (3, 4)), True)
    ids = Operand(TensorType(I64, (2,)), False)
    for constant, wanted in ((True, True), (False, False)):
        scale = Operand(rows, constant)
        product = why_not("kvc::linear_w8", (x, weight, scale, None), (x.type,))
        lookup = why_not("kvc::embedding_q8", (weight, scale, ids), (x.type,))
        assert [not product, not lookup] == [wanted, wanted]


def test_a_view_of_what_core_ml_has_no_tensors_of_is_not_taken():
    kind = TensorType(I8, (3, 4))
    told = why_not("aten::view", (Operand(kind, True), (12,)), (TensorType(I8, (12,)),))
    assert told == "it takes no tensors of int8"


def test_a_constant_is_converted_as_a_tensor_is():
    build = Builder(TRAITS.primitives)
    weights = (build.weight(0, dtype, (2,)) for dtype in ("float32", "int32"))
    outputs = {f"y{n}": build.cast(each, "float16") for n, each in enumerate(weights)}
    function = written(build.function("f", {}, outputs), ["x"])
    assert [call.kind for call in function.calls] == ["cast"] * 3
    half, whole = function.constants.values()
    assert {half, whole} == {
        Data("w0_x_fp16", 0, "fp16", (2,)),
        Data("w0_x_int32", 0, "int32", (2,)),
    }
    whole = function.constants["w0_x_int32"]
    held = np.array([2049, -5])  # the first is no float16
    assert stored(whole, lambda name: held, "coreml").tolist() == [2049, -5]


def test_a_constant_may_have_a_name_that_no_file_can_have(tmp_path: Path):
    case = Case("aten::linear", (rand(1, 4), rand(3, 4), None))
    (call,) = [c for c in function_of(case).calls if c.kind == "linear"]
    weight = dict(call.inputs)["weight"]
    assert isinstance(weight, Data)
    emitter = Emitter()
    long = Data("w" * 300, weight.data, weight.dtype, weight.shape)
    emitter.call("abs", long.dtype, long.shape, x=long)
    function = Function("f", (), (), tuple(emitter.calls), ())
    write_job(tmp_path, [function], lambda name: np.ones((3, 4)), "coreml")
    assert len([*tmp_path.glob("*.bin")]) == 1


def test_what_lies_far_after_the_end_stays_hidden():
    slots, slope = 140_000, torch.tensor([1.0])
    q, k = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, slots, 2)
    v = torch.zeros(1, 1, slots, 2)
    v[:, :, 0], v[:, :, 1:] = 1, 100
    case = Case(
        "kvc::attention",
        (
            *(q, k, v, index(1), None, True, None, None, None),
            *(None, slope, None, "linear", None, None, None, 0),
        ),
    )
    run = Interpreter([function_of(case)], lambda name: graph_of(case)[1][name].numpy())
    check(list(run("call", **given(case)).values()), case)


@pytest.mark.parametrize(
    ("starts", "count", "mode", "lengths"),
    [
        ((2, 5), 1, "linear", None),
        ((2, 3), 3, "linear", None),
        ((0, 3), 3, "linear", (1, 2)),
        ((1, 5), 3, "circular", None),
        ((5, 4), 3, "circular", (2, 3)),
        ((4, 2), 6, "circular", (0, 6)),
    ],
)
def test_a_number_that_is_infinite_stays_in_its_slot(starts, count, mode, lengths):
    cache, rows = rand(2, 1, 6, 4), rand(2, 1, count, 4)
    cache[0, 0, 0, 2], rows[1, 0, 0, 3], rows[:, 0, -1, 1] = np.inf, -np.inf, np.inf
    counted = None if lengths is None else index(*lengths)
    written = cache, rows, index(*starts), 2, mode, counted, 0
    case = Case("kvc::cache_update", written)
    run = Interpreter([function_of(case)], lambda name: graph_of(case)[1][name].numpy())
    (found,) = run("call", **given(case)).values()
    wanted = case.eager()[0].numpy()
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    assert not np.isnan(found).any()
    check([found], case)


class Named(nn.Module):
    """Has states whose names become the same word, one of them that of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("k", torch.zeros(2, 3))
        self.register_buffer("inner_k", torch.zeros(2, 3))

    def both(self, inner_k):
        self.inner.k.copy_(inner_k)
        return self.inner_k * 2

    def other(self, x):
        self.inner_k.copy_(x)
        return x * 2

    def first(self, x):
        return self.inner.k + x


def test_a_state_has_the_same_name_in_all_functions(tmp_path: Path):
    x = torch.zeros(2, 3)
    methods = [Method(name, (x,)) for name in ("both", "other", "first")]
    path = tmp_path / "named.kvc"
    compile_program(Named(), methods, recipe="coreml_fp16").save(path)
    with load(path) as program:
        found = {f.name: f for f in functions(program)}
    after = {name: [v.name for v in f.outputs][1:] for name, f in found.items()}
    assert after == {
        "both": ["inner_k_after"],
        "other": ["inner_k__after"],
        "first": [],
    }
    assert {v.name for v in found["first"].inputs} == {"x", "inner_k"}
    assert {v.name for v in found["both"].inputs} == {
        "inner_k",
        "inner_k_",
        "inner_k__",
    }


def test_the_process_with_coremltools_ends_with_the_one_that_started_it(tmp_path: Path):
    (tmp_path / "coremltools.py").write_text("print(flush=True)\nwhile True: pass")
    job = {"paths": [str(tmp_path)]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-I", worker.__file__, str(tmp_path)]
    ours, held = os.pipe()
    with subprocess.Popen(command, stdin=ours, stdout=subprocess.PIPE) as process:
        os.close(ours)
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        os.close(held)
        try:
            assert process.wait(10) == 1
        finally:
            process.kill()
