"""Compile a module, run it, and compare its results with eager.

What is compiled by a recipe with a backend runs in a process that cannot import torch,
if one is given, unless operators are left to PyTorch.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from without_torch import Call, WithoutTorch

from kvc.compiler import Method, compile_program
from kvc.compiler.lower.left_to_pytorch import LeftToPyTorch, left_in
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.errors import KvcError
from kvc.schema.model import Program
from kvc.tools.reports.methods import describe_operators

Given = TypeVar("Given")
Kind = Literal["", "equal", "left", "refused", "wrong", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one comparison.

    Attributes:
        kind: "" where eager itself fails, so that there is nothing to compare; "left"
            where results are equal, but a recipe's backend leaves operators to PyTorch.
        reason: why the results are not equal; which operators are left, and why.
    """

    kind: Kind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of running a bundle.

    Attributes:
        tensors: the results of all calls.
        left: operator -> why the recipe's backend leaves it to PyTorch.
    """

    tensors: list[Tensor]
    left: Mapping[str, str]


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        """Return the function of x."""
        return self.function(x)


def outcome(module, args, kwargs, path, recipe="fp32", process=None) -> Outcome:
    """Compile a module by a recipe, run it and compare; arguments are not changed.

    `process` is a `WithoutTorch` to run it in, None to run it in this process.
    """
    try:
        with torch.no_grad():
            expected = tensors_of(deepcopy(module)(*_copied(args), **_copied(kwargs)))
    except Exception as error:
        return Outcome("", repr(error))
    method = Method("forward", args=_copied(args), kwargs=_copied(dict(kwargs)))
    calls = [(args, dict(kwargs))]
    return compared(
        lambda: compiled_and_run(module, method, calls, path, recipe, process), expected
    )


def compared(run: Callable[[], Found], expected: list[Tensor]) -> Outcome:
    try:
        found = run()
    except KvcError as error:
        return Outcome("refused", " ".join(str(error).split("\n")[:2]))
    except Exception as error:
        return Outcome("error", f"{type(error).__name__}: {error}")
    try:
        for one, other in zip(found.tensors, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    except (AssertionError, ValueError) as error:
        return Outcome("wrong", " ".join(str(error).split()))
    if found.left:
        return Outcome(
            "left", "; ".join(f"{op}: {why}" for op, why in found.left.items())
        )
    return Outcome("equal")


def compiled_and_run(
    module: nn.Module,
    method: Method,
    calls: Sequence[Call],
    path: Path,
    recipe: str,
    process: WithoutTorch | None,
) -> Found:
    """Compile a method `forward`, save it, load it and run its calls in one session."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorch)
        bundle = compile_program(module, [method], recipe)
    left = _left_by(recipe, bundle.program)
    bundle.save(path)
    if process is None or left:
        with load(path) as program, program.session() as session:
            made = [
                session.call("forward", *_copied(args), **_copied(kwargs))
                for args, kwargs in calls
            ]
            return Found(tensors_of(made), left)
    return Found(tensors_of(process.run(path, _as_arrays(calls))), left)


def _left_by(recipe: str, program: Program) -> dict[str, str]:
    """Return operator -> why it is left to PyTorch; nothing if there is no backend."""
    if not load_recipe(recipe).backend or not left_in(program):
        return {}
    reports = [each for each in describe_operators(program) if not each.backend]
    return {each.op: ", ".join(each.reasons.values()) for each in reports}


def _copied(given: Given) -> Given:
    copied: Given = tree_map_only(Tensor, lambda x: x.detach().clone(), given)
    return copied


def _as_arrays(given: Given) -> Given:
    """Return nested values with arrays for tensors."""
    made: Given = tree_map_only(Tensor, _as_array, given)
    return made


def _as_array(tensor: Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def tensors_of(results: object) -> list[Tensor]:
    """Return copies of all results as tensors."""
    leaves = (each for each in tree_leaves(results) if each is not None)
    return [_as_tensor(each).detach().clone() for each in leaves]


def _as_tensor(made: object) -> Tensor:
    if isinstance(made, np.ndarray) and made.dtype == ml_dtypes.bfloat16:
        return torch.as_tensor(made.view(np.int16)).view(torch.bfloat16)
    return torch.as_tensor(made)
