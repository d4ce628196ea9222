"""Find where traced code turns a dynamic size into a constant.

torch says at the end of a trace that a Dim became a constant, but not where. This
records the user's line each time that torch replaces a size by a number.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kvc.compiler.decompose.claims import Question
from kvc.compiler.request.spec import Method
from kvc.compiler.trace.lifted import PARAMETER, Lifted
from kvc.compiler.trace.lines import user_place
from kvc.schema.errors import CapacityFixed

_VIOLATED = re.compile(r"Constraints violated \((?P<dims>[^)]*)\)")
_CONSTANT = re.compile(r"marked (?P<dim>\w+) as dynamic.*?constant \((?P<size>\d+)\)")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A size that became a number, and where."""

    size: int
    place: str


@contextmanager
def noted_constants() -> Iterator[list[Fixed]]:
    """Note every size that torch replaces by a number."""
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
    """Raise what torch's complaint means for buffers whose size is to be chosen later.

    Raises:
        CapacityFixed: the code holds only for some of these sizes.
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
    """Return where and why a size is one number."""
    places = [f.place for f in fixed if f.size == size and f.place]
    reason = (
        f"the code takes it for {size}; read the size from the buffer, "
        f"{one.name}.shape[{axis}], instead of a number or an attribute"
    )
    return places[0] if places else "", reason


def _narrowed(number: int, questions: Sequence[Question], text: str) -> tuple[str, str]:
    """Return where and why the code holds only for some sizes."""
    source = f"['{PARAMETER}'][{number}]"
    places = [q.place for q in questions if any(source in s for s in q.sources)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = " ".join(lines[1:3])
    reason = f"the code does not hold for all of them. torch.export says: {said[:300]}"
    return places[0] if places else "", reason
