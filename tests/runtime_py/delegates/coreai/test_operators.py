"""Every operator that the backend `coreai` takes against eager, as functions.

By numpy, and by Core AI where it is here.
"""

from collections.abc import Iterator

import library_here
import numpy as np
import pytest
import torch
from coreai_device import use_numpy_core_ai
from op_cases import CASES, Case
from qnn_operators import graph_of

from kvc.runtime.delegates.coreai.backend import TRAITS
from kvc.runtime.delegates.coreai.context import Context
from kvc.runtime.delegates.lowering.function import Weight
from kvc.runtime.delegates.lowering.operators import OPERATORS
from kvc.runtime.delegates.lowering.partition import Names, lower_partition
from kvc.runtime.delegates.lowering.plan import OUTSIDE
from kvc.runtime.delegates.lowering.runs import convert_into
from kvc.runtime.memory.arrays import tensor_as_array
from kvc.schema.backends.coreai import LIST, why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.ops import OPS, Aliasing


def is_taken(case: Case) -> bool:
    built = graph_of(case) if case.op in OPERATORS else None
    if built is None:
        return False
    graph, tensors = built
    (step,) = graph.instructions
    types = [graph.values[value].type for value in step.results]
    reason = why_not(case.op, arguments_of(graph, step), types)
    if reason or OPS[case.op].aliasing is Aliasing.VIEW:
        return False
    with torch.inference_mode():
        arrays = [*tensors.values(), *case.eager()]
    floats = (t for t in arrays if t.is_floating_point())
    return all(t.numel() for t in arrays) and all(
        bool(t.isfinite().all()) for t in floats
    )


X, Y = torch.randn(2, 3, 4), torch.randn(2, 1, 4)
INDEX = torch.tensor([[2, 0], [1, 2]])
SOME = X > 0
OWN = (
    Case("aten::cat", ([X, Y, X], 1)),
    Case("aten::cat", ([X, X], -1)),
    Case("aten::clone", (X,)),
    Case("aten::copy", (X, Y)),
    Case("aten::sqrt", (X.abs(),)),
    Case("aten::rsqrt", (X.abs() + 0.1,)),
    Case("aten::log", (X.abs() + 0.1,)),
    Case("aten::reciprocal", (X + 10,)),
    Case("aten::embedding", (X[0], INDEX)),
    Case("aten::index_select", (X[0], 0, INDEX[0])),
    Case("aten::index.Tensor", (X[0], [INDEX - 3])),
    Case("aten::arange.start_step", (3, 11, 2, torch.int64)),
    Case("aten::full", ([2, 3], 7.5, torch.float32)),
    Case("aten::_to_copy", (INDEX, torch.float32)),
    Case("aten::_to_copy", (INDEX - 1, torch.bool)),
    *(Case("aten::pow.Tensor_Scalar", (X.abs() + 0.1, n)) for n in (3, 0.5, -0.5, -1)),
    *(
        Case(f"aten::{op}.Scalar", (INDEX, 1))
        for op in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    *(
        Case(f"aten::{op}.Tensor", (X, X.flip(0)))
        for op in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    *(Case(f"aten::logical_{op}", (SOME, SOME.flip(0))) for op in ("and", "or")),
    *(Case(f"aten::bitwise_{op}.Tensor", (SOME, SOME.flip(0))) for op in ("and", "or")),
    *(Case(f"aten::{op}_not", (SOME,)) for op in ("logical", "bitwise")),
    Case("aten::where.self", (SOME, X, Y)),
    Case("aten::masked_fill.Scalar", (X, SOME, -3.0)),
)
HERE = [case for case in (*OWN, *CASES) if is_taken(case)]


@pytest.fixture(params=["numpy", "library"], scope="module")
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            use_numpy_core_ai(patch)
        else:
            library_here.need("coreai")
        made = Context()
        yield made
        made.close()


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("number", range(len(HERE)), ids=[c.op[6:] for c in HERE])
def test_an_operator_equals_eager(context: Context, number: int, half: bool) -> None:
    case = HERE[number]
    with torch.inference_mode():
        (expected,) = case.eager()
    first = 100 * (2 * number + half)  # ids of data, which differ between programs
    built = graph_of(case, first)
    assert built is not None
    graph, tensors = built
    inputs = [f"x{value}" for value in graph.inputs]
    names = Names(f"m{number}_{half}", inputs, ["y"])
    traits = TRAITS[b"float16" if half else b"float32"]
    plan = lower_partition(graph, {}, names, traits)

    def read(weight: Weight) -> np.ndarray:
        array = tensor_as_array(tensors[weight.data - first])
        return array.astype(weight.dtype)

    call = context.call(plan, read, lambda _: None)
    for feed in plan.feeds:
        convert_into(call.arrays[feed.name], tensor_as_array(tensors[feed.value]))
    call.run()
    if plan.indexed:
        assert not call.arrays[OUTSIDE].any()
    changed = {each.output: each.name for each in plan.changed}
    found, wanted = call.arrays[changed.get(0, "y")], expected.numpy()
    if wanted.dtype != np.float32:
        assert np.array_equal(found, wanted)
    else:
        near = 1e-2 if half else 2e-6  # the library sums in float16
        slack = near * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=near, atol=slack)
    call.close()


def test_all_that_is_taken_is_tried() -> None:
    tried = {case.op for case in HERE}
    assert LIST.operators <= tried | {"kvc::after"}  # of loops
    assert tried <= {*OPERATORS}
