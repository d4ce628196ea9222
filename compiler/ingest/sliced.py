"""Sizes of slices whose ends torch cannot place.

Where torch cannot tell from which end of an axis a place counts, it makes a new symbol
for the size of the slice; the bounds of the declared dims often tell. In: a traced
slice. Out: its symbol defined by what the ends say.
"""

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.utils._sympy.functions import FloorDiv

from kvc.compiler.ingest.calls import Unsupported
from kvc.compiler.ingest.symbols import SizeReader


def define_slice_size(node: fx.Node, sizes: SizeReader) -> None:
    """Define the symbol that a slice's size is, where its ends are sizes.

    Raises:
        Unsupported: nobody knows from which end of the axis a place counts.
    """
    source, dim, start, end, step = _arguments(node)
    made = node.meta["val"]
    if not isinstance(source, Tensor):
        return
    axis = dim % source.dim()
    size, whole = made.shape[axis], source.shape[axis]
    ends = (whole, 0 if start is None else start, whole if end is None else end)
    places = [each for each in ends if isinstance(each, int | torch.SymInt)]
    if sizes.knows(size) or not size.node.expr.is_Symbol or len(places) < len(ends):
        return
    if not all(map(sizes.knows, places)):
        return
    length, first, last = map(sizes.expression, places)
    begin, until = (_placed(place, length, sizes) for place in (first, last))
    if begin is None or until is None:
        place = first if begin is None else last
        raise Unsupported(
            f"a slice has an end at {place}, which counts from the front of its axis "
            "at some sizes and from the back at others; change the bounds of the Dim, "
            "or count from the front"
        )
    count = FloorDiv(until - begin + step - 1, sympy.Integer(step))
    sizes.define(size.node.expr, sympy.Max(0, count))


def _arguments(node: fx.Node) -> tuple[object, int, object, object, int]:
    given = [a.meta.get("val") if isinstance(a, fx.Node) else a for a in node.args]
    usual: list[object] = [None, 0, None, None, 1]
    source, dim, start, end, step = given + usual[len(given) :]
    assert isinstance(dim, int)
    assert isinstance(step, int)
    return source, dim, start, end, step


def _placed(
    place: sympy.Expr, length: sympy.Expr, sizes: SizeReader
) -> sympy.Expr | None:
    """Return a place within an axis, None where nobody knows what it counts from."""
    low, high = sizes.bounds(place)
    if low < 0 < high + 1:
        return None
    return sympy.Min(place, length) if low >= 0 else sympy.Max(0, place + length)
