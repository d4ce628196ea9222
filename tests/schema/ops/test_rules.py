import pytest
import torch
from op_cases import CASES, Case, type_of
from op_cases.case import overload
from quant_reference import REFERENCE

from kvc.schema.ops import DELEGATE, OPS


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


@pytest.mark.parametrize("case", CASES, ids=case_id)
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
    assert {case.op for case in CASES} | set(REFERENCE) == set(OPS) - {DELEGATE}


@pytest.mark.parametrize("op", sorted(name for name in OPS if name.startswith("aten")))
def test_parameters_are_named_and_ordered_as_torch_does(op: str):
    arguments = [argument.name for argument in overload(op)._schema.arguments]
    names = [param.name for param in OPS[op].params]
    assert names == [name for name in arguments if name in names]


def test_delegates_have_no_rule():
    assert OPS[DELEGATE].rule(0, ()) == ()
