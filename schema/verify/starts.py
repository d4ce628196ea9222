"""How values relate to cursors: a field of one, or a number of positions after a start.

In: the code of a method or block, what its operands are to cursors. Out: the same of
results. `kvc::after` is followed, through copies and the code of delegates too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from kvc.schema.control import read_control
from kvc.schema.frozen import frozen
from kvc.schema.model import (
    Argument,
    Block,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    State,
)
from kvc.schema.ops import AFTER, DELEGATE
from kvc.schema.types import Dim, add_dims

_COPIES: Final = {"aten::clone": 0, "aten::copy": 1}  # the argument that is copied


@frozen
class After:
    """A value that is so many positions after where a call or a turn starts.

    Attributes:
        cursor: id of the cursor.
        offset: how many, beside what loops of unknown turns add.
        turn: of a turn of a loop, how many positions that adds; None for the call.
        loops: what tells these loops apart, each once, in order.
    """

    cursor: int
    offset: Dim
    turn: int | None = None
    loops: tuple[int, ...] = ()

    def further(self, count: Dim) -> "After":
        """Return what is so many positions after this."""
        return replace(self, offset=add_dims(self.offset, count))


Fields = Mapping[int, CursorSlot | After]  # what values are to cursors


def handed_on(
    inside: Graph, known: dict[int, Dim], blocks: Sequence[Block]
) -> dict[int, Dim]:
    """Return the values that are so much further than those known, which are added to.

    A copy may lead into the memory of what a loop carries; a delegate does as its code.
    """
    for step in inside.instructions:
        if step.op == AFTER and first_operand(step) in known:
            count = cast("Dim", step.arguments[1])
            known[step.results[0]] = add_dims(known[first_operand(step)], count)
        elif (source := copied(step)) in known:
            known[step.results[0]] = known[source]
        elif step.op == DELEGATE:
            control = read_control(step.op, step.arguments)
            code = blocks[control.blocks[0]].graph
            pairs = zip(control.operands, code.inputs, strict=True)
            lent = {own: known[v] for r, own in pairs
                    if (v := cast(Ref, r).value) in known}  # fmt: skip
            made = handed_on(code, lent, blocks)
            results = zip(code.outputs, step.results, strict=False)
            known |= {result: made[out] for out, result in results if out in made}
    return known


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
