"""Split calls that are longer than the rings of a session allow into pieces.

In: a method of the role "prefill", more tokens than it takes, or than a ring has slots
beside its window. Out: the logits after the last token, and a session that has taken
all tokens. Such a call takes effect as a whole or not at all, as any other: what cannot
be restored by knowing the position is copied first, which is little for so many tokens.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from kvc.runtime.calls.chunks import Chunk, chunk_sizes, plan_chunks
from kvc.runtime.calls.entries import MethodEntry, too_long
from kvc.runtime.calls.inputs import Inputs, take_inputs
from kvc.runtime.calls.transactions import all_or_nothing
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.memory import StateMemory
from kvc.schema.frozen import frozen
from kvc.schema.types import TensorType, bounds, evaluate


@frozen
class Piece:
    """Some of a call's tokens: which method takes them, from where, how many."""

    entry: MethodEntry
    first: int
    count: int


def count_excess(entry: MethodEntry, inputs: Inputs, states: StateMemory) -> int:
    """Return how many tokens a call has if that is more than one may have, else 0.

    With a ring, a prefill may have more than its method takes too; with buckets, any
    number that is none of them.

    Raises:
        InputMismatch: the inputs do not have the declared shapes.
    """
    limit = entry.narrowest(states)
    if limit is None:
        return _count_outside(entry, inputs, states)
    advance = entry.method.advance
    assert advance is not None, "it is how much the calls of the limit add"
    if entry.row_lengths is not None:
        excess = _excess_of_rows(entry, inputs, states, limit.longest)
        return excess or _count_outside(entry, inputs, states)
    if isinstance(advance, int) and entry.method.role != "prefill":
        return advance if advance > limit.longest else 0
    if _takes_tokens(entry) and len(inputs.shapes[0]) == 2:
        count = inputs.shapes[0][1]
        many = count > _most(entry, limit.longest)
        return count if many else _count_outside(entry, inputs, states)
    count = evaluate(advance, entry.solve(inputs, states))
    return count if count > limit.longest else 0


def _count_outside(entry: MethodEntry, inputs: Inputs, states: StateMemory) -> int:
    """Return how many tokens a prefill has if no bucket has so many, else 0.

    Of rows, the most tokens that one has.
    """
    alone = entry.method.role == "prefill" and _takes_tokens(entry)
    if not alone or len(inputs.shapes[0]) != 2:
        return 0
    sizes, count = chunk_sizes(entry.method, entry.symbols), inputs.shapes[0][1]
    if not sizes.among or count in sizes.among:
        return 0
    if entry.row_lengths is None:
        return count
    return _excess_of_rows(entry, inputs, states, 0)


def _excess_of_rows(
    entry: MethodEntry, inputs: Inputs, states: StateMemory, longest: int
) -> int:
    """Return the most tokens of a row if that is more than one may have, else 0.

    Padding is left out. Impossible row lengths are refused later.
    """
    assert entry.row_lengths is not None
    seq = _given_tokens(entry, inputs, states)
    row_lengths = inputs.arrays[entry.row_lengths.leaf]
    if row_lengths.dtype == bool or row_lengths.shape != inputs.shapes[0][:1]:
        return 0
    count = seq if inputs.left_out else int(row_lengths.max(initial=0))
    is_prefill = entry.method.role == "prefill" and _takes_tokens(entry)
    long = is_prefill and seq > _most(entry, seq)
    fits = 0 < count <= seq and int(row_lengths.min(initial=0)) >= 0
    return count if fits and (count > longest or long) else 0


def _given_tokens(entry: MethodEntry, inputs: Inputs, states: StateMemory) -> int:
    """Return how many tokens a call brings to each row, padding too."""
    if _takes_tokens(entry) and len(inputs.shapes[0]) == 2:
        return inputs.shapes[0][1]
    assert entry.method.advance is not None
    return evaluate(entry.method.advance, entry.solve(inputs, states))


def plan_pieces(
    entry: MethodEntry, count: int, states: StateMemory, entries: Sequence[MethodEntry]
) -> list[Piece]:
    """Return the calls that a call is parted into; none where buckets make none of it.

    Args:
        entry: of the method that was called.
        count: of the call's tokens.
        states: of the session.
        entries: of all methods of the program.

    Raises:
        CallTooLong: the method has not the role "prefill", or takes more than tokens,
            or no methods with a role take so many together.
    """
    limit = entry.narrowest(states)
    longest = None if limit is None else limit.longest
    alike = {e.method.name: e for e in entries if _takes_alike(e, entry)}
    sizes = {
        name: chunk_sizes(other.method, entry.symbols, longest)
        for name, other in alike.items()
    }
    usable = [name for name, found in sizes.items() if found.least <= found.most]
    prefills = [n for n in usable if alike[n].method.role == "prefill"]
    last = [n for n in usable if alike[n].method.role == "decode"] + prefills
    plan: list[Chunk] = []
    if entry.method.role == "prefill" and last:
        plan = plan_chunks(count, [sizes[n] for n in prefills], sizes[last[0]])
    if sum(chunk.count for chunk in plan) != count:
        if limit is None:
            return []
        raise too_long(entry.method, count, limit)
    firsts = accumulate((chunk.count for chunk in plan), initial=0)
    return [
        Piece(alike[chunk.method], first, chunk.count)
        for chunk, first in zip(plan, firsts, strict=False)
    ]


