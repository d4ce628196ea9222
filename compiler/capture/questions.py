"""Check that a trace holds for every declared size, not only for its example's.

While tracing, Python asks about sizes (`if x.shape[1] == 1`) and torch answers for the
example, as if no size could be 1. Every question that the user's own code asks is
noted here; if the answer is another one for some declared size, the code takes another
way there, and the trace would be silently wrong. Questions that torch asks itself only
choose between ways to compute the same thing.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.export import ExportedProgram

from kvc.compiler.capture.examples import map_tensors
from kvc.compiler.spec import Dim, Method
from kvc.schema.errors import CaptureError

_ALL = 2048  # ranges up to this length are tried in full, by questions about one Dim
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class Question:
    """What the user's code asked about sizes, and where; the answer was `answer`."""

    expression: sympy.Basic
    answer: bool
    place: str


@contextmanager
def noted_questions() -> Iterator[list[Question]]:
    """Note every truth value of sizes that code outside of torch asks for."""
    questions: list[Question] = []
    of_truth, of_size = torch.SymBool.__bool__, torch.SymInt.__bool__
    torch.SymBool.__bool__ = _noting(of_truth, questions)  # type: ignore[method-assign]
    torch.SymInt.__bool__ = _noting(of_size, questions)  # type: ignore[method-assign]
    try:
        yield questions
    finally:
        torch.SymBool.__bool__ = of_truth  # type: ignore[method-assign]
        torch.SymInt.__bool__ = of_size  # type: ignore[method-assign]


def _noting(
    ask: Callable[..., bool], questions: list[Question]
) -> Callable[[torch.SymBool | torch.SymInt], bool]:
    def noting(size: torch.SymBool | torch.SymInt) -> bool:
        answer = ask(size)
        frame = sys._getframe(1)
        if not frame.f_code.co_filename.startswith(_TORCH):
            place = f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
            questions.append(Question(size.node.expr, answer, place))
        return answer

    return noting


def check_questions(
    method: Method,
    arguments: Mapping[str, object],
    exported: ExportedProgram,
    questions: Sequence[Question],
) -> None:
    """Check that every answer holds for all declared sizes.

    Args:
        method: what was traced.
        arguments: the examples it was traced with, by parameter name.
        exported: as traced, before it is decomposed.
        questions: as noted while tracing.

    Raises:
        CaptureError: the code takes another way for some declared size.
    """
    dims = _symbols(method, arguments, exported)
    for question in questions:
        symbols = sorted(question.expression.free_symbols & dims.keys(), key=str)
        if len(symbols) != len(question.expression.free_symbols):
            continue
        for sizes in _samples([dims[symbol] for symbol in symbols]):
            pairs = dict(zip(symbols, sizes, strict=True))
            if bool(question.expression.subs(pairs)) != question.answer:
                raise _refused(method, question, {dims[s]: n for s, n in pairs.items()})


def _symbols(
    method: Method, arguments: Mapping[str, object], exported: ExportedProgram
) -> dict[sympy.Symbol, Dim]:
    """Return which Dim each of torch's symbols is."""
    paths: list[str] = []

    def note(path: str, tensor: object) -> object:
        paths.append(path)
        return tensor

    for name, structure in arguments.items():
        map_tensors(name, structure, note)
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    inputs = [values.get(name) for name in exported.graph_signature.user_inputs]
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    found: dict[sympy.Symbol, Dim] = {}
    for path, tensor in zip(paths, tensors, strict=False):
        for axis, dim in method.dynamic.get(path, {}).items():
            size: int | torch.SymInt = tensor.shape[axis]
            if not isinstance(size, int):
                found[size.node.expr] = dim
    return found


def _samples(dims: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    """Yield sizes to try: all of one Dim's, both ends and small ones of several."""
    if len(dims) == 1 and dims[0].upper - dims[0].lower < _ALL:
        yield from ((n,) for n in range(dims[0].lower, dims[0].upper + 1))
        return
    choices = []
    for dim in dims:
        small = range(dim.lower, dim.lower + 10)
        near = {*small, dim.upper // 2, dim.upper - 1, dim.upper}
        choices.append(sorted(n for n in near if dim.lower <= n <= dim.upper))
    yield from itertools.product(*choices)


def _refused(
    method: Method, question: Question, sizes: Mapping[Dim, int]
) -> CaptureError:
    where = ", ".join(f"{dim.name} = {n}" for dim, n in sizes.items())
    reason = (
        f"the code asks about a size and takes another way for {where} than for other "
        "declared sizes; compile that case as a method of its own, narrow the Dim, or "
        "compute without asking"
    )
    return CaptureError(method=method.name, place=question.place, reason=reason)
