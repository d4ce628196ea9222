"""What the table says of elements is what the ops do."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from op_cases import CASES, Case

from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing, Keeps, ops_that_keep

KEEPING = [case for case in CASES if OPS[case.op].keeps is not None]


def numbered(case: Case) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return a first operand of different numbers, and what the op makes of it."""
    shape = case.arguments[0].shape
    x = torch.arange(shape.numel(), dtype=torch.float64).view(shape)
    return x, replace(case, arguments=(x, *case.arguments[1:])).eager()


def test_every_op_that_keeps_elements_has_a_case():
    assert {case.op for case in KEEPING} == ops_that_keep(*Keeps)


@pytest.mark.parametrize("case", KEEPING, ids=lambda case: case.op)
def test_an_op_keeps_what_the_table_says(case):
    x, results = numbered(case)
    for result in results:
        found, all_of_it = result.reshape(-1), x.reshape(-1)
        match OPS[case.op].keeps:
            case Keeps.ALL:
                assert found.equal(all_of_it)
            case Keeps.PERMUTED:
                orders = permutations(range(x.ndim))
                assert any(result.equal(x.permute(order)) for order in orders)
            case Keeps.SOME:
                assert found.diff().gt(0).all()
                assert torch.isin(found, all_of_it).all()
            case Keeps.REPEATED:
                assert torch.isin(found, all_of_it).all()


@pytest.mark.parametrize("case", KEEPING, ids=lambda case: case.op)
def test_a_reshaping_view_is_the_same_bytes(case):
    x, (result, *_) = numbered(case)
    same = result.data_ptr() == x.data_ptr() and result.is_contiguous()
    if case.op in RESHAPING_VIEWS:
        assert same
        assert result.numel() == x.numel()
    if same and result.numel() == x.numel() > 1:
        assert OPS[case.op].aliasing is Aliasing.VIEW or case.op == "aten::reshape"
