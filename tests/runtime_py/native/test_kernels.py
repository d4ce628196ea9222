"""Every kernel of the library against eager, over the cases that the ops have."""

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import CASES, Case
from torch import Tensor

from kvc.runtime.native import find_library
from kvc.schema.backends.cpu import RULES


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


def check(case: Case, threads: int = 2) -> None:
    with torch.inference_mode():
        expected = case.eager()
    built = native_graph(case, expected)
    if built is None:
        return
    found = run_native(*built, expected, threads)
    for one, other in zip(found, expected, strict=True):
        same(one, other, 5e-5 if case.op == "aten::linear" else 2e-6)


def same(found: Tensor, expected: Tensor, atol: float) -> None:
    """Assert equality; of floats but for the order of sums and the last bits."""
    if not expected.is_floating_point():
        atol = 0
    torch.testing.assert_close(
        found, expected, rtol=1e-5 if atol else 0, atol=atol, equal_nan=True
    )


# Those of test_int8.py and test_faults.py.
ELSEWHERE = {
    "kvc::after",
    "kvc::append",
    "kvc::check_index",
    "kvc::check_rows",
    "kvc::embedding_q8",
    "kvc::linear_qd8",
    "kvc::quantize_rows",
    "kvc::replace",
}
TAKEN = [case for case in CASES if native_graph(case, case.eager()) is not None]


@pytest.mark.parametrize("case", TAKEN, ids=case_id)
def test_a_kernel_equals_eager(case: Case):
    check(case)


@pytest.mark.parametrize(
    "case", [case for case in TAKEN if case.op != "aten::view"], ids=case_id
)
def test_a_kernel_takes_operands_with_gaps(case: Case):
    check(case.strided())


def test_every_op_that_the_backend_takes_has_a_kernel_and_a_case():
    library = find_library()
    assert [op for op in RULES if not library.has(op)] == []
    assert {*RULES} - {case.op for case in TAKEN} == ELSEWHERE
