"""How far a call has written a state, from its start on and without a hole.

In: where a loop or branch begins and ends, and what has been written before or in it.
Out: the same of a turn, or after it. Queries over a ring with a window see only what
lies before the call, or has been written by it; `cursor_uses.py` checks that with this.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from kvc.schema.control import Control
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph, Ref
from kvc.schema.types import Dim
from kvc.schema.verify.starts import After, Fields, placed


@frozen
class Filled:
    """How far a state is filled by a call or a turn.

    Attributes:
        ends: where it is filled up to; several where loops carry several such places.
        count: how many positions the last write was of, None before the first.
    """

    ends: frozenset[After]
    count: Dim | None = None

    def in_turn(
        self,
        control: Control[object],
        inside: Graph,
        turns: Mapping[int, After],
        fields: Fields,
    ) -> "Filled":
        """Return how far it is filled as a turn starts: up to there, or unknown."""
        pairs = zip(control.operands, inside.inputs[: control.carried], strict=False)
        starts = {
            turns[own]
            for operand, own in pairs
            if own in turns and placed(cast(Ref, operand), fields) in self.ends
        }
        return Filled(frozenset(starts))


def filled_after(
    results: Sequence[int],
    ways: Sequence[tuple[Sequence[int], Fields, Filled]],
    fields: Fields,
    loop: bool,
) -> Filled:
    """Return how far a state is filled after branches or turns.

    Args:
        results: of what runs them.
        ways: of each, its outputs, what its values are, and how far it has filled.
        fields: what the results are.
        loop: whether these are turns, which count from where they start.
    """

    def ends() -> Iterator[After]:
        for i in range(len(ways[0][0])):
            end = fields.get(results[i])
            there = (
                placed(Ref(outputs[i]), made) in filled.ends
                for outputs, made, filled in ways
            )
            if isinstance(end, After) and all(there):
                yield end
        if not loop:
            yield from frozenset.intersection(*(filled.ends for *_, filled in ways))

    return Filled(frozenset(ends()))
