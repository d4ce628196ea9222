"""Views around branches and in them: no copy, and what eager gives."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from daily import only
from golden import assert_golden
from ir_samples import method, node, program, value
from state_runs import agree, opened
from viewing_branches import COPYING, IN_PLACE, Viewing

from kvc.compiler import Method
from kvc.compiler.ir import Program
from kvc.compiler.ir.text import program_text
from kvc.compiler.passes import run_passes
from kvc.compiler.passes.hoist_views import LendWholeMemory
from kvc.runtime import Program as Loaded
from kvc.schema.dtypes import DType
from kvc.schema.ops import COND
from kvc.tools.reports.memory import describe_copies

YES, NO = torch.tensor(True), torch.tensor(False)
X, AT = torch.arange(8.0).reshape(2, 1, 4) + 1, torch.tensor([3])
CALLS = [(p, X * (i + 1), AT - 3 + i) for i, p in enumerate((YES, YES, NO, YES, NO))]
COPIES = {"aten::clone", "aten::copy", "aten::reshape"}


def copying_instructions(program: Loaded) -> list[str]:
    return [
        step.op
        for method in program._engine.program.methods
        for graph in method.graphs
        for step in graph.instructions
        if step.op in COPIES
    ]


# A place in each: the others have two of these in one.
DAILY = ["passed", "swapped", "part_inside", "looped", "read_beside", "place_by_place"]


@only(name=DAILY)
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_view_of_a_capture_makes_no_copy(name: str, tmp_path: Path) -> None:
    model, methods = Viewing(), [Method(name, args=(YES, X, AT))]
    with opened(model, methods, tmp_path) as program, program.session() as session:
        reports = describe_copies(program._engine.program)
        assert {(r.state, r.verdict, r.bytes_per_call) for r in reports} == {
            ("c", "SAFE", 0)
        }
        assert copying_instructions(program) == []
        agree(session, model, [(name, *call) for call in CALLS])


@pytest.mark.parametrize("name", COPYING)
def test_what_cannot_be_in_place_is_a_copy_with_a_reason(
    name: str, tmp_path: Path
) -> None:
    model, methods = Viewing(), [Method(name, args=(YES, X, AT))]
    with opened(model, methods, tmp_path) as program, program.session() as session:
        reports = describe_copies(program._engine.program)
        (copy,) = (r for r in reports if r.verdict == "COPY")
        assert copy.bytes_per_call == 256
        assert COPYING[name] in copy.reason
        agree(session, model, [(name, *call) for call in CALLS])


def viewed() -> Program:
    """A branch over a view of a state [2, 4], whose result is read beside."""
    p, x, old = value(0, dtype=DType.BOOL), value(1, 4), value(2, 2, 4)
    flat, made, after, last = value(3, 8), value(4, 8), value(5, 8), value(6, 2, 4)
    mine, row, places, wrote = (
        value(0, 8), value(1, 4), value(2, 4, dtype=DType.INT64), value(3, 8)
    )  # fmt: skip
    yes = method(
        node("aten::arange.start_step", 0, 4, 1, DType.INT64, to=places),
        node("aten::index_copy", mine, 0, places, row, to=wrote),
        inputs=(mine, row),
        outputs=(wrote,),
        name="run/0",
    )
    no = method(
        node("aten::mul.Scalar", mine, 2, to=wrote),
        inputs=(mine, row),
        outputs=(wrote,),
        name="run/1",
    )
    run = method(
        node("aten::view", old, (8,), to=flat),
        node(COND, p, 0, 1, (flat, x), (None,), to=made),
        node("aten::neg", made, to=after),
        node("aten::view", made, (2, 4), to=last),
        inputs=(p, x),
        state_in=((old, "k"),),
        state_out=((last, "k"),),
        outputs=(after,),
        name="run",
    )
    blocks = (replace(one, block=number) for number, one in enumerate((yes, no)))
    return program(run, *blocks, states=("k",), shape=(2, 4))


def test_golden():
    before = viewed()
    (after, _) = run_passes([LendWholeMemory()], before)
    text = f"{program_text(before)}\n---\n{program_text(after)}"
    assert_golden("pass_lend_whole_memory", text)
    assert program_text(LendWholeMemory().run(after)) == program_text(after)


def test_what_lies_on_no_way_to_memory_stays():
    """Nothing is kept of what the branch makes: its operand stays a view."""
    whole = viewed()
    lost = replace(whole.methods[0], state_out=())
    whole = replace(whole, methods=(lost, *whole.methods[1:]))
    assert LendWholeMemory().run(whole) == whole
