"""What a recipe's backends leave to PyTorch is said while compiling, and only then."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import Sorting
from torch import nn

from kvc.compiler import Bundle, LeftToPyTorch, Method, compile_program
from kvc.compiler.lower.left_to_pytorch import left_text
from kvc.recipes import DEFAULT, load_recipe
from kvc.runtime import load


class Branch(nn.Module):
    def forward(self, flag, x):
        return torch.cond(
            flag, lambda y: y.bfloat16().sort()[0].float(), lambda y: y * 2, (x,)
        )


X = torch.arange(8.0).view(2, 4)
BOTH = [Method("ordered", (X,)), Method("plain", (X,))]


def compiled(recipe, methods=BOTH, model=None) -> tuple[Bundle, list[LeftToPyTorch]]:
    """Return a bundle and what was warned of."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bundle = compile_program(model or Sorting(), methods, recipe)
    return bundle, [one.message for one in caught]


def test_operators_are_named_with_their_number_and_methods():
    _, (told,) = compiled("cpu_fp32")
    assert isinstance(told, LeftToPyTorch)
    assert (told.recipe, told.left) == ("cpu_fp32", {"ordered": {"aten::sort": 1}})
    for part in (
        "the recipe cpu_fp32 leaves 1 instruction to PyTorch",
        "1 aten::sort (ordered)",
        "pip install 'kvc[compile]'",
        "kvc dump BUNDLE --delegates",
    ):
        assert part in str(told)
    assert "plain" not in str(told)


def test_the_warning_points_at_who_compiles():
    with pytest.warns(LeftToPyTorch) as caught:
        compile_program(Sorting(), BOTH, "cpu_fp32")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("recipe", ["cpu_q8", "xnnpack_fp32", "vulkan_fp32", "mlx_q8"])
def test_each_recipe_with_a_backend_warns(recipe):
    _, told = compiled(recipe)
    assert [one.recipe for one in told] == [recipe]


@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_recipes_that_are_meant_for_pytorch_do_not_warn(recipe):
    assert compiled(recipe)[1] == []


def test_nothing_is_said_where_nothing_is_left():
    assert compiled("cpu_fp32", BOTH[1:])[1] == []


def test_each_of_several_recipes_warns_of_its_own():
    _, told = compiled("cpu_fp32,xnnpack_fp32")
    assert [one.recipe for one in told] == ["cpu_fp32", "xnnpack_fp32"]


def test_a_branch_leaves_its_operators_to_pytorch_too():
    methods = [Method("forward", (torch.tensor(True), X))]
    _, (told,) = compiled("cpu_fp32", methods, Branch())
    assert told.left["forward"]["aten::sort"] == 1


def test_a_backend_that_runs_what_is_left_is_named():
    alone = replace(load_recipe("xnnpack_fp32"), name="own", rest="")

    class Marking(nn.Module):
        """XNNPACK has no logic; `cpu` has."""

        def forward(self, x):
            return (x @ x.T) > 0

    _, (told,) = compiled(alone, [Method("forward", (X,))], Marking())
    remedy = 'or write `rest = "cpu"` below `[backend]` in the recipe, which runs all'
    assert remedy in str(told)
    mended = replace(alone, rest="cpu")
    assert compiled(mended, [Method("forward", (X,))], Marking())[1] == []


def test_no_backend_is_named_where_none_runs_it():
    assert "of the backend" not in str(compiled("cpu_fp32")[1][0])


def test_methods_that_leave_the_same_stand_together():
    left = {"a": {"aten::sort": 2}, "b": {"aten::sort": 2}, "c": {"aten::topk": 1}}
    assert left_text(left) == "2 aten::sort (a, b); 1 aten::topk (c)"


def test_of_many_operators_the_first_are_named():
    left = {"a": {f"aten::op{i}": 1 for i in range(9)}}
    assert left_text(left).endswith("1 aten::op5, 3 more operators (a)")


def recipe_of(bundle: Bundle) -> str:
    return bundle.program.provenance.recipe


class Ordering(nn.Module):
    def forward(self, x):
        return x.bfloat16().sort(descending=True)[0].float()


class Counting(nn.Module):
    """Has no operator at all."""

    def forward(self, x):
        return x.shape[0]


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (nn.Linear(4, 2), None),
        (Ordering(), {"forward": {"aten::sort": 1}}),
        (nn.Identity(), None),
        (Counting(), None),
    ],
)
def test_without_a_recipe_a_model_is_compiled_by_the_default(
    tmp_path: Path, model: nn.Module, left: dict[str, dict[str, int]] | None
):
    methods = [Method("forward", (X,))]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bundle = compile_program(model, methods)
    assert bundle.program.provenance.recipe == DEFAULT == "cpu_fp32"
    assert [one.message.left for one in told] == ([left] if left else [])
    bundle.save(tmp_path / "a.kvc")
    with load(tmp_path / "a.kvc") as program:
        found = program.call("forward", X.numpy())
    want = model(X)
    if isinstance(want, torch.Tensor):
        want = want.detach().numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
