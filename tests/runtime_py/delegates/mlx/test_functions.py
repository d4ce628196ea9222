"""Every operator that the backend takes against eager, over the cases that ops have."""

from collections.abc import Sequence

import library_here
import numpy as np
import pytest
import torch
from daily import some_of_each
from native_calls import _graph
from op_cases import CASES, Case, kind_of
from op_cases.case import index, rand

from kvc.runtime.delegates.lowering.operators import OPERATORS
from kvc.schema.backends.mlx import LIST, PRIMITIVES, why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.errors import KvcError
from kvc.schema.ops import OPS, Aliasing


@pytest.fixture(autouse=True)
def _here() -> None:
    library_here.need("mlx")


MORE = (
    Case("aten::gather", (rand(2, 5), -1, index([4, 0, 0], [2, 1, 3]))),
    Case("kvc::rotary_embedding", (rand(1, 2, 3, 8), rand(3, 4), rand(3, 4))),
    Case(
        "aten::scaled_dot_product_attention",
        (*(rand(1, n, 3, 8) for n in (1, 4, 4)), None, False, None, False),
    ),
)
# Those that run in any case.
DAILY = (
    Case("aten::addmm", (rand(3), rand(2, 4), rand(4, 3), 0.5, 2)),
    Case("aten::addmm", (torch.full((3,), torch.nan), rand(2, 4), rand(4, 3), 0, 1)),
    Case("aten::sum.dim_IntList", (rand(), (-1,), True)),
    Case("aten::amax", (rand(), (0,), False)),
)


def is_taken(case: Case) -> bool:
    try:
        with torch.inference_mode():
            graph, _ = _graph(case, case.eager())
    except KeyError:  # a dtype that kvc has not
        return False
    (step,) = graph.instructions
    if OPS[case.op].aliasing is Aliasing.CHECK:
        return False
    types = [graph.values[value].type for value in step.results]
    return not why_not(case.op, arguments_of(graph, step), types)


HERE = [case for case in (*CASES, *MORE) if is_taken(case)]


def computed(case: Case, expected: Sequence[torch.Tensor]) -> list[np.ndarray]:
    from kvc.runtime.delegates.mlx.evaluation import Weights
    from kvc.runtime.delegates.mlx.runs import Run

    graph, tensors = _graph(case, expected)
    weights = Weights(lambda name: tensors[name].numpy())
    given = [tensors[value].numpy() for value in graph.inputs]
    dtypes = [str(each.dtype).removeprefix("torch.") for each in expected]
    found = [
        np.empty(each.shape, dtype)
        for each, dtype in zip(expected, dtypes, strict=True)
    ]
    Run("test", graph, {}, weights).compute(given, found)()
    return found


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


CHOSEN = [*some_of_each(4, HERE, kind_of), *DAILY]


@pytest.mark.parametrize("case", CHOSEN, ids=case_id)
def test_an_operator_is_eager(case: Case) -> None:
    with torch.inference_mode():
        expected = case.eager()
    for found, wanted in zip(computed(case, expected), expected, strict=True):
        other = torch.from_numpy(found)
        assert (other.dtype, other.shape) == (wanted.dtype, wanted.shape)
        if not wanted.is_floating_point():
            assert torch.equal(other, wanted)
            continue
        # Of what is infinite eager makes NaN here and infinity there.
        unknown = wanted.isnan()
        assert not other[unknown].isfinite().any()
        known, exact = other[~unknown], wanted[~unknown]
        sizes = exact[exact.isfinite()].abs()
        largest = max(1.0, float(sizes.max()) if sizes.numel() else 0.0)
        near = 2e-5
        torch.testing.assert_close(known, exact, rtol=near, atol=near * largest)


ELSEWHERE = {
    *("kvc::linear_w8", "kvc::embedding_q8", "kvc::after"),
}


def test_every_operator_that_is_taken_has_a_function_and_a_case() -> None:
    from kvc.runtime.delegates.mlx.evaluation import PLAIN, SET, TRAITS

    views = {op for op, spec in OPS.items() if spec.aliasing is Aliasing.VIEW}
    assert LIST.operators | views <= {*OPERATORS, *TRAITS.forms}
    assert {*PLAIN, *SET} == PRIMITIVES
    assert LIST.operators - {case.op for case in HERE} == ELSEWHERE


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        (Case("aten::embedding", (rand(4, 3), index(0, 4))), (2, 3)),
        (Case("aten::embedding", (rand(4, 3), index(-1))), (1, 3)),
        (Case("aten::embedding", (rand(0, 3), index(0))), (1, 3)),
        (Case("aten::index_select", (rand(4, 3), 1, index(3))), (4, 1)),
        (Case("aten::gather", (rand(2, 3), 1, index([3], [0]))), (2, 1)),
        (Case("aten::index.Tensor", (rand(4, 3), (index(-5),))), (1, 3)),
    ],
)
def test_an_index_outside_is_refused(case: Case, shape: tuple[int, ...]) -> None:
    with pytest.raises(KvcError, match=r"index -?\d of .*size|out of range"):
        computed(case, [torch.zeros(shape)])


@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (3, 96), (4, 256), (7, 20)])
def test_a_product_over_int8_is_that_of_the_numbers(rows: int, columns: int) -> None:
    import mlx.core as mx

    from kvc.runtime.delegates.mlx.evaluation import packed

    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (rows, columns), np.int8)
    scale = random.uniform(0.001, 0.1, rows).astype(np.float32)
    x = random.standard_normal((2, 3, columns)).astype(np.float32)
    wanted = x.astype(np.float64) @ (weight * scale[:, None].astype(np.float64)).T
    found = np.array(packed(weight, scale).times(mx.array(x)))
    assert np.abs(found - wanted).max() < 2e-6 * np.abs(wanted).max()
