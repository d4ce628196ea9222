"""Warn, while compiling, of operators that a recipe's backends leave to PyTorch.

In: a compiled program, and its recipe. Out: a warning that names the operators, their
methods and a remedy. A recipe without a backend is meant to run on PyTorch and causes
no warning.
"""

from collections.abc import Collection, Mapping
from typing import Final

from kvc.compiler.request.feedback import warn_caller
from kvc.recipes import Recipe
from kvc.schema.backends.known import others_taking
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
    left = left_in(program)
    if not recipe.backend or not left:
        return
    count = sum(sum(ops.values()) for ops in left.values())
    noun, these = "instructions", "these do"
    if count == 1:
        noun, these = "instruction", "it does"
    text = (
        f"the recipe {recipe.name} leaves {count:,} {noun} to PyTorch, without which "
        f"{these} not run: {left_text(left)}. Install PyTorch where the bundle is to "
        f"run (`{INSTALL}`){_advice(program, recipe, offered)}; `kvc dump BUNDLE "
        "--delegates` says why"
    )
    warn_caller(LeftToPyTorch(recipe.name, left, text))


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
