"""Compare integers with the cursor fields that replace them, by computing both.

In: a value of index arithmetic, and the field of the cursor that should equal the
value. Both are computed at several positions and sizes, with a different position in
each row; an error is raised if they differ. The check needs no weights and takes a
fraction of a millisecond.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.ir import Argument, Node, Value
from kvc.compiler.ir.arguments import named
from kvc.compiler.ir.verify import sample_sizes
from kvc.schema.dtypes import DType
from kvc.schema.errors import PassFailed
from kvc.schema.graph import CursorField as Field
from kvc.schema.types import Affine, Dim, Symbol, evaluate

POSITIONS = (0, 1, 6, 1021)


def check_equal(
    value: Value,
    field: Field,
    view: CursorView,
    symbols: tuple[Symbol, ...],
    offset: Dim = 0,
    own: Value | None = None,
) -> None:
    """Check that a value equals a field of the cursor, wherever the call starts.

    Args:
        value: the value of the method to check.
        field: the expected field.
        view: the view of the method.
        symbols: the symbols of the program.
        offset: a number added to the field.
        own: value from which the check computes instead of the call's start: a carried
            value of a loop, or the value after the loop.

    Raises:
        PassFailed: the value and the field differ, which is a bug.
    """
    for sizes in sample_sizes(symbols):
        for position in POSITIONS:
            call = _Call(view, sizes, position, own)
            expected = call.expected(field, value) + evaluate(offset, sizes)
            if not torch.equal(call.compute(value), expected):
                named_field = field.name + (f" + {offset}" if offset != 0 else "")
                raise PassFailed(
                    step="use-cursors",
                    method=view.method.name,
                    node=f"%{value.id}",
                    place="",
                    reason=f"%{value.id} is not {named_field} at {position}, {sizes}",
                )


class _Call:
    """One call: its sizes, and a different start for each row."""

    def __init__(
        self,
        view: CursorView,
        sizes: Mapping[str, int],
        position: int,
        own: Value | None = None,
    ) -> None:
        self._view, self._sizes, self._position = view, sizes, position
        self._makers, self._own = view.method.makers(), own

    def compute(self, value: Value) -> Tensor:
        """Compute a value from its nodes; an element is -1 if branches differ in it."""
        view = self._view
        ends = {one.end.id: one for one in view.method.loops}
        if value == self._own:
            return self.expected(Field.START, value)
        if value.id in ends:
            one = ends[value.id]
            assert one.turns is not None, "a loop without a known count is a mark"
            return self.compute(one.first) + one.step * evaluate(one.turns, self._sizes)
        if value == view.start:
            return self.expected(Field.PLACES if view.places else Field.START, value)
        if value == view.step.lengths:
            return self.expected(Field.LENGTHS, value)
        if value.id in view.method.joins:
            made, *others = map(self.compute, view.method.joins[value.id].ways)
            for other in others:
                made = torch.where(made == other, made, -1)
            return made
        node = self._makers[value.id]
        if node.op == "aten::copy":  # a copy over a value of any kind
            return self.compute(node.inputs[1]).expand(value.type.shape(self._sizes))
        return self._run(node)

    def expected(self, field: Field, value: Value) -> Tensor:
        """Return the value of a cursor field in this call, in the shape of `value`."""
        shape, step = value.type.shape(self._sizes), self._view.step
        count = shape[0] if shape else 1
        rows = torch.arange(count) * self._view.apart
        starts = self._position + 3 * rows
        tokens = 0 if step.tokens is None else evaluate(step.tokens, self._sizes)
        lengths = torch.full((count,), tokens)
        if step.lengths is not None:
            lengths = (self._position + rows) % (tokens + 1)
        made = {
            Field.START: starts,
            Field.END: starts + lengths,
            Field.LENGTHS: lengths,
            Field.PLACES: self._position + torch.arange(count),
        }
        return made[field].reshape(shape)

    def _run(self, node: Node) -> Tensor:
        """Return the result of a node whose operator can occur in an `IndexSum`."""
        name, _, overload = node.op.removeprefix("aten::").partition(".")
        run = getattr(getattr(torch.ops.aten, name), overload or "default")
        given = {
            name: self._settled(argument)
            for name, argument in named(node).items()
            if not isinstance(argument, DType)
        }
        made: Tensor = run(**given)
        return made.long()

    def _settled(self, item: Argument) -> object:
        if isinstance(item, tuple):
            return tuple(map(self._settled, item))
        if isinstance(item, Value):
            return self.compute(item)
        return item.evaluate(self._sizes) if isinstance(item, Affine) else item