def run_pieces(
    pieces: Sequence[Piece],
    inputs: Inputs,
    states: StateMemory,
    run: Callable[[MethodEntry, Inputs], list[object]],
) -> list[object]:
    """Run a call in pieces, and return the results of the last one.

    For shorter rows, those of the piece that has their last token.

    Raises:
        InputMismatch: it has another number of rows than the session.
        CacheOverflow: not all tokens fit; nothing has run.
        ExecutionError: a piece failed; the session is as it was before the first one.
    """
    starts = states.position()
    tokens = inputs.arrays[0]
    row_lengths = _row_lengths_of(pieces[0].entry, inputs)
    steps = (
        [tokens.shape[1]] * len(starts) if row_lengths is None else row_lengths.tolist()
    )
    taken = [_take_piece(piece, tokens, row_lengths) for piece in pieces]
    pieces[0].entry.solve(taken[0], states)
    states.check_room(0, starts, steps)
    results: list[object] = []
    with all_or_nothing([piece.entry for piece in pieces], states):
        for piece, given in zip(pieces, taken, strict=True):
            made = run(piece.entry, given)
            if row_lengths is not None and results:
                keep_rows(made, results, np.less_equal(row_lengths, piece.first))
            results = made
    return results


def keep_rows(made: Sequence[object], before: Sequence[object], rows: Array) -> None:
    """Put back the results of rows that have none in this piece."""
    for new, old in zip(made, before, strict=True):
        assert isinstance(new, np.ndarray)
        assert isinstance(old, np.ndarray)
        new[rows] = old[rows]


def _row_lengths_of(entry: MethodEntry, inputs: Inputs) -> Array | None:
    """Return the row lengths, None if all tokens are real."""
    if entry.row_lengths is None:
        return None
    row_lengths = inputs.arrays[entry.row_lengths.leaf]
    return (
        np.full_like(row_lengths, inputs.shapes[0][1])
        if inputs.left_out
        else row_lengths
    )


def _take_piece(piece: Piece, tokens: Array, row_lengths: Array | None) -> Inputs:
    """Return what a piece of a call takes."""
    end = piece.first + piece.count
    leaves = [tokens[:, piece.first : end]]
    if piece.entry.row_lengths is not None and row_lengths is not None:
        here = np.clip(row_lengths - piece.first, 0, piece.count)
        leaves.append(here.astype(piece.entry.row_lengths.type.dtype.numpy))
    return take_inputs(piece.entry.signature, leaves)


def _takes_tokens(entry: MethodEntry) -> bool:
    """Tell whether a method of some role takes tokens alone, and adds them all.

    To each cursor that it adds to, so that all of them can be cut alike.

    It may take row lengths after them, and then adds so many of each row.
    """
    inputs = 1 + (entry.row_lengths is not None)
    if entry.tokens is None or len(entry.signature.types) != inputs:
        return False
    if entry.row_lengths is not None and entry.row_lengths.leaf != 1:
        return False
    count = entry.signature.types[0].dims[1]
    return all(advance.tokens == count for advance in entry.method.advances)


def _takes_alike(entry: MethodEntry, other: MethodEntry) -> bool:
    """Tell whether two methods take tokens alone, of as many rows, and give alike."""
    if not (_takes_tokens(entry) and _takes_tokens(other)):
        return False
    if (entry.row_lengths is None) != (other.row_lengths is None):
        return False
    if _given_types(entry) != _given_types(other):
        return False
    return entry.signature.types[0].dims[0] == other.signature.types[0].dims[0]


def _given_types(entry: MethodEntry) -> list[TensorType]:
    """Return the types of a method's results."""
    graph = entry.method.graph
    return [graph.values[value].type for value in graph.outputs]


def _most(entry: MethodEntry, longest: int) -> int:
    """Return the most tokens that a method takes at a time."""
    kind = entry.signature.types[0]
    return min(longest, bounds(kind.dims[1], entry.symbols)[1])
