from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from ir_samples import method, node, program, value

from kvc.compiler.passes import run_passes
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.schema.errors import PassFailed

X, Y, Z = value(0, 2), value(1, 2), value(2, 2)
STEP = method(
    node("aten::neg", X, to=Y),
    node("aten::exp", X, to=Z),
    inputs=(X,),
    outputs=(Y,),
)


@dataclass(frozen=True, slots=True)
class Reverse:
    name: ClassVar[str] = "reverse"

    def run(self, given):
        step = given.methods[0]
        return replace(given, methods=(replace(step, outputs=(value(9, 2),)),))


def test_passes_run_in_order_and_report_what_they_did():
    changed, (report,) = run_passes((DropDeadCode(),), program(STEP))
    assert [n.op for n in changed.methods[0].nodes] == ["aten::neg"]
    assert (report.name, report.nodes) == ("drop-dead-code", (2, 1))


def test_a_pass_that_breaks_the_program_is_named():
    with pytest.raises(PassFailed, match=r"after reverse: method step.*%9") as caught:
        run_passes((Reverse(),), program(STEP))
    assert (caught.value.step, caught.value.method) == ("reverse", "step")


def test_a_bad_node_is_named_with_its_line():
    bad = node("aten::neg", X, to=value(1, 3))
    with pytest.raises(PassFailed, match=r"node aten::neg\(%0\) at model:1"):
        run_passes((), program(method(bad, inputs=(X,))))
