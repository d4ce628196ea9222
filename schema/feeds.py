"""What a session fills a method's input of the position with.

In: the dims of that input, what its method adds to the position, its other inputs, and
the symbols that a session fixes. Out: one place, one for each row, or one for each
token. The file does not say it otherwise, so both sides ask here: the compiler to
refuse what would be read another way than it was meant, the runtime once a method.
"""

from collections.abc import Collection, Sequence
from enum import Enum

from kvc.schema.model import Method, Position, PositionKind, State
from kvc.schema.types import Dim, TensorType, symbols_in, symbols_of


class Feed(Enum):
    """What an input of the position holds, int64."""

    ONE = "one"  # [] or [1]: the place of the first token, the same in all rows
    ROWS = "rows"  # [batch]: that of the first token of each row
    PLACES = "places"  # [seq]: that of each token, the same in all rows


def find_feed(
    dims: Sequence[Dim],
    advance: Dim | None,
    others: Sequence[TensorType],
    fixed: Collection[str],
) -> Feed:
    """Return what an input of the position holds.

    Args:
        dims: of the input, none or one.
        advance: tokens that the method adds to the position, None for none.
        others: types of its other inputs, [batch, seq, ...] where they are of tokens.
        fixed: symbols that a session fixes; tokens have none of them.
    """
    if not dims or dims[0] == 1:
        return Feed.ONE
    if not symbols_of(dims).isdisjoint(fixed):
        return Feed.ROWS
    if advance is not None:
        return Feed.PLACES if dims[0] == advance else Feed.ROWS
    rows = {kind.dims[0] for kind in others if kind.dims}
    tokens = {kind.dims[1] for kind in others if len(kind.dims) > 1}
    return Feed.ROWS if dims[0] in rows - tokens else Feed.PLACES


def position_input(method: Method, position: Position | None) -> int | None:
    """Return which input of a method the session fills, None when there is none."""
    if position is None or position.kind is not PositionKind.INPUT:
        return None
    if position.input_name not in method.input_names:
        return None
    return method.input_names.index(position.input_name)


def feed_of(
    method: Method, position: Position | None, states: Sequence[State]
) -> Feed | None:
    """Return what a method's input of the position holds, None when it has none."""
    index = position_input(method, position)
    if index is None:
        return None
    types = [method.graph.values[value].type for value in method.graph.inputs]
    dims = types.pop(index).dims
    fixed = symbols_in(state.type for state in states)
    return find_feed(dims, method.advance, types, fixed)
