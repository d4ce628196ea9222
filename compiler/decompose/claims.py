"""What code that is traced takes to be true of sizes: questions, with their answers.

A question is noted where the user's code asks, and where an operator is taken apart in
a way that holds for the size of the example alone. `kvc.compiler.trace.shape_guards`
checks each for every declared size.
"""

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sympy  # type: ignore[import-untyped]
import torch

# Folders whose code stands between torch and the user's code while that is traced.
_COMPILER: Final = Path(__file__).parents[1]
OURS: Final = (str(_COMPILER / "trace"), str(_COMPILER / "decompose"))
TRACERS: Final = (str(Path(torch.__file__).parent), *OURS)


@dataclass(frozen=True, slots=True)
class Question:
    """What the user's code asked about sizes, and where.

    Attributes:
        expression: of torch's symbols.
        answer: what torch said.
        place: ` at module:line`.
        sources: what the symbols are sizes of, as torch writes it.
        inside: whether the body of a branch or loop asks, with symbols of its own.
    """

    expression: sympy.Basic
    answer: bool
    place: str
    sources: tuple[str, ...]
    inside: bool = False


NOTED: ContextVar[list[Question]] = ContextVar("noted")  # of the trace that runs


def claim(count: int | torch.SymInt) -> int:
    """Return a number that depends on sizes as it is for the example's.

    It is noted as a question: such code holds only where the number is the same.
    """
    if isinstance(count, int) or count.node.hint is None:
        return int(count)  # torch refuses one of values
    number = int(count.node.hint)
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(TRACERS):
        frame = frame.f_back
    place = f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
    asked = sympy.Eq(count.node.expr, number, evaluate=False)
    NOTED.get().append(Question(asked, True, place, ()))
    return number
