"""Attention of one block as two matrix products with a softmax between them.

In: queries, pieces of the keys and values they see, how scores are computed. Out: the
block's result, written into a given tensor. Everything between is float32, or float64
for float64.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvc.schema.torch_ops.int8_cache import Cache, Int8Rows
from kvc.schema.torch_ops.int8_products import key_products, mixed_values
from kvc.schema.torch_ops.scoring import Scoring
from kvc.schema.torch_ops.visibility import Block

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
    """Write the attention of a block into `out` [1, heads, count, value_dim].

    Args:
        out: as `attention`'s result, the block's queries only.
        q: [1, heads, count, head_dim].
        keys: pieces [1, kv_heads, .., head_dim], in the order of their positions.
        values: pieces [1, kv_heads, .., value_dim], of the same sizes.
        block: which of the keys each query sees.
        scoring: how scores are made.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = _multiply(q, keys, scoring.scale, exact)
    scoring.adjust_(scores, block)
    weights, total = _exponentiate_(scores, scoring.sinks)
    mixed = _mix(weights, values, exact)
    out.copy_((mixed / total)[None])


def _multiply(
    q: Tensor, keys: Sequence[Cache], scale: float | None, exact: torch.dtype
) -> Tensor:
    """Return the scaled products [heads, count, keys]: a group's heads are rows."""
    _, heads, count, width = q.shape
    factor = 1 / math.sqrt(width) if scale is None else scale
    rows = (q.to(exact) * factor).reshape(keys[0].shape[1], -1, width)
    products = [_products(rows, piece) for piece in _pieces(keys, exact)]
    scores = products[0] if len(products) == 1 else torch.cat(products, 2)
    return scores.view(heads, count, -1)


def _exponentiate_(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the softmax of scores, in place, as weights and what to divide them by.

    Where all scores are -inf the weights are zeros and the divisor is not.
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
    """Return the weighted sums [heads, count, value_dim] of the values."""
    heads, count, keys = weights.shape
    rows = weights.view(values[0].shape[1], -1, keys)
    mixed, first = None, 0
    for piece in _pieces(values, exact):
        part = _sums(rows.narrow(2, first, piece.shape[-2]), piece)
        mixed = part if mixed is None else mixed.add_(part)
        first += piece.shape[-2]
    assert mixed is not None
    return mixed.view(heads, count, -1)


def _products(rows: Tensor, piece: Cache) -> Tensor:
    """Return the products of rows [kv_heads, .., width] and keys."""
    return key_products(rows, piece) if isinstance(piece, Int8Rows) else rows @ piece.mT


def _sums(weights: Tensor, piece: Cache) -> Tensor:
    """Return the sums of values by weights [kv_heads, .., keys]."""
    if isinstance(piece, Int8Rows):
        return mixed_values(weights, piece)
    return weights @ piece


def _pieces(parts: Sequence[Cache], exact: torch.dtype) -> Iterator[Cache]:
    """Yield parts of a row's cache as [kv_heads, .., width], cast a piece at a time.

    Parts of an int8 cache stay as they are: their products go in pieces of their own.
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
