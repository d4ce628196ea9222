"""Every operator of the lowering against eager, on a device with half the primitives.

What a list takes needs no primitive that the device lacks, whichever that is.
"""

import numpy as np
import pytest
from daily import some_of_each
from lowered_device import DTYPES, LIST, PRIMITIVES, plan_of
from lowered_operators import BLOCKS, Block
from numpy_lowering import compute
from op_cases import Case, kind_of

from kvc.runtime.delegates.lowering.builder import Builder
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.partition import Names, lower_partition
from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.lowered_rules import (
    RULES,
)
from kvc.schema.backends.primitives import SHORTCUTS, Primitive, usable

ALL = frozenset(Primitive)
# All devices have it: views are of any kind.
ALWAYS = {Primitive.RESHAPE}
HERE = {id(case): block for case, block in BLOCKS if block.is_taken(LIST)}
CASES = [case for case, _ in BLOCKS if id(case) in HERE]


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


@pytest.mark.parametrize("case", some_of_each(3, CASES, kind_of), ids=case_id)
def test_an_operator_is_near_eager(case: Case) -> None:
    block = HERE[id(case)]
    found = block.computed(plan_of(block.graph, {}))
    for one, other in zip(found, block.results, strict=True):
        wanted = np.atleast_1d(other.numpy())
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(one, wanted)
            continue
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6 * largest)


def test_every_operator_of_the_list_has_a_case() -> None:
    taken = {case.op for case in CASES}
    assert LIST.operators - taken == {"kvc::after"}  # which moves positions
    int8 = {"kvc::linear_w8", "kvc::embedding_q8"}
    assert RULES.keys() - LIST.operators == int8 | {
        *("aten::pow.Scalar", "aten::log", "aten::sin", "aten::cos"),
    }


def test_half_of_the_primitives_are_missing() -> None:
    assert len(ALL - PRIMITIVES) >= len(ALL) // 2
    assert SHORTCUTS.keys() & PRIMITIVES == {Primitive.RECIPROCAL}
    assert SHORTCUTS.keys() <= usable(PRIMITIVES)


FIRST: dict[object, tuple[Case, Block]] = {}
for each in BLOCKS:
    FIRST.setdefault(kind_of(each[0]), each)


@pytest.mark.parametrize("lacking", [*sorted(ALL - ALWAYS), "divisions"])
def test_what_is_taken_needs_only_primitives_that_are_there(lacking: str) -> None:
    divisions = {Primitive.DIVIDE, Primitive.RECIPROCAL, Primitive.GELU}
    own = ALL - (divisions if lacking == "divisions" else {lacking})
    mine, traits = LoweredList(own), DeviceTraits(own, DTYPES)
    for case, block in FIRST.values():
        if block.is_taken(mine):
            graph = block.graph
            names = [f"x{n}" for n in graph.inputs], [f"y{n}" for n in graph.outputs]
            plan = lower_partition(graph, {}, Names("call", *names), traits)
            assert {each.op for each in plan.function.operations} <= own, case.op


@pytest.mark.parametrize("divides", [False, True])
def test_a_shortcut_of_modulo_is_exact(divides: bool) -> None:
    """7 times the float32 that is next to 1/7 is less than 1."""
    own = PRIMITIVES | ({Primitive.DIVIDE} if divides else set())
    most = 2 ** (24 if divides else 22)
    for by in (*range(1, 300), 4096, 12345):
        x = np.r_[-3 * by : 3 * by + 1, most - 3 * by : most].astype(np.int32)
        build = Builder(own)
        made = build.with_number(
            Primitive.MODULO, build.input("x", "int32", x.shape), by
        )
        function = build.function("call", {}, {"y": made})
        found = compute(function, {"x": x}, lambda _: np.zeros(0))
        np.testing.assert_array_equal(found[function.outputs["y"]], np.mod(x, by))
