"""Where traced code fixes a size that was to stay open.

torch says at the end of a trace that a Dim became a constant, but not where. While
tracing, this notes the user's line each time that torch replaces a size by a number.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kvc.compiler.capture.lifted import Lifted
from kvc.compiler.capture.lines import user_place
from kvc.compiler.spec import Method
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
    error: Exception,
) -> None:
    """Raise what torch's complaint means for buffers whose size is to be chosen later.

    Raises:
        CapacityFixed: the code holds only for some of these sizes.
    """
    text = str(error)
    violated = _VIOLATED.search(text)
    names = [n.strip() for n in violated["dims"].split(",")] if violated else []
    for one in lifted:
        for axis, dim in one.axes.items():
            if dim.name in names:
                raise _capacity_fixed(method, one, axis, fixed, text)


def _capacity_fixed(
    method: Method, one: Lifted, axis: int, fixed: Sequence[Fixed], text: str
) -> CapacityFixed:
    dim = one.axes[axis].name
    sizes = {m["dim"]: int(m["size"]) for m in _CONSTANT.finditer(text)}
    places = [f.place for f in fixed if f.size == sizes.get(dim) and f.place]
    reason = (
        f"the code takes its size along axis {axis} for {sizes[dim]}"
        if dim in sizes
        else f"the code does not hold for all sizes along axis {axis}"
    )
    return CapacityFixed(
        method=method.name,
        place=places[0] if places else "",
        buffer=one.name,
        axis=axis,
        dim=dim,
        reason=reason,
    )
