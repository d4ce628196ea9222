"""Split calls that are longer than the ring buffers of a session allow into pieces.

In: a call of a method of the role "prefill" with more tokens than the method takes, or
more than a ring buffer has slots outside its window. Out: the logits after the last
token, and a session that holds all tokens. A split call takes effect completely or not
at all: state bytes that resetting the position cannot restore are copied before the
first piece. The copy takes little time compared with the run.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from kvc.runtime.calls.chunks import Chunk, chunk_sizes, plan_chunks
from kvc.runtime.calls.entries import MethodEntry
from kvc.runtime.calls.entry_checks import too_long
from kvc.runtime.calls.inputs import Inputs, take_inputs
from kvc.runtime.calls.transactions import all_or_nothing
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.row_range import RowRange
from kvc.runtime.states.session_states import StateMemory
from kvc.schema.frozen import frozen
from kvc.schema.types import TensorType, bounds, evaluate


@frozen
class Piece:
    """A run of a call's tokens: the method for them, the first token, and the count."""

    entry: MethodEntry
    first: int
    count: int


def count_excess(entry: MethodEntry, inputs: Inputs, states: StateMemory) -> int:
    """Return a call's token count if the call must be split, else 0.

    A call is split if it has more tokens than a ring buffer allows. In a session with
    ring buffers, a prefill is also split if it exceeds the limit of its own method;
    with buckets, if its token count is not a bucket size.

    Raises:
        InputMismatch: the inputs do not have the declared shapes.
    """
    limit = entry.narrowest(states)
    if limit is None:
        return _count_outside(entry, inputs, states)
    advance = entry.method.advance
    assert advance is not None, "the limiting cursor advances as the position does"
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
    """Return a prefill's token count if it is no bucket size, else 0.

    For a batch with row lengths, the token count is the greatest row length.
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
    """Return the greatest row length if it exceeds the limit of one call, else 0.

    Padding does not count. Impossible row lengths are refused later.
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
    """Return the width of a call: the tokens of a row, including padding."""
    if _takes_tokens(entry) and len(inputs.shapes[0]) == 2:
        return inputs.shapes[0][1]
    assert entry.method.advance is not None
    return evaluate(entry.method.advance, entry.solve(inputs, states))


def plan_pieces(
    entry: MethodEntry, count: int, states: StateMemory, entries: Sequence[MethodEntry]
) -> list[Piece]:
    """Return the pieces that a call is split into; none if no bucket sizes add up.

    Args:
        entry: the entry of the called method.
        count: the number of the call's tokens.
        states: the states of the session.
        entries: the entries of all methods of the program.

    Raises:
        CallTooLong: the method has not the role "prefill", or has inputs besides
            tokens, or no methods with a role take that many tokens together.
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
    """Run a call in pieces, and return the results of the last piece.

    For a row that ends in an earlier piece, the results come from that piece.

    Raises:
        InputMismatch: the number of rows differs from that of the session.
        CacheOverflow: the session has too few free slots for all tokens; nothing has
            run.
        ExecutionError: a piece failed; the session is as it was before the call.
    """
    starts: Sequence[int] = states.position()
    rows = inputs.rows
    if rows is not None:
        starts = rows.of(starts)
    tokens = inputs.arrays[0]
    row_lengths = _row_lengths_of(pieces[0].entry, inputs)
    steps = (
        [tokens.shape[1]] * len(starts) if row_lengths is None else row_lengths.tolist()
    )
    taken = [_take_piece(piece, tokens, row_lengths, rows) for piece in pieces]
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
    """Give rows without tokens in a piece the results of the piece before."""
    for new, old in zip(made, before, strict=True):
        assert isinstance(new, np.ndarray)
        assert isinstance(old, np.ndarray)
        new[rows] = old[rows]


def _row_lengths_of(entry: MethodEntry, inputs: Inputs) -> Array | None:
    """Return the row lengths of a call, None if all tokens are real."""
    if entry.row_lengths is None:
        return None
    row_lengths = inputs.arrays[entry.row_lengths.leaf]
    return (
        np.full_like(row_lengths, inputs.shapes[0][1])
        if inputs.left_out
        else row_lengths
    )


def _take_piece(
    piece: Piece, tokens: Array, row_lengths: Array | None, rows: RowRange | None
) -> Inputs:
    end = piece.first + piece.count
    leaves = [tokens[:, piece.first : end]]
    if piece.entry.row_lengths is not None and row_lengths is not None:
        here = np.clip(row_lengths - piece.first, 0, piece.count)
        leaves.append(here.astype(piece.entry.row_lengths.type.dtype.numpy))
    return take_inputs(piece.entry.signature, leaves, rows=rows)


def _takes_tokens(entry: MethodEntry) -> bool:
    """Tell whether a method's only inputs are tokens and perhaps row lengths.

    Each cursor that the method advances must advance by the token count, so that a
    split of the tokens splits every cursor's advance in the same way.
    """
    inputs = 1 + (entry.row_lengths is not None)
    if entry.tokens is None or len(entry.signature.types) != inputs:
        return False
    if entry.row_lengths is not None and entry.row_lengths.leaf != 1:
        return False
    count = entry.signature.types[0].dims[1]
    return all(advance.tokens == count for advance in entry.method.advances)


def _takes_alike(entry: MethodEntry, other: MethodEntry) -> bool:
    """Tell whether two methods take the same inputs, and return the same types."""
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
    """Return the greatest number of tokens that a method takes in one call."""
    return min(longest, bounds(entry.signature.types[0].dims[1], entry.symbols)[1])
