"""Pointwise ops: the result may be written over an operand."""

import pytest
import torch
from kernel_calls import bits
from op_cases import CASES
from torch import Tensor

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.ops import OPS, ParamKind


def placements():
    """Yield each pointwise case, with each operand that has the result's type."""
    for number, case in enumerate(CASES):
        if not OPS[case.op].pointwise:
            continue
        with torch.inference_mode():
            (expected,) = case.eager()
        for position, operand in enumerate(case.arguments):
            if (
                isinstance(operand, Tensor)
                and operand.dtype == expected.dtype
                and operand.shape == expected.shape
            ):
                name = f"{number}-{case.op.partition('::')[2]}-{position}"
                yield pytest.param(case, position, id=name)


PLACEMENTS = list(placements())


def run_over(case, position, target):
    """Run a case's kernel with `target`, a copy of an operand, as that and as out."""
    target.copy_(case.arguments[position])
    given = case.arguments[position]
    arguments = tuple(
        target if argument is given else argument for argument in case.arguments
    )
    with torch.inference_mode():
        assert load_kernels()[case.op](target, *arguments) is None
    return target


@pytest.mark.parametrize(("case", "position"), PLACEMENTS)
def test_a_result_over_an_operand_is_that_of_eager(case, position):
    with torch.inference_mode():
        (expected,) = case.eager()
    target = run_over(case, position, torch.empty_like(expected))
    assert bits(target) == bits(expected)


def with_gaps(tensor):
    wide = torch.full((*tensor.shape, 2), 1).to(tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


@pytest.mark.parametrize(
    ("case", "position"),
    [p for p in PLACEMENTS if p.values[0].arguments[p.values[1]].numel()],
)
def test_gaps_make_no_difference(case, position):
    given = case.arguments[position]
    apart, expected = with_gaps(given), with_gaps(given)
    arguments = tuple(apart if a is given else a for a in case.arguments)
    with torch.inference_mode():
        load_kernels()[case.op](expected, *arguments)
    target = run_over(case, position, with_gaps(given))
    assert bits(target.clone()) == bits(expected.clone())
    assert (target._base[..., 1] == 1).all()


TRIED = {param.values[0].op for param in PLACEMENTS}
BOOLEANS = (torch.tensor([True, True, False]), torch.tensor([True, False, False]))


@pytest.mark.parametrize(
    "op", sorted({name for name, op in OPS.items() if op.pointwise} - TRIED)
)
def test_booleans_of_which_there_are_no_cases_are_written_over_too(op):
    tensors = sum(param.kind is ParamKind.TENSOR for param in OPS[op].params)
    arguments = [*BOOLEANS[:tensors], *[True] * (len(OPS[op].params) - tensors)]
    expected = torch.empty(3, dtype=torch.bool)
    load_kernels()[op](expected, *arguments)
    for position in range(tensors):
        operands = [*arguments]
        operands[position] = target = arguments[position].clone()
        load_kernels()[op](target, *operands)
        assert torch.equal(target, expected)


@pytest.mark.parametrize("position", [0, 1])
def test_a_mask_may_be_written_over(position):
    x = torch.tensor([True, False, True, False])
    mask = torch.tensor([True, True, False, False])
    expected = torch.masked_fill(x, mask, False)
    operands = [x.clone(), mask.clone()]
    load_kernels()["aten::masked_fill.Scalar"](operands[position], *operands, False)
    assert torch.equal(operands[position], expected)


@pytest.mark.parametrize("position", [0, 2])
def test_a_value_may_be_written_over(position):
    operands = [torch.tensor(3.0), torch.tensor(True), torch.tensor(5.0)]
    load_kernels()["aten::masked_fill.Tensor"](operands[position], *operands)
    assert operands[position] == 5
