import pytest
import torch
from daily import some_of_each
from op_cases import CASES, Case, kind_of, type_of
from op_cases.case import overload
from quant_reference import REFERENCE

from kvc.schema.ops import CONTROL_OPS, DELEGATE, OPS, Aliasing

WITHOUT_TWIN = {
    "aten::_assert_async.msg",
    "kvc::after",
    "kvc::append",
    "kvc::check_index",
    "kvc::check_rows",
    "kvc::check_size",
    "kvc::replace",
}  # test_growing.py, test_after.py


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


def same_shape_operands(case: Case, result: torch.Tensor) -> list[torch.Tensor]:
    """Return the operands that the result might be written over."""
    return [
        argument
        for argument in case.arguments
        if isinstance(argument, torch.Tensor)
        and argument.shape == result.shape
        and argument.numel()
    ]


def with_another_start(operand: torch.Tensor) -> torch.Tensor:
    """Return an operand whose first element is another one, and not 0."""
    changed = operand.clone().reshape(-1)
    if operand.dtype is torch.bool:
        changed[0] = ~changed[0]
    else:
        changed[0] = 3 if changed[0] == 2 else 2
    return changed.reshape(operand.shape)


def all_but_start(result: torch.Tensor) -> torch.Tensor:
    """Return the elements but the first, with numbers for what is no number."""
    return result.reshape(-1)[1:].nan_to_num()


def swapped(case: Case, old: torch.Tensor, new: torch.Tensor) -> Case:
    """Return the case with another operand in the place of one."""
    return Case(
        case.op, tuple(new if a is old else a for a in case.arguments), case.dtype
    )


@pytest.mark.parametrize("case", some_of_each(8, CASES, kind_of), ids=case_id)
def test_a_rule_infers_what_eager_returns(case: Case):
    with torch.no_grad():
        expected = [type_of(result) for result in case.eager()]
    inferred = OPS[case.op].rule(*case.types())
    assert [shape for _, shape in inferred] == [e.dims for e in expected]
    assert [dtype for dtype, _ in inferred] == [
        None if dtype is None else e.dtype
        for (dtype, _), e in zip(inferred, expected, strict=True)
    ]


def test_every_op_has_a_case():
    tested = {case.op for case in CASES} | set(REFERENCE) | WITHOUT_TWIN
    assert tested == set(OPS) - CONTROL_OPS


@pytest.mark.parametrize("op", sorted(n for n, spec in OPS.items() if spec.pointwise))
def test_an_element_of_a_pointwise_op_depends_on_its_own_place_only(op: str):
    """Change the first element of an operand: no other of the result may change."""
    tried = 0
    for case in [case for case in CASES if case.op == op]:
        (before,) = case.eager()
        for operand in same_shape_operands(case, before):
            (after,) = swapped(case, operand, with_another_start(operand)).eager()
            assert torch.equal(all_but_start(after), all_but_start(before))
            tried += after.numel() > 1
    assert tried


def test_ops_that_mix_elements_are_not_pointwise():
    mixing = {"aten::clone", "aten::reshape", "aten::cumsum", "aten::matmul"}
    assert not any(OPS[op].pointwise for op in mixing)
    assert not any(
        spec.pointwise for spec in OPS.values() if spec.aliasing is not Aliasing.FRESH
    )


@pytest.mark.parametrize("op", sorted(name for name in OPS if name.startswith("aten")))
def test_parameters_are_named_and_ordered_as_torch_does(op: str):
    arguments = [argument.name for argument in overload(op)._schema.arguments]
    names = [param.name for param in OPS[op].params]
    assert names == [name for name in arguments if name in names]


def test_delegates_have_no_rule():
    assert OPS[DELEGATE].rule(0, ()) == ()
