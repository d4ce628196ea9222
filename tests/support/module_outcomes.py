"""Compile a module, run it, and compare its results with eager."""

import warnings
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.compiler import Method, compile_program
from kvc.compiler.lower.left_to_pytorch import LeftToPyTorch, left_in
from kvc.runtime import load
from kvc.schema.errors import KvcError

Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one comparison.

    Attributes:
        kind: "" where eager itself fails, so that there is nothing to compare; "left"
            where results are equal, but a recipe's backend leaves operators to PyTorch.
        reason: why the results are not equal.
    """

    kind: Literal["", "equal", "wrong", "left", "refused", "error"]
    reason: str = ""


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        """Return the function of x."""
        return self.function(x)


def outcome(module, args, kwargs, path, recipe="fp32") -> Outcome:
    """Compile a module by a recipe, run it and compare; arguments are not changed."""
    try:
        with torch.no_grad():
            expected = _tensors(deepcopy(module)(*_copied(args), **_copied(kwargs)))
    except Exception as error:
        return Outcome("", repr(error))
    left: Counter[str] = Counter()
    found = compared(lambda: _run(module, args, kwargs, path, recipe, left), expected)
    if found.kind == "equal" and recipe != "fp32" and left:
        return Outcome("left", ", ".join(sorted(left)))
    return found


def compared(run: Callable[[], list[Tensor]], expected: list[Tensor]) -> Outcome:
    try:
        found = run()
    except KvcError as error:
        return Outcome("refused", " ".join(str(error).split("\n")[:2]))
    except Exception as error:
        return Outcome("error", f"{type(error).__name__}: {error}")
    try:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    except (AssertionError, ValueError) as error:
        return Outcome("wrong", " ".join(str(error).split()))
    return Outcome("equal")


def _run(module, args, kwargs, path, recipe, left) -> list[Tensor]:
    """Return the results; count in `left` the operators that no backend runs."""
    method = Method("forward", args=_copied(args), kwargs=_copied(dict(kwargs)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        bundle = compile_program(module, [method], recipe)
    left.update(left_in(bundle.program).get("forward", {}))
    bundle.save(path)
    with load(path) as program, program.session() as session:
        return _tensors(session.call("forward", *_copied(args), **_copied(kwargs)))


def _copied(given: Given) -> Given:
    copied: Given = tree_map_only(Tensor, lambda x: x.detach().clone(), given)
    return copied


def _tensors(results: object) -> list[Tensor]:
    leaves = tree_leaves(results)
    return [torch.as_tensor(each).detach() for each in leaves if each is not None]
