"""Every operator that the backend takes against eager, over the cases that ops have.

Each is a function of its own: computed by numpy, and all of them in one package by what
coremltools knows of its operators, where it is installed.
"""

from pathlib import Path

import coreml_programs
import library_here
import numpy as np
import pytest
from coreml_operators import WEIGHTS, check, function_of, given, graph_of
from daily import some_of_each
from mil_numpy import Interpreter
from op_cases import CASES, Case, kind_of
from op_cases.case import index, rand

from kvc.runtime.delegates.coreml.forms import FORMS
from kvc.runtime.delegates.coreml.mil import DTYPES
from kvc.runtime.delegates.coreml.package import package_of
from kvc.runtime.delegates.lowering.operators import OPERATORS
from kvc.schema.backends import coreml
from kvc.schema.backends.coreml import LIST, why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.ops import OPS, Aliasing
from kvc.tools.outputs import write_folder


def is_taken(case: Case) -> bool:
    try:
        graph, _ = graph_of(case)
    except KeyError:  # a dtype that kvc has not
        return False
    (step,) = graph.instructions
    if OPS[case.op].aliasing is Aliasing.CHECK:
        return False
    types = [graph.values[value].type for value in step.results]
    return not why_not(case.op, arguments_of(graph, step), types)


MORE = (
    Case("aten::cat", ((rand(2, 3), rand(2, 2)), 1)),
    Case("aten::cat", ((rand(3), rand(1), rand(3)), -1)),
    Case("aten::gather", (rand(2, 5), -1, index([4, 0, 0], [2, 1, 3]))),
    Case("aten::gather", (rand(3, 2), 1, index([1], [0], [1]))),
    Case("kvc::rotary_embedding", (rand(1, 2, 3, 8), rand(3, 4), rand(3, 4))),
)
HERE = [case for case in (*CASES, *MORE) if is_taken(case)]


def case_id(case: Case) -> str:
    return case.op.partition("::")[2]


@pytest.mark.parametrize("case", some_of_each(4, HERE, kind_of), ids=case_id)
def test_an_operator_is_near_eager(case: Case) -> None:
    function, (_, tensors) = function_of(case), graph_of(case)
    run = Interpreter([function], lambda name: tensors[name].numpy())
    check(list(run("call", **given(case)).values()), case)


def test_coremltools_computes_what_eager_does(tmp_path: Path) -> None:
    library_here.need("coreml")
    chosen = {kind_of(case): case for case in HERE if case.op not in WEIGHTS}.values()
    cases = {f"call{number}": case for number, case in enumerate(chosen)}
    functions = [function_of(case, name) for name, case in cases.items()]
    raw = package_of(functions, lambda name: np.zeros(0), "coreml")
    write_folder(tmp_path / "m.mlpackage", raw)
    calls = []
    for function, case in zip(functions, cases.values(), strict=True):
        inputs = {var.name: var.dtype for var in function.inputs}
        own = {n: a.astype(DTYPES[inputs[n]]) for n, a in given(case).items()}
        calls.append((function.name, own))
    found, _ = coreml_programs.computed(tmp_path / "m.mlpackage", calls, tmp_path)
    for made, case in zip(found, cases.values(), strict=True):
        check(list(made.values()), case)


def test_every_operator_of_the_list_is_said_and_has_a_case() -> None:
    views = {op for op in OPERATORS if OPS[op].aliasing is Aliasing.VIEW}
    assert {*OPERATORS, *FORMS} == LIST.operators | views
    assert {*coreml.FORMS} < {*FORMS}
    elsewhere = {"kvc::linear_w8", "kvc::embedding_q8", "kvc::after"}
    assert LIST.operators - {case.op for case in HERE} == elsewhere
