"""Every operator that the backend takes against eager, as models of ONNX.

On a device that is numpy, and on the library where it is here.
"""

from collections.abc import Iterator

import library_here
import numpy as np
import pytest
import torch
from op_cases import CASES, Case
from qnn_device import use_numpy_device
from qnn_operators import graph_of

from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.lowering.operators import OPERATORS
from kvc.runtime.delegates.qnn.calls import rounded
from kvc.runtime.delegates.qnn.context import Context
from kvc.runtime.delegates.qnn.curves import HalfEmitter
from kvc.runtime.delegates.qnn.forms import QnnBuilder
from kvc.runtime.delegates.qnn.nodes import NodeWriter
from kvc.runtime.delegates.qnn.plan import Made, Stored, Whole
from kvc.runtime.delegates.qnn.translation import translate
from kvc.runtime.memory.arrays import tensor_as_array
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.operands import arguments_of
from kvc.schema.backends.primitives import Primitive
from kvc.schema.backends.qnn import LIST, PRIMITIVES, why_not
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

# Of caches the host does a part.
FED_WHOLE = OPERATORS.keys() - {CACHE_UPDATE, ATTENTION}


def is_taken(case: Case) -> bool:
    built = graph_of(case) if case.op in FED_WHOLE else None
    if built is None:
        return False
    graph, tensors = built
    (step,) = graph.instructions
    types = [graph.values[value].type for value in step.results]
    if OPS[case.op].aliasing is Aliasing.VIEW or why_not(
        case.op, arguments_of(graph, step), types
    ):
        return False
    arrays = [t for t in tensors.values() if t.is_floating_point()]
    with torch.inference_mode():
        arrays += case.eager()
    return all(t.numel() and bool(t.isfinite().all()) for t in arrays)


X, Y = torch.randn(2, 3, 4), torch.randn(2, 1, 4)
OWN = (
    Case("aten::cat", ([X, Y, X], 1)),
    Case("aten::cat", ([X, X], -1)),
    Case("aten::clone", (X,)),
    Case("aten::sqrt", (X.abs(),)),
    Case("aten::rsqrt", (X.abs() + 0.1,)),
)
HERE = [case for case in (*OWN, *CASES) if is_taken(case)]


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


@pytest.mark.parametrize("number", range(len(HERE)), ids=[c.op[6:] for c in HERE])
def test_an_operator_equals_eager(context: Context, number: int) -> None:
    case = HERE[number]
    with torch.inference_mode():
        (expected,) = case.eager()
    first = 100 * number  # ids of data, which differ between programs
    built = graph_of(case, first)
    assert built is not None
    graph, tensors = built
    plan = translate(graph, {}, f"m{number}")

    def read(stored: Stored) -> np.ndarray:
        array = rounded(tensor_as_array(tensors[stored.data - first]))
        return array.T if stored.transposed else array

    call = context.call(plan, read, None)
    for feed in plan.feeds:
        assert isinstance(feed, Whole)
        call.arrays[feed.name][:] = rounded(tensor_as_array(tensors[feed.value]))
    call.run()
    (value,), ((take,),) = plan.model.outputs, plan.takes
    assert take == Made(value.name, 0)
    found, wanted = call.arrays[value.name].astype(np.float64), expected.numpy()
    slack = 4e-3 * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=slack)
    call.close()


def test_all_that_is_taken_is_tried() -> None:
    tried = {case.op for case in HERE}
    assert LIST.operators - tried == {CACHE_UPDATE, ATTENTION}
    assert tried <= OPERATORS.keys()


def test_a_constant_of_several_numbers_is_refused() -> None:
    build = QnnBuilder(PRIMITIVES)
    build.input("x", "float32", (2,))
    made = build.binary(Primitive.ADD, "x", build.constant(np.ones(2, np.float32)))
    function = build.function("", {}, {made: made})
    with pytest.raises(NotTaken, match="constants of the shapes"):
        NodeWriter(function, HalfEmitter(), build.numbers, {}, lambda *_: "")
