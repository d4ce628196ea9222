"""Compute integers of a method as it is, to compare with what is to take their place.

In: a value that index arithmetic makes, and the part of the cursor that it is said to
be. Out: nothing where both agree at several positions and sizes, rows apart from each
other. That needs no weights and takes a fraction of a millisecond.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.compiler.ir.control import control_of
from kvc.compiler.ir.verify import sample_sizes
from kvc.schema.errors import PassFailed
from kvc.schema.model import CursorPart
from kvc.schema.types import Affine, Dim, Symbol, evaluate

POSITIONS = (0, 1, 6, 1021)
_OPS: Mapping[str, Callable[..., Tensor]] = {
    "aten::alias": lambda x: x,
    "aten::clone": lambda x: x,
    "aten::_to_copy": lambda x, dtype: x.long(),
    "aten::view": lambda x, size: x.reshape(size),
    "aten::reshape": lambda x, size: x.reshape(size),
    "aten::expand": lambda x, size: x.expand(size),
    "aten::unsqueeze": torch.unsqueeze,
    "aten::squeeze.dims": torch.squeeze,
    "aten::select.int": torch.select,
    "aten::slice.Tensor": lambda x, axis, first, last, step: x[first:last:step],
    "aten::add.Scalar": lambda x, number, alpha: x + number * alpha,
    "aten::add.Tensor": lambda x, y, alpha: x + y * alpha,
}


@dataclass(frozen=True, slots=True)
class Within:
    """Where a value is: its method, and the code around it where that is a block."""

    method: Method
    around: "Within | None" = None
    call: Node | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What an entry is given of the cursor.

    Attributes:
        start: the value that is the start, or the places of all tokens.
        places: whether it is the latter.
        lengths: the input of row lengths, None where all tokens count.
        advance: tokens that a call adds, None where it adds none.
        apart: whether rows have positions of their own.
    """

    start: Value | None
    places: bool
    lengths: Value | None
    advance: Dim | None
    apart: bool


def check_equal(
    value: Value,
    part: CursorPart,
    within: Within,
    known: Known,
    symbols: tuple[Symbol, ...],
) -> None:
    """Check that a value is a part of the cursor wherever a call may begin.

    Raises:
        PassFailed: it is not: a bug.
    """
    for sizes in sample_sizes(symbols):
        for position in POSITIONS:
            call = _Call(known, sizes, position)
            found = call.compute(value, within)
            if not torch.equal(found, call.expected(part, value)):
                reason = f"%{value.id} is not {part.name} at {position}, {sizes}"
                raise PassFailed(
                    step="use-cursor",
                    method=within.method.name,
                    node=f"%{value.id}",
                    place="",
                    reason=reason,
                )


class _Call:
    """One call: the sizes, and where each row begins; each stands somewhere else."""

    def __init__(self, known: Known, sizes: Mapping[str, int], position: int) -> None:
        self._known, self._sizes, self._position = known, sizes, position

    def compute(self, value: Value, within: Within) -> Tensor:
        """Return what arithmetic makes a value."""
        known = self._known
        if within.around is None and known.start is not None and value == known.start:
            part = CursorPart.PLACES if known.places else CursorPart.START
            return self.expected(part, value)
        if (
            within.around is None
            and known.lengths is not None
            and value == known.lengths
        ):
            return self.expected(CursorPart.LENGTHS, value)
        node = within.method.makers().get(value.id)
        if node is not None and node.op == "aten::copy":  # over a value of any kind
            source = node.inputs[1]
            shape = value.type.shape(self._sizes)
            return self.compute(source, within).expand(shape)
        if node is not None:
            return _OPS[node.op](*self._arguments(node, within))
        assert within.around is not None, "it was followed from the cursor"
        assert within.call is not None
        control = control_of(within.call)
        assert control is not None
        operand = control.operands[within.method.inputs.index(value)]
        return self.compute(operand, within.around)

    def expected(self, part: CursorPart, value: Value) -> Tensor:
        """Return what a part of the cursor is, of a value's shape."""
        shape = value.type.shape(self._sizes)
        count = shape[0] if shape else 1
        starts = self._position + 3 * self._known.apart * torch.arange(count)
        most = 0 if self._known.advance is None else self._known.advance
        advance = evaluate(most, self._sizes)
        lengths = torch.full((count,), advance)
        if self._known.lengths is not None:
            lengths = torch.arange(count) % (advance + 1)
        made = {
            CursorPart.START: starts,
            CursorPart.END: starts + lengths,
            CursorPart.LENGTHS: lengths,
            CursorPart.PLACES: self._position + torch.arange(count),
        }
        return made[part].reshape(shape)

    def _arguments(self, node: Node, within: Within) -> Iterator[object]:
        for argument in node.arguments:
            if isinstance(argument, tuple):
                yield tuple(self._number(item) for item in argument)
            elif isinstance(argument, Value):
                yield self.compute(argument, within)
            else:
                yield self._number(argument)

    def _number(self, item: Argument) -> object:
        return item.evaluate(self._sizes) if isinstance(item, Affine) else item
