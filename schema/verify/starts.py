"""How values relate to cursors: a field of one, or a number of positions after a start.

In: an operand, what values of its code are to cursors. Out: how far after the start of
which cursor it is, or whether it is another field of one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from kvc.schema.frozen import frozen
from kvc.schema.graph import Argument, CursorField, CursorSlot, Instruction, Ref
from kvc.schema.model import State
from kvc.schema.types import Dim, add_dims

_COPIES: Final = {"aten::clone": 0, "aten::copy": 1}  # the argument that is copied


@frozen
class After:
    """A value that is so many positions after where a call or a turn starts.

    Attributes:
        cursor: id of the cursor.
        offset: how many, beside what loops and branches add of which nobody knows.
        turn: which of the turns, each of what one loop carries, starts there; 0 for
            the call.
        loops: what tells these loops and branches apart, each once, in order.
    """

    cursor: int
    offset: Dim
    turn: int = 0
    loops: tuple[int, ...] = ()

    def further(self, count: Dim) -> "After":
        """Return what is so many positions after this."""
        return replace(self, offset=add_dims(self.offset, count))

    def left_from(self, other: "After") -> Dim | None:
        """Return how far this is after another at least, None where nothing says so."""
        alike = (self.cursor, self.turn) == (other.cursor, other.turn)
        if not alike or not set(other.loops) <= set(self.loops):
            return None
        return add_dims(self.offset, other.offset, -1)


Fields = Mapping[int, CursorSlot | After]  # what values are to cursors


def placed(argument: Argument, fields: Fields) -> After | None:
    """Return how far after the start of which cursor an operand is."""
    field = fields.get(argument.value) if isinstance(argument, Ref) else None
    if isinstance(field, CursorSlot):
        return After(field.cursor, 0) if field.field is CursorField.START else None
    return field


def is_field(
    argument: Argument,
    fields: Fields,
    state: State,
    field: CursorField,
) -> bool:
    """Tell whether an operand is a field of the cursor that a state is at."""
    if not isinstance(argument, Ref) or state.cursor is None:
        return False
    return fields.get(argument.value) == CursorSlot(state.cursor, field)


def copied(step: Instruction) -> int:
    """Return the id of the value that the result equals, -1 where it is no copy."""
    index = _COPIES.get(step.op)
    return -1 if index is None else cast(Ref, step.arguments[index]).value


def first_operand(step: Instruction) -> int:
    """Return the id of the first operand, -1 where it is no value."""
    first = step.arguments[0]
    return first.value if isinstance(first, Ref) else -1
