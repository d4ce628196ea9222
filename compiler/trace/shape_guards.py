"""Check that a trace is valid for every declared size, not only for the example's.

While tracing, Python code evaluates conditions on sizes (`if x.shape[1] == 1`), and
torch answers them for the example's sizes, as if no size could be 1. This module
records every condition in the user's own code. If the answer differs for some declared
size, the code takes a different path at that size, and the trace would be silently
wrong. Most conditions in torch's own code only select between ways to compute the same
result, and are not recorded.
"""

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kvc.compiler.decompose.claims import NOTED, TRACERS, Question
from kvc.compiler.functional.by_size import samples
from kvc.compiler.request.spec import Dim, Method
from kvc.compiler.trace.examples import tensor_paths
from kvc.compiler.trace.sources import user_place
from kvc.compiler.trace.traced import PARAMETER, Lifted
from kvc.schema.errors import CapacityFixed, SizesRefused

# The start of file names of code that torch generates for bodies of control flow.
_GENERATED = "<"
# Functions of torch that raise an error for some sizes: their conditions count too.
_RAISING = ("_verify_batch_size", "_verify_spatial_size")
Asked = Callable[..., object]


# Comparisons that torch answers at once, since it takes sizes to be at least 1.
_COMPARISONS: Mapping[str, Callable[..., sympy.Basic]] = {
    "__eq__": sympy.Eq,
    "__ne__": sympy.Ne,
    "__lt__": sympy.Lt,
    "__le__": sympy.Le,
    "__gt__": sympy.Gt,
    "__ge__": sympy.Ge,
}


@contextmanager
def noted_questions(questions: list[Question]) -> Iterator[None]:
    """Record the conditions on sizes that code outside of torch evaluates."""
    asking: list[tuple[type, str, Asked]] = [
        (kind, "__bool__", _noting(kind.__bool__, questions))
        for kind in (torch.SymBool, torch.SymInt)
    ]
    asking += [
        (torch.SymInt, name, _comparing(getattr(torch.SymInt, name), made, questions))
        for name, made in _COMPARISONS.items()
    ]
    from torch._dynamo.variables.tensor import SymNodeVariable

    inside = _noting_inside(SymNodeVariable.evaluate_expr, questions)
    asking.append((SymNodeVariable, "evaluate_expr", inside))
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in asking]
    token = NOTED.set(questions)
    try:
        for kind, name, method in asking:
            setattr(kind, name, method)
        yield
    finally:
        NOTED.reset(token)
        for kind, name, method in before:
            setattr(kind, name, method)


def _noting(ask: Callable[..., bool], questions: list[Question]) -> Asked:
    def noting(size: torch.SymBool | torch.SymInt) -> bool:
        answer = ask(size)
        _note(questions, size, size.node.expr, answer, sys._getframe(1))
        return answer

    return noting


def _noting_inside(ask: Callable[..., object], questions: list[Question]) -> Asked:
    """Return `ask`, changed to record each condition that it answers.

    dynamo calls `ask` while it traces bodies of branches and loops. dynamo uses
    separate symbols for sizes in bodies, so the Dims of these sizes are unknown.
    """

    def noting(variable: object, *rest: object) -> object:
        answer = ask(variable, *rest)
        size = getattr(variable, "sym_num", None)
        if isinstance(size, torch.SymBool) and isinstance(answer, bool):
            place = " in a branch or loop"
            questions.append(Question(size.node.expr, answer, place, (), inside=True))
        return answer

    return noting


def _comparing(
    compare: Callable[..., object],
    relation: Callable[..., sympy.Basic],
    questions: list[Question],
) -> Asked:
    def comparing(size: torch.SymInt, other: object) -> object:
        result = compare(size, other)
        # The constant value of a comparison; None if it depends on sizes.
        expression = result.node.expr if isinstance(result, torch.SymBool) else result
        known = isinstance(expression, bool) or expression in (sympy.true, sympy.false)
        answer = bool(expression) if known else None
        if answer is not None and isinstance(other, int | torch.SymInt):
            right = other.node.expr if isinstance(other, torch.SymInt) else other
            asked = relation(size.node.expr, right, evaluate=False)
            _note(questions, size, asked, answer, sys._getframe(1))
        return result

    return comparing


def _note(
    questions: list[Question],
    size: torch.SymBool | torch.SymInt,
    expression: sympy.Basic,
    answer: bool,
    frame: FrameType,
) -> None:
    code = frame.f_code
    not_the_users = code.co_filename.startswith((*TRACERS, _GENERATED))
    if not_the_users and code.co_name not in _RAISING:
        return
    place = f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
    known = size.node.shape_env.var_to_sources
    sources = [s.name for x in expression.free_symbols for s in known.get(x, ())]
    questions.append(Question(expression, answer, place, tuple(map(str, sources))))


def asserted(exported: ExportedProgram) -> list[Question]:
    """Return the conditions that torch asserts in the traced code."""
    truths = [
        getattr(node.args[0], "meta", {}).get("val")
        for node in exported.graph.nodes
        if node.target is torch.ops.aten._assert_scalar.default
    ]
    asked = [t.node.expr for t in truths if isinstance(t, torch.SymBool)]
    return [Question(each, True, "", ()) for each in dict.fromkeys(asked)]


