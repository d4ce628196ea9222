"""Attention of one row: blocks of queries and the keys visible to them.

In: one row's queries, the row's cache, the keys that its queries see, and the scoring.
Out: the row's result, written into a given tensor. If scores are plain products,
torch's fused attention computes a block. All other blocks are computed by two matrix
products with a softmax between them, in float32, or in float64 if the queries are
float64. Keys and values are never expanded to all heads, and the size of masks and
scores is bounded for any row length.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvc.schema.errors import CacheOverflow, IndexOutOfRange, RowLengthOutOfRange
from kvc.schema.torch_ops.int8_rows import (
    Cache,
    Int8Rows,
    key_products,
    mixed_values,
)
from kvc.schema.torch_ops.visibility import Block, RowVisibility, Scoring

# Elements of the largest piece of keys or values that is cast to float32 at once.
PIECE_CELLS = 2**20


def attend_by_products(
    out: Tensor,
    q: Tensor,
    keys: Sequence[Cache],
    values: Sequence[Cache],
    block: Block,
    scoring: Scoring,
) -> None:
    """Compute the attention of a block by matrix products, and write it into `out`.

    Args:
        out: [1, heads, count, value_dim], the results of the block's queries; dtype as
            the result of `attention`.
        q: [1, heads, count, head_dim], the block's queries.
        keys: pieces [1, kv_heads, .., head_dim], in the order of their positions.
        values: pieces [1, kv_heads, .., value_dim], of the same positions as `keys`.
        block: the keys that each query sees.
        scoring: how products become scores.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = _multiply(q, keys, scoring.scale, exact)
    scoring.adjust_(scores, block)
    weights, total = _exponentiate_(scores, scoring.sinks)
    out.copy_((_mix(weights, values, exact) / total)[None])


def _multiply(
    q: Tensor, keys: Sequence[Cache], scale: float | None, exact: torch.dtype
) -> Tensor:
    """Return the scaled products [heads, count, keys] of queries and keys.

    Query heads that share a key head become rows of one matrix.
    """
    _, heads, count, width = q.shape
    factor = 1 / math.sqrt(width) if scale is None else scale
    rows = (q.to(exact) * factor).reshape(keys[0].shape[1], -1, width)
    products = [
        key_products(rows, piece) if isinstance(piece, Int8Rows) else rows @ piece.mT
        for piece in _pieces(keys, exact)
    ]
    scores = products[0] if len(products) == 1 else torch.cat(products, 2)
    return scores.view(heads, count, -1)


