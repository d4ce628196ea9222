from dataclasses import replace

import pytest
import torch
from daily import some_of_each
from kernel_calls import bits, run
from op_cases import CASES, Case, kind_of

from kvc.schema.ops import OPS, Aliasing


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


def check_against_eager(case: Case, like: Case | None = None) -> None:
    with torch.inference_mode():
        expected = (like or case).eager()
        results = run(case.op, case.arguments, [(e.shape, e.dtype) for e in expected])
        assert [r.dtype for r in results] == [e.dtype for e in expected]
        assert [r.shape for r in results] == [e.shape for e in expected]
        assert [bits(r) for r in results] == [bits(e) for e in expected]


@pytest.mark.parametrize("case", some_of_each(8, CASES, kind_of), ids=case_id)
def test_a_kernel_equals_eager_bit_for_bit(case: Case):
    check_against_eager(case)


@pytest.mark.parametrize(
    "case",
    some_of_each(8, [case for case in CASES if case.op != "aten::view"], kind_of),
    ids=case_id,
)
def test_a_kernel_takes_operands_with_gaps(case: Case):
    spread = case.strided()
    like = spread
    if case.op == "aten::_embedding_bag_forward_only":
        # Eager reads indices and offsets as if they had no gaps.
        weight, _, _, *rest = spread.arguments
        like = replace(case, arguments=(weight, *case.arguments[1:3], *rest))
    check_against_eager(spread, like)


@pytest.mark.parametrize(
    "case", [c for c in CASES if OPS[c.op].aliasing is Aliasing.VIEW], ids=case_id
)
def test_a_view_shares_its_operands_memory(case: Case):
    operand = case.arguments[0]
    for result in run(case.op, case.arguments, ()):
        assert (
            result.untyped_storage().data_ptr() == operand.untyped_storage().data_ptr()
        )


def test_a_view_that_needs_a_copy_is_refused():
    with pytest.raises(RuntimeError, match="view"):
        run("aten::view", (torch.zeros(4, 6).t(), (24,)), ())
