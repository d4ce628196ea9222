"""Conditions on sizes that traced code relies on, and their truth values.

A condition (`Question`) is recorded when the user's code evaluates it, and when the
result of a decomposition is valid only for the size of the example.
`kvc.compiler.trace.shape_guards` checks each condition for every declared size.
"""

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sympy  # type: ignore[import-untyped]
import torch

# Folders of code that runs between torch and the user's code during a trace.
_COMPILER: Final = Path(__file__).parents[1]
OURS: Final = (str(_COMPILER / "trace"), str(_COMPILER / "decompose"))
TRACERS: Final = (str(Path(torch.__file__).parent), *OURS)


@dataclass(frozen=True, slots=True)
class Question:
    """A condition on sizes, and the line of the user's code that evaluates it.

    Attributes:
        expression: the condition, over torch's symbols.
        answer: the truth value of the condition in torch's trace.
        place: the line of the user's code, as the text ` at module:line`.
        sources: torch's names of the tensor sizes behind the symbols.
        inside: whether the condition is in the body of a branch or loop, where torch
            uses separate symbols.
    """

    expression: sympy.Basic
    answer: bool
    place: str
    sources: tuple[str, ...]
    inside: bool = False


NOTED: ContextVar[list[Question]] = ContextVar("noted")  # the list of the running trace


def claim(count: int | torch.SymInt) -> int:
    """Return the value of a size expression for the example, as a number.

    A condition is recorded: the trace is valid only for sizes that give this number.
    """
    if isinstance(count, int) or count.node.hint is None:
        return int(count)  # torch refuses sizes that depend on values
    number = int(count.node.hint)
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(TRACERS):
        frame = frame.f_back
    place = f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
    asked = sympy.Eq(count.node.expr, number, evaluate=False)
    NOTED.get().append(Question(asked, True, place, ()))
    return number