def check_questions(
    method: Method,
    arguments: Mapping[str, object],
    exported: ExportedProgram,
    questions: Sequence[Question],
) -> None:
    """Check that every recorded answer holds for all declared sizes.

    Args:
        method: the traced method.
        arguments: the examples of the trace, by parameter name.
        exported: the trace, before it is decomposed.
        questions: the conditions that were recorded while tracing.

    Raises:
        CaptureError: the code takes another path for some declared size.
    """
    known = dims_of(method, arguments, exported)
    dims = {symbol: dim for symbol, (_, dim) in known.items()}
    for question in questions:
        if question.inside:
            _check_inside(method, question, list(dims.values()))
            continue
        symbols = sorted(question.expression.free_symbols & dims.keys(), key=str)
        if len(symbols) != len(question.expression.free_symbols):
            continue
        for sizes in samples([dims[symbol] for symbol in symbols]):
            pairs = dict(zip(symbols, sizes, strict=True))
            if bool(question.expression.subs(pairs).doit()) != question.answer:
                raise _refused(method, question, {dims[s]: n for s, n in pairs.items()})


def _check_inside(method: Method, question: Question, dims: Sequence[Dim]) -> None:
    """Check the answer to a body's condition for all Dims and sizes it may be about.

    The Dims of the sizes in a body are unknown, so every assignment of Dims is checked.

    Raises:
        SizesRefused: the answer differs for some sizes.
    """
    symbols = sorted(question.expression.free_symbols, key=str)
    for chosen in itertools.product(dims, repeat=len(symbols)):
        for sizes in samples(chosen):
            pairs = dict(zip(symbols, sizes, strict=True))
            if bool(question.expression.subs(pairs).doit()) != question.answer:
                raise _refused(method, question, dict(zip(chosen, sizes, strict=True)))


def dims_of(
    method: Method, arguments: Mapping[str, object], exported: ExportedProgram
) -> dict[sympy.Symbol, tuple[torch.SymInt, Dim]]:
    """Return torch's symbol of a size -> the size in the trace, and its Dim."""
    paths = tensor_paths(arguments)
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    inputs = [values.get(name) for name in exported.graph_signature.user_inputs]
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    found: dict[sympy.Symbol, tuple[torch.SymInt, Dim]] = {}
    for path, tensor in zip(paths, tensors, strict=False):
        for axis, dim in method.dynamic.get(path, {}).items():
            size: int | torch.SymInt = tensor.shape[axis]
            if not isinstance(size, int):
                found[size.node.expr] = size, dim
    return found


def _refused(
    method: Method, question: Question, sizes: Mapping[Dim, int]
) -> SizesRefused:
    where = ", ".join(f"{dim.name} = {n}" for dim, n in sizes.items())
    reason = (
        f"the code asks about a size and takes another way for {where} than for other "
        "declared sizes"
    )
    advice = (
        "compile that case as a method of its own, narrow the Dim, or compute without "
        "asking"
    )
    return SizesRefused(
        method=method.name, place=question.place, reason=reason, advice=advice
    )


# Find where traced code turns a dynamic size into a constant.


_VIOLATED = re.compile(r"Constraints violated \((?P<dims>[^)]*)\)")
_CONSTANT = re.compile(r"marked (?P<dim>\w+) as dynamic.*?constant \((?P<size>\d+)\)")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A dynamic size that became a constant, and the source line that fixed it."""

    size: int
    place: str


@contextmanager
def noted_constants() -> Iterator[list[Fixed]]:
    """Record every size that torch replaces by a constant."""
    fixed: list[Fixed] = []
    before = ShapeEnv._set_replacement

    def noting(env: ShapeEnv, symbol: sympy.Symbol, new: sympy.Expr, why: str) -> None:
        if new.is_Integer:
            fixed.append(Fixed(int(new), user_place(sys._getframe(1))))
        before(env, symbol, new, why)

    ShapeEnv._set_replacement = noting  # type: ignore[method-assign,assignment]
    try:
        yield fixed
    finally:
        ShapeEnv._set_replacement = before  # type: ignore[method-assign]


def refuse_fixed(
    method: Method,
    lifted: Sequence[Lifted],
    fixed: Sequence[Fixed],
    questions: Sequence[Question],
    error: Exception,
) -> None:
    """Translate torch's error about the size of a buffer that a session chooses.

    Raises:
        CapacityFixed: the trace is valid only for some sizes of such a buffer.
    """
    text = str(error)
    violated = _VIOLATED.search(text)
    names = [n.strip() for n in violated["dims"].split(",")] if violated else []
    sizes = {m["dim"]: int(m["size"]) for m in _CONSTANT.finditer(text)}
    for number, one in enumerate(lifted):
        for axis, dim in one.axes.items():
            if dim.name not in names:
                continue
            if dim.name in sizes:
                place, reason = _constant(one, axis, sizes[dim.name], fixed)
            else:
                place, reason = _narrowed(number, questions, text)
            raise CapacityFixed(
                method=method.name,
                place=place,
                buffer=one.name,
                dim=dim.name,
                axis=axis,
                reason=reason,
            )


def _constant(
    one: Lifted, axis: int, size: int, fixed: Sequence[Fixed]
) -> tuple[str, str]:
    """Return (source line, reason) for a size of a buffer that became constant."""
    places = [f.place for f in fixed if f.size == size and f.place]
    reason = (
        f"the code takes it for {size}; read the size from the buffer, "
        f"{one.name}.shape[{axis}], instead of a number or an attribute"
    )
    return places[0] if places else "", reason


def _narrowed(number: int, questions: Sequence[Question], text: str) -> tuple[str, str]:
    """Return (source line, reason) for code that is valid only for some sizes.

    `number` is the index of the buffer among the lifted ones, `text` is torch's error.
    """
    source = f"['{PARAMETER}'][{number}]"
    places = [q.place for q in questions if any(source in s for s in q.sources)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = " ".join(lines[1:3])
    reason = f"the code does not hold for all of them. torch.export says: {said[:300]}"
    return places[0] if places else "", reason
