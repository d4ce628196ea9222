"""What a recipe's backends leave to PyTorch is said while compiling, and only then."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import Sorting
from torch import nn

from kvc.compiler import Bundle, LeftToPyTorch, Method, compile_program
from kvc.compiler.lower.left_to_pytorch import left_text, without_pytorch
from kvc.recipes import default_recipe, load_recipe
from kvc.schema.errors import CopyBudgetExceeded


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


def test_without_a_recipe_a_model_is_compiled_for_no_pytorch():
    bundle, told = compiled(None, BOTH[1:])
    assert (recipe_of(bundle), told) == ("cpu_fp32", [])


def test_without_a_recipe_what_needs_pytorch_is_compiled_for_it_and_says_so():
    bundle, (told,) = compiled(None)
    assert (recipe_of(bundle), bundle.program.delegates) == ("fp32", ())
    assert "no recipe was named, is compiled by fp32: 1 aten::sort (ordered)" in str(
        told
    )


def test_the_default_warning_points_at_who_compiles():
    with pytest.warns(LeftToPyTorch) as caught:
        compile_program(Sorting(), BOTH)
    assert caught[0].filename == __file__


def test_the_default_gives_the_bytes_of_the_recipe_that_it_took(tmp_path: Path):
    for methods, name in ((BOTH[1:], "cpu_fp32"), (BOTH, "fp32")):
        for recipe, path in ((None, "a.kvc"), (name, "b.kvc")):
            compiled(recipe, methods)[0].save(tmp_path / path)
        assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_the_default_keeps_the_dtype_of_caches_that_is_asked_for():
    recipe = default_recipe("int8")
    assert (recipe.first.cache, recipe.otherwise.cache) == ("int8", "int8")


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 4))

    def forward(self, x):
        self.kept.copy_(torch.cat([self.kept[1:], x[:1]]))
        return self.kept * 2


def test_a_recipe_that_is_taken_since_it_copies_less_is_told():
    recipe = default_recipe()
    other = compile_program(Sorting(), BOTH, "fp32")

    def make(one):
        if one is recipe.first:
            raise CopyBudgetExceeded(method="plain", nbytes=8, allowed=4, listing="")
        return other

    with pytest.warns(LeftToPyTorch, match="named, is compiled by fp32") as caught:
        assert without_pytorch(recipe, make) is other
    assert "cpu_fp32 copies 8 bytes in a call of plain, of" in str(caught[0].message)


def test_a_budget_that_both_recipes_exceed_is_still_refused():
    with pytest.raises(CopyBudgetExceeded):
        compile_program(
            Keeping(), [Method("forward", (X,))], max_copy_bytes={"forward": 0}
        )
