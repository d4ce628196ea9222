"""What a backend takes is taken out of branches and loops too."""

from pathlib import Path

import pytest
import torch
from branching_models import NO, YES, Kept, N
from state_runs import as_tensors

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.ops import DELEGATE

X, AT = torch.arange(12.0).reshape(3, 4) / 4 - 1, torch.tensor([5, 0, 2])


@pytest.mark.parametrize(
    ("recipe", "atol"),
    [
        ("xnnpack_fp32", 1e-5),
        pytest.param("bf16", 0.05, marks=pytest.mark.exhaustive),
    ],
)
def test_a_branch_is_computed_by_a_backend(
    recipe: str, atol: float, tmp_path: Path
) -> None:
    """By the reference of the backend; bfloat16 keeps eight bits of a factor."""
    step = Method("one", args=(YES, X, AT), dynamic={"x": {0: N}, "at": {0: N}})
    bundle = compile_program(Kept().eval(), [step], recipe=recipe)
    bundle.save(tmp_path / "model.kvc")
    (method,) = bundle.program.methods
    calls = [i.op for graph in method.graphs[1:] for i in graph.instructions]
    assert (DELEGATE in calls) == (recipe == "xnnpack_fp32")
    eager = Kept().eval()
    with (
        load(tmp_path / "model.kvc", reference=True) as program,
        program.session() as session,
        torch.no_grad(),
    ):
        for p, x, at in ((YES, X, AT), (NO, X, AT), (YES, X[:1], AT[1:2])):
            found = as_tensors(session.one(p, x, at))
            torch.testing.assert_close(found, eager.one(p, x, at), rtol=0, atol=atol)
