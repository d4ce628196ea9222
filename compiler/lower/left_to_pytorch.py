"""Warn, while compiling, of operators that a recipe's backends leave to PyTorch.

In: a compiled program, and its recipe. Out: a warning that names the operators, their
methods and a remedy. A recipe without a backend is meant to run on PyTorch and causes
no warning.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kvc.compiler.lower.variants import Emitted
from kvc.compiler.request.feedback import warn_caller
from kvc.recipes import DefaultRecipe, Recipe
from kvc.schema.backends.known import others_taking
from kvc.schema.errors import CopyBudgetExceeded
from kvc.schema.left import left_of
from kvc.schema.model import Program
from kvc.schema.torch_package import INSTALL

_NAMED: Final = 6  # the most operators of a method that a message names

Left = Mapping[str, Mapping[str, int]]  # method -> op -> instructions


class LeftToPyTorch(UserWarning):
    """No backend runs some operators of a bundle, so the bundle needs PyTorch.

    Attributes:
        recipe: the recipe whose backends leave the operators.
        left: method -> operator -> number of instructions.
    """

    def __init__(self, recipe: str, left: Left, text: str) -> None:
        super().__init__(text)
        self.recipe, self.left = recipe, left


def left_in(program: Program) -> dict[str, dict[str, int]]:
    """Return method -> operator -> number of instructions left to PyTorch.

    Methods that leave nothing to PyTorch are left out.
    """
    found = {method.name: left_of(method) for method in program.methods}
    return {name: left for name, left in found.items() if left}


def warn_of_left(program: Program, recipe: Recipe, offered: Collection[str]) -> None:
    """Warn (`LeftToPyTorch`) if a recipe with a backend leaves operators to PyTorch.

    Args:
        program: the program, compiled by this recipe.
        recipe: the recipe.
        offered: names of the backends of all recipes of the bundle.
    """
    if recipe.backend and left_in(program):
        so = "without which these do not run"
        why = "; `kvc dump BUNDLE --delegates` says why"
        _warn(program, recipe, so, _advice(program, recipe, offered) + why)


def _warn(program: Program, recipe: Recipe, so: str, advice: str) -> None:
    left = left_in(program)
    count = sum(sum(ops.values()) for ops in left.values())
    noun = "instruction" if count == 1 else "instructions"
    text = (
        f"the recipe {recipe.name} leaves {count:,} {noun} to PyTorch, {so}: "
        f"{left_text(left)}. Install PyTorch where the bundle is to run (`{INSTALL}`)"
        f"{advice}"
    )
    warn_caller(LeftToPyTorch(recipe.name, left, text))


def without_pytorch(
    recipe: DefaultRecipe, make: Callable[[Recipe], Emitted]
) -> Emitted:
    """Compile by the first default recipe, or by the second if the first does not fit.

    The first recipe does not fit if it leaves operators to PyTorch or exceeds the copy
    budget. The choice depends on the model only, not on this machine.

    Args:
        recipe: both default recipes.
        make: compiles by a recipe.
    """
    try:
        made = make(recipe.first)
    except CopyBudgetExceeded as error:  # kernels of PyTorch may copy less
        made = make(recipe.otherwise)
        _warn_of_copies(recipe, error)
        return made
    if not left_in(made.program):
        return made
    name = recipe.otherwise.name
    so = f"so the bundle, for which no recipe was named, is compiled by {name}"
    offered = backends_of(recipe.first)
    _warn(made.program, recipe.first, so, _advice(made.program, recipe.first, offered))
    return make(recipe.otherwise)


def _warn_of_copies(recipe: DefaultRecipe, error: CopyBudgetExceeded) -> None:
    first, other = recipe.first.name, recipe.otherwise.name
    text = (
        f"the recipe {first} copies {error.nbytes:,} bytes in a call of "
        f"{error.method}, of which {error.allowed:,} are allowed, so the bundle, for "
        f"which no recipe was named, is compiled by {other}. Install PyTorch where the "
        f"bundle is to run (`{INSTALL}`)"
    )
    warn_caller(LeftToPyTorch(first, {}, text))


def left_text(left: Left) -> str:
    """List the operators left to PyTorch; methods with equal ones share an entry."""
    names: dict[str, list[str]] = {}
    for method, ops in left.items():
        names.setdefault(_counted(ops), []).append(method)
    return "; ".join(f"{ops} ({', '.join(some)})" for ops, some in names.items())


def _counted(ops: Mapping[str, int]) -> str:
    counts = [f"{count:,} {op}" for op, count in ops.items()]
    more = [f"{len(counts) - _NAMED} more operators"] * (len(counts) > _NAMED)
    return ", ".join([*counts[:_NAMED], *more])


def backends_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of a recipe's backends: the main one, and `rest` if set."""
    return tuple(filter(None, (recipe.backend, recipe.rest)))


def _advice(program: Program, recipe: Recipe, offered: Collection[str]) -> str:
    """Return text on other backends that run some of the operators left to PyTorch."""
    left = {op for method in program.methods for op in left_of(method)}
    return "".join(
        f", or {_how(recipe, backend)}, which runs "
        + ("all of it" if ops == left else ", ".join(sorted(ops)))
        for backend, ops in others_taking(program.methods, offered)
    )


def _how(recipe: Recipe, backend: str) -> str:
    """Return text on how to let a backend run the operators left to PyTorch."""
    if backend == "cpu" and not recipe.rest:  # recipes that come with kvc have one
        return 'write `rest = "cpu"` below `[backend]` in the recipe'
    return f"compile by a recipe of the backend {backend}"