def _exponentiate_(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the softmax of scores in place, without its final division.

    Return the weights, and for each query the divisor of its weights. If all scores of
    a query are -inf, the weights are 0 and the divisor is not 0.
    """
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sinks = sinks.to(scores.dtype)[:, None, None]
        top = torch.maximum(top, sinks)
    top.masked_fill_(top == -torch.inf, 0)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total += (sinks - top).exp_()
    return weights, total.masked_fill_(total == 0, 1)


def _mix(weights: Tensor, values: Sequence[Cache], exact: torch.dtype) -> Tensor:
    """Return, for each query, the sum of the values weighted by its attention weights.

    The result is [heads, count, value_dim].
    """
    heads, count, keys = weights.shape
    rows = weights.view(values[0].shape[1], -1, keys)
    mixed, first = None, 0
    for piece in _pieces(values, exact):
        part = _sums(rows.narrow(2, first, piece.shape[-2]), piece)
        mixed = part if mixed is None else mixed.add_(part)
        first += piece.shape[-2]
    assert mixed is not None
    return mixed.view(heads, count, -1)


def _sums(weights: Tensor, piece: Cache) -> Tensor:
    """Return the sums of a piece's values weighted by weights [kv_heads, .., keys]."""
    if isinstance(piece, Int8Rows):
        return mixed_values(weights, piece)
    return weights @ piece


def _pieces(parts: Sequence[Cache], exact: torch.dtype) -> Iterator[Cache]:
    """Yield the parts of a row's cache as [kv_heads, .., width] of dtype `exact`.

    A part of another dtype is cast in pieces of limited size. Parts of an int8 cache
    are not cast; `Int8Rows` multiplies them.
    """
    for part in parts:
        if isinstance(part, Int8Rows):
            yield part
            continue
        if part.dtype == exact:
            yield part[0]
            continue
        _, kv_heads, keys, width = part.shape
        step = max(1, PIECE_CELLS // (kv_heads * width))
        for first in range(0, keys, step):
            yield part[0].narrow(1, first, min(step, keys - first)).to(exact)


# Elements of the largest mask (1 byte each, and again when torch casts it) and of the
# scores of a block (4 bytes each, 8 for float64).
MASK_CELLS = 2**22
SCORE_CELLS = 2**20
# Elements of the largest part of a ring that is copied for a single query.
JOINED_CELLS = 2**19
# Elements of the largest int8 or float16 cache that is widened for a block of queries:
# 8 MiB of float32. For a single query no cache is widened.
WIDENED_CELLS = 2**21


def attend_last(
    out: Tensor, q: Tensor, k: Cache, v: Cache, valid: int, scale: float | None
) -> None:
    """Attend from a single query to the valid part of a linear cache, as in decode.

    The result is that of `attend_row`; if the cache has floats, it is equal bit for
    bit.
    """
    if valid == 0:
        out.zero_()
        return
    keys, values = k.narrow(2, 0, valid), v.narrow(2, 0, valid)
    if isinstance(keys, Int8Rows) and isinstance(values, Int8Rows):
        exact = torch.promote_types(q.dtype, torch.float32)
        factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
        rows = (q.to(exact) * factor).reshape(keys.shape[1], -1, q.shape[3])
        weights = torch.softmax(key_products(rows, keys), -1)
        out.copy_(mixed_values(weights, values).view(out.shape))
    elif isinstance(keys, Tensor) and isinstance(values, Tensor):
        attend_one(out, q, keys, values, scale)


def attend_row(
    out: Tensor, q: Tensor, k: Cache, v: Cache, sight: RowVisibility, scoring: Scoring
) -> None:
    """Compute the attention of one row, and write it into `out`.

    Args:
        out: [1, heads, seq, value_dim].
        q: [1, heads, seq, head_dim].
        k: [1, kv_heads, slots, head_dim].
        v: [1, kv_heads, slots, value_dim].
        sight: the keys that each query sees.
        scoring: how products become scores.
    """
    seeing = sight.seeing()
    if len(seeing) < sight.seq:
        out[:, :, : seeing.start].zero_()
        out[:, :, seeing.stop :].zero_()
    if not seeing:
        return
    fused = _can_fuse(q, k, v, sight, scoring)
    for block in _cut(q.shape[1], sight, scoring, fused):
        places = block.places(k.shape[2])
        keys = tuple([k.narrow(2, *place) for place in places])
        values = tuple([v.narrow(2, *place) for place in places])
        joined = fused and not _is_dear_to_join(keys, block)
        attend = _attend_fused if joined else attend_by_products
        if block.count == sight.seq:
            attend(out, q, keys, values, block, scoring)
            return
        part = out.narrow(2, block.first, block.count)
        queries = q.narrow(2, block.first, block.count)
        attend(part, queries, keys, values, block, scoring)


def _can_fuse(
    q: Tensor, k: Cache, v: Cache, sight: RowVisibility, scoring: Scoring
) -> bool:
    """Tell whether torch's fused attention can compute a row without large copies.

    torch's kernel that loops over blocks of keys needs values as wide as keys, and
    elements of a row without gaps between them; for a single query without a mask, any
    layout works. The kernel does not read int8, and reads float16 only with float16
    queries. If many queries share the work, a small cache of another dtype is cast for
    the kernel.
    """
    if not scoring.is_plain:
        return False
    single = len(sight.seeing()) == 1 and scoring.mask is None
    if isinstance(k, Int8Rows) or isinstance(v, Int8Rows) or k.dtype != q.dtype:
        cells = sight.keys * k.shape[1] * k.shape[3]
        return not single and k.shape[3] == v.shape[3] and cells <= WIDENED_CELLS
    if single:
        return True
    return q.shape[3] == v.shape[3] and q.stride(3) == k.stride(3) == v.stride(3) == 1


def _cut(
    heads: int, sight: RowVisibility, scoring: Scoring, fused: bool
) -> Iterable[Block]:
    """Divide a row's queries into blocks whose masks and scores have a bounded size."""
    if not fused:
        return sight.blocks(SCORE_CELLS // heads)
    if scoring.mask is not None:
        return sight.blocks(MASK_CELLS // scoring.mask.shape[1])
    seeing = sight.seeing()
    whole = sight.block(seeing.start, len(seeing))
    if whole.sees_all or whole.is_square:
        return (whole,)
    return sight.blocks(MASK_CELLS)


def _is_dear_to_join(keys: tuple[Cache, ...], block: Block) -> bool:
    """Tell whether merging the pieces of a ring costs more than unfused attention.

    For a single query, the copy that merges the pieces is as much work as attention.
    Measured in November 2026: unfused attention was faster from about 2**19 elements
    on, and six times faster at 2**21.
    """
    return (
        len(keys) > 1
        and block.count == 1
        and sum(piece.numel() for piece in keys) > JOINED_CELLS
    )


def _attend_fused(
    out: Tensor,
    q: Tensor,
    keys: tuple[Cache, ...],
    values: tuple[Cache, ...],
    block: Block,
    scoring: Scoring,
) -> None:
    """Compute the attention of a block by torch's fused attention.

    The arguments are those of `attend_by_products`.
    """
    k, v, scale = _join(keys, q.dtype), _join(values, q.dtype), scoring.scale
    q = q.to(k.dtype)
    if block.count == 1 and scoring.mask is None:
        attend_one(out, q, k, v, scale)
        return
    square = block.is_square and scoring.mask is None
    mask = None if square else scoring.seen(block)
    out.copy_(
        scaled_dot_product_attention(
            q, k, v, mask, is_causal=square, scale=scale, enable_gqa=True
        )
    )


def attend_one(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | None
) -> None:
    """Attend from a single query that sees every key.

    Query heads that share a key head become rows of one matrix.
    """
    groups = (1, k.shape[1], q.shape[1] // k.shape[1], -1)
    attended = scaled_dot_product_attention(q.reshape(groups), k, v, scale=scale)
    out.view(groups).copy_(attended)


def _join(pieces: tuple[Cache, ...], dtype: torch.dtype) -> Tensor:
    """Concatenate pieces of keys or values into one tensor of dtype `dtype`.

    int8 pieces are dequantized to float32, or to float64 if `dtype` is float64.
    """
    exact = torch.promote_types(dtype, torch.float32)
    parts = [
        piece.widened(exact) if isinstance(piece, Int8Rows) else piece.to(dtype)
        for piece in pieces
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


# The operand `row_lengths` of cache operators: the number of real tokens of each row.


def check_row_lengths(row_lengths: Tensor | None, rows: int, op: str) -> None:
    """Check dtype and shape of `row_lengths`, not the values; sizes can be symbolic.

    Raises:
        ValueError: `row_lengths` are not int64 [batch].
    """
    if row_lengths is None:
        return
    torch._check_value(
        row_lengths.dtype == torch.int64 and row_lengths.dim() == 1,
        lambda: (
            f"{op}: row_lengths are {row_lengths.dtype} of {row_lengths.dim()} "
            "dimensions, "
            f"not int64 of one"
        ),
    )  # type: ignore[no-untyped-call]
    given = row_lengths.shape[0]
    torch._check_value(
        given == rows, lambda: f"{op}: {given} row_lengths for {rows} rows"
    )  # type: ignore[no-untyped-call]


def read_row_lengths(row_lengths: Tensor | None, rows: int, most: int) -> list[int]:
    """Return the row lengths as ints; each is `most` if `row_lengths` is None.

    Raises:
        RowLengthOutOfRange: a row length is negative, or more than `most`.
    """
    if row_lengths is None:
        return [most] * rows
    found: list[int] = row_lengths.tolist()
    for row, count in enumerate(found):
        if not 0 <= count <= most:
            raise RowLengthOutOfRange(row=row, length=count, most=most)
    return found


def check_slots(
    starts: list[int], row_lengths: list[int], slots: int, least: int = 0
) -> None:
    """Check that each batch row's write lies between slot `least` and the last slot.

    Raises:
        IndexOutOfRange: a write would begin before slot `least`.
        CacheOverflow: a write would end past the last slot.
    """
    for row, (start, count) in enumerate(zip(starts, row_lengths, strict=True)):
        if start < least:
            raise IndexOutOfRange(place="", index=start, size=slots)
        if start + count > slots:
            raise CacheOverflow(row=row, start=start, count=count, capacity=slots)
