"""Partitions on integers: what of a stranger is refused, and each operator by itself.

An operator is computed by the reference, by a device that is numpy, and by the library
where it is here. They agree to some steps of 65536: how many is what the page of the
folder says of the emulator.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import library_here
import numpy as np
import pytest
import qnn_fixed
import torch
from op_cases import Case
from qnn_device import ASKED, use_numpy_device
from qnn_operators import graph_of

from kvc.runtime import load
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.qnn import Qnn
from kvc.runtime.delegates.qnn.context import Context
from kvc.runtime.delegates.qnn.evaluate import HostContext
from kvc.runtime.delegates.qnn.fixed_emitting import grid_of
from kvc.runtime.delegates.qnn.plan import Stored as Weight
from kvc.runtime.delegates.qnn.plan import Whole
from kvc.runtime.delegates.qnn.translation import translate
from kvc.runtime.execution.delegate import Options
from kvc.runtime.memory.arrays import tensor_as_array
from kvc.schema.backends.grids import Grid, Stored, asymmetric
from kvc.schema.backends.qnn_fixed import LARGEST, Grids, read_payload, write_payload
from kvc.schema.calibration import Range
from kvc.schema.errors import BadProgram
from kvc.schema.model import Program

pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("fixed")
    path = qnn_fixed.compiled(folder / "m.kvc", qnn_fixed.recipe(seq=(1, 4)))
    with load(path, reference=True) as loaded:
        return loaded._engine.program


def with_grids(program: Program, change: Callable[[Grids], Grids]) -> Program:
    """Return a program whose decode is computed on other grids."""
    number, one = next(
        (i, each)
        for i, each in enumerate(program.delegates)
        if each.payload and program.methods[each.method].name == "decode"
    )
    graph = program.methods[one.method].blocks[one.block].graph
    grids = change(read_payload(one.payload, graph, "m", "here"))
    other = replace(one, payload=write_payload(grids))
    others = (*program.delegates[:number], other, *program.delegates[number + 1 :])
    return replace(program, delegates=others)


def without(number: int) -> Callable[[Grids], Grids]:
    def change(grids: Grids) -> Grids:
        kept = [*grids.values][:number] + [*grids.values][number + 1 :]
        return replace(grids, values={value: grids.values[value] for value in kept})

    return change


def without_any(grids: Grids) -> Grids:
    return replace(grids, values={})


def without_scores(grids: Grids) -> Grids:
    return replace(grids, scores={})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without(0), "there is no grid for"),
        (without_any, "there is no grid for"),
        (without_scores, "those of attention are"),
    ],
)
def test_grids_that_are_missing_are_refused_before_the_library_is_called(
    program: Program,
    change: Callable[[Grids], Grids],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
):
    use_numpy_device(monkeypatch)
    Qnn(Options("m.kvc", program)).close()
    with pytest.raises(BadProgram, match=what):
        Qnn(Options("m.kvc", with_grids(program, change)))
    assert ASKED == []


def test_a_grid_that_is_left_out_is_needed_or_follows_from_others(program: Program):
    """With one left out a bundle is refused, or it is that of what operands reach."""
    one = next(each for each in program.delegates if each.payload)
    graph = program.methods[one.method].blocks[one.block].graph
    count = len(read_payload(one.payload, graph, "m", "here").values)
    refused = 0
    for number in range(count):
        try:
            Qnn(Options("m.kvc", with_grids(program, without(number)), reference=True))
        except BadProgram:
            refused += 1
    assert count / 3 < refused < count


def test_the_widest_grids_are_merely_large(
    program: Program, monkeypatch: pytest.MonkeyPatch
):
    use_numpy_device(monkeypatch)

    def widest(grids: Grids) -> Grids:
        return replace(grids, values={
            value: replace(grid, scale=LARGEST) for value, grid in grids.values.items()
        })  # fmt: skip

    Qnn(Options("m.kvc", with_grids(program, widest))).close()
    assert ASKED == []


@pytest.mark.parametrize(
    "reach", [(0.0, 2e36), (-2e36, 0.0), (-math.inf, 0.0), (0.0, math.nan)]
)
def test_a_reach_whose_numbers_float32_may_lack_is_refused(
    reach: tuple[float, float],
):
    with pytest.raises(NotTaken, match="numbers from"):
        grid_of(reach)


def test_a_payload_taken_away_is_refused(program: Program):
    delegates = tuple(replace(each, payload=b"") for each in program.delegates)
    with pytest.raises(BadProgram, match=r"does not run kvc::linear_w8"):
        Qnn(Options("m.kvc", replace(program, delegates=delegates), reference=True))


ORDER = torch.randperm(96, generator=torch.Generator().manual_seed(0))
X = torch.linspace(-3, 5, 96)[ORDER].reshape(2, 6, 8)
Y = torch.linspace(4, -2, 96)[ORDER.flip(0)].reshape(2, 6, 8)
W, B = torch.linspace(0.5, 1.5, 8), torch.linspace(-1, 1, 8)
Q = torch.linspace(-2, 2, 192).reshape(1, 4, 6, 8).cos()
# Of each operator, how many steps of its result the emulator may be off.
CASES = {
    "add": (Case("aten::add.Tensor", (X, Y, 1)), 2),
    "subtract": (Case("aten::sub.Tensor", (X, Y, 1)), 2),
    "multiply": (Case("aten::mul.Tensor", (X, Y)), 2),
    "scale": (Case("aten::mul.Scalar", (X, -0.3)), 2),
    "divide": (Case("aten::div.Scalar", (X, 7.0)), 2),
    "shift": (Case("aten::add.Scalar", (X, 2.0, 1)), 2),
    "square": (Case("aten::pow.Tensor_Scalar", (X, 2)), 2),
    "maximum": (Case("aten::maximum", (X, Y)), 2),
    "minimum": (Case("aten::minimum", (X, Y)), 2),
    "negate": (Case("aten::neg", (X,)), 2),
    "absolute": (Case("aten::abs", (X,)), 2),
    "relu": (Case("aten::relu", (X,)), 2),
    "sigmoid": (Case("aten::sigmoid", (X,)), 5),
    "tanh": (Case("aten::tanh", (X,)), 5),
    "silu": (Case("aten::silu", (X,)), 6),
    "gelu": (Case("aten::gelu", (X, "none")), 40),
    "gelu_tanh": (Case("aten::gelu", (X, "tanh")), 40),
    "glu": (Case("kvc::glu", (X, Y, "silu")), 6),
    "softmax": (Case("aten::softmax.int", (X, -1)), 40),
    "matmul": (Case("aten::matmul", (X, Y.transpose(1, 2).contiguous())), 6),
    "rms_norm": (Case("aten::rms_norm", (X, (8,), W, 1e-5)), 3),
    "layer_norm": (Case("aten::layer_norm", (X, (8,), W, B, 1e-5)), 20),
    "concatenate": (Case("aten::cat", ((X, Y), 1)), 2),
    "attend": (
        Case(
            "aten::scaled_dot_product_attention",
            (Q, Q.flip(1), Q.sin(), None, False, None, False),
        ),
        20,
    ),
}


def grids_for(
    case: Case, tensors: Mapping[int, torch.Tensor], made: torch.Tensor
) -> Grids:
    """Return grids that fit: of each operand, and of the result, by its value."""
    result = max(tensors) + 1 if len(tensors) else 0
    values = {
        value: asymmetric(Range(float(t.min()), float(t.max())), Stored.UINT16)
        for value, t in {**tensors, result: made}.items()
    }
    scores = {result: Grid(Stored.UINT16, 8 / 65535, 32768)}
    return Grids(values, scores if "attention" in case.op else {})


@pytest.fixture(params=["numpy", "library"], scope="module")
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            use_numpy_device(patch)
        else:
            library_here.need("qnn")
        made = Context(75)
        yield made
        made.close()


@pytest.mark.parametrize("name", [*CASES])
def test_an_operator_is_what_the_reference_says(context: Context, name: str):
    case, steps = CASES[name]
    with torch.inference_mode():
        (expected,) = case.eager()
    first = 100 * (1 + [*CASES].index(name))
    built = graph_of(case, first)
    assert built is not None
    graph, tensors = built
    (result,) = graph.instructions[0].results
    given = {value: tensor for value, tensor in tensors.items() if value != result}
    grids = grids_for(case, given, expected)
    plan = translate(graph, {}, f"fixed_{name}", grids)

    def read(stored: Weight) -> np.ndarray:
        assert stored.grid is not None
        whole = stored.grid.integers(tensor_as_array(tensors[stored.data - first]))
        return whole.astype(np.uint16)

    made = []
    for where in (HostContext(), context):
        call = where.call(plan, read, None)
        for feed in plan.feeds:
            assert isinstance(feed, Whole)
            grid = plan.grids[feed.name]
            call.arrays[feed.name][:] = grid.integers(given[feed.value].numpy())
        call.run()
        (value,) = plan.model.outputs
        made.append(call.arrays[value.name].astype(np.int64))
        call.close()
    assert np.abs(made[0] - made[1]).max() <= steps
    found = plan.grids[value.name].numbers(made[0].astype(np.int32))
    slack = 2e-3 * float(expected.abs().max())
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=slack)
