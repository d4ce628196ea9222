"""Positions that values contain: a field of a cursor, or a distance after a start.

A start is the cursor's position when a call or an iteration of a loop begins. In: an
operand, and the positions that are known of its graph's values. Out: the operand's
cursor and its distance after the start; or the field of a cursor that the operand is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from kvc.schema.frozen import frozen
from kvc.schema.graph import Argument, CursorField, CursorSlot, Instruction, Ref
from kvc.schema.model import State
from kvc.schema.types import Dim, add_dims

_COPIES: Final = {"aten::clone": 0, "aten::copy": 1}  # index of the copied argument


@frozen
class After:
    """A position that lies some tokens after the start of a call or iteration.

    Attributes:
        cursor: id of the cursor.
        offset: the distance from the start, without the unknown distances that loops
            and branches add.
        turn: which start is meant: 0 for the start of the call; any other number for
            the start of an iteration, one number for each carried value of a loop.
        loops: numbers of the loops and branches that add unknown distances, in order,
            each number once.
    """

    cursor: int
    offset: Dim
    turn: int = 0
    loops: tuple[int, ...] = ()

    def further(self, count: Dim) -> "After":
        """Return the position that is `count` tokens after this position."""
        return replace(self, offset=add_dims(self.offset, count))

    def left_from(self, other: "After") -> Dim | None:
        """Return the least distance from `other` to this position, or None.

        The result is None if the distance is unknown.
        """
        alike = (self.cursor, self.turn) == (other.cursor, other.turn)
        if not alike or not set(other.loops) <= set(self.loops):
            return None
        return add_dims(self.offset, other.offset, -1)


Fields = Mapping[int, CursorSlot | After]  # the relation of values to cursors


def placed(argument: Argument, fields: Fields) -> After | None:
    """Return the position that an operand is, relative to a start; None if unknown."""
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
    """Tell whether an operand is a field of a state's cursor."""
    if not isinstance(argument, Ref) or state.cursor is None:
        return False
    return fields.get(argument.value) == CursorSlot(state.cursor, field)


def copied(step: Instruction) -> int:
    """Return the id of the value that an instruction copies; -1 if it does not copy."""
    index = _COPIES.get(step.op)
    return -1 if index is None else cast(Ref, step.arguments[index]).value


def first_operand(step: Instruction) -> int:
    """Return the id of an instruction's first operand; -1 if that is not a value."""
    first = step.arguments[0]
    return first.value if isinstance(first, Ref) else -1
