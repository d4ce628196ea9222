"""Attention over caches and without a cache, as operations of a function.

In: an `OpContext`, and the arguments of `kvc::attention`, or of torch's attention. Out:
the name of the result, [batch, heads, queries, width]. Cache slots that have not been
written are read as zeros, unless the device has the trait `DeviceTraits.zeroed`.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.builder import (
    BOOL,
    FLOAT,
    HALF,
    INT,
    LEAST,
    Builder,
)
from kvc.runtime.delegates.lowering.caches import (
    Ring,
    Visibility,
    column,
    over_slots,
    positions,
    visible,
)
from kvc.runtime.delegates.lowering.context import Made, OpContext
from kvc.schema.backends.primitives import Primitive

_P = Primitive
# Bounds of the numbers that a mask adds; visible scores stay far above hidden ones.
_LARGEST_BIAS: Final = {FLOAT: 1e38, HALF: 30000.0}


def attend(
    line: OpContext,
    q: object,
    k: object,
    v: object,
    total: object,
    scale: float | None,
    causal: bool,
    left: int | None,
    right: int | None,
    softcap: float | None,
    mask: object,
    slopes: object,
    sinks: None,
    layout: str,
    k_scale: None,
    v_scale: None,
    row_lengths: object,
    keep: int,
) -> Made:
    """Return the attention to a cache; `kvc::attention` documents the arguments."""
    build, wanted = line.build, line.traits.products
    end, lengths = line.get(total), line.optional(row_lengths)
    added, slope = line.optional(mask), line.optional(slopes)
    query = line.factor(q)
    keys, values = (line.read(each, wanted) for each in (k, v))
    ring = Ring(layout == "circular", build.shape(keys)[2], keep)
    at = positions(build, end, ring)
    is_there = build.with_number(_P.GREATER, at, -1)
    keys, values = (build.cast(each, build.dtype(query)) for each in (keys, values))
    if not line.traits.zeroed:
        values = build.where(
            over_slots(build, is_there, (-1, 1, ring.slots, 1)),
            values,
            build.number(0, build.dtype(values)),
        )
    scores = scored(build, query, keys, scale_of(build, scale, query), softcap)
    queries = build.shape(query)[2]
    count = build.number(queries, INT) if lengths is None else lengths
    first = column(build, build.binary(_P.SUB, end, count))
    own = build.binary(_P.ADD, first, build.places(queries))  # each query's position
    ahead = build.binary(
        _P.SUB,
        over_slots(build, at, (-1, 1, 1, ring.slots)),
        build.reshape(own, (build.shape(own)[0], 1, queries, 1)),
    )
    limits = Visibility(causal, left, right, keep, lengths)
    allowed = visible(build, ahead, at, limits)
    bias = None
    if slope is not None:
        slope = build.reshape(slope, (1, build.shape(slope)[0], 1, 1))
        bias = build.binary(_P.MUL, slope, build.cast(ahead, FLOAT))
    if added is not None:
        if build.dtype(added) != BOOL:
            added = build.cast(added, FLOAT)
        allowed, added = masked(build, allowed, added, ring.slots)
        if added is not None:
            bias = added if bias is None else build.binary(_P.ADD, bias, added)
    return _weighted_sum(build, scores, values, allowed, bias)


def attend_to_tokens(
    line: OpContext,
    operands: Sequence[str],
    mask: str | None,
    scale: float | None,
    *,
    causal: bool,
) -> str:
    """Return the result of `aten::scaled_dot_product_attention`, without a cache.

    Args:
        line: the instruction.
        operands: the queries [batch, heads, queries, width], and the keys and values
            [batch, groups, columns, width].
        mask: bool or float, of 4 axes at most, broadcast to the scores; or None.
        scale: the factor on scores; None for 1 / sqrt(width).
        causal: whether query number n sees only the columns up to number n.
    """
    build = line.build
    q, keys, values = build.alike(*operands)
    queries, columns = build.shape(q)[2], build.shape(keys)[2]
    allowed, bias = None, None
    if causal:
        own = build.reshape(build.places(queries), (1, 1, queries, 1))
        own = build.with_number(_P.ADD, own, 1)
        allowed = build.binary(_P.GREATER, own, build.places(columns))
    if mask is not None:
        shape = build.shape(mask)
        wide = (*(1,) * (4 - len(shape)), *shape)
        mask = build.reshape(mask, wide)
        mask = build.broadcast(mask, (*wide[:2], queries, columns))
        allowed, bias = masked(build, allowed, mask, columns)
    scores = scored(build, q, keys, scale_of(build, scale, q), None)
    return _weighted_sum(build, scores, values, allowed, bias)


def scale_of(build: Builder, scale: float | None, q: str) -> float:
    """Return the factor on scores: `scale`, or 1 / sqrt(width) of the queries."""
    return float(1 / np.sqrt(build.shape(q)[-1])) if scale is None else scale


def masked(
    build: Builder, allowed: str | None, mask: str, columns: int
) -> tuple[str, str | None]:
    """Return which columns are visible under a mask, and what the mask adds to scores.

    Args:
        build: collects the operations.
        allowed: bool, the visibility without the mask; None if all columns are
            visible.
        mask: bool or float [batch or 1, heads or 1, queries, positions].
        columns: the number of columns of the scores; columns that the mask lacks are
            hidden.

    Returns:
        The visibility, a bool tensor that broadcasts to the scores; and the addition to
        scores, a float tensor, or None for a bool mask.
    """
    is_bool = build.dtype(mask) == BOOL
    shape = build.shape(mask)
    mask = build.part(mask, 3, range(min(columns, shape[3])))
    added = None
    if not is_bool:
        # Compares with -inf indirectly, since JSON has no infinite constants.
        finite = build.with_number(_P.MAXIMUM, mask, LEAST[build.dtype(mask)])
        shown, added = build.binary(_P.EQUAL, finite, mask), finite
    else:
        shown = mask
    missing = columns - shape[3]
    if missing > 0:
        rest = (*shape[:3], missing)
        hidden = build.broadcast(build.number(False, BOOL), rest)
        shown = build.concat((shown, hidden), 3)
        if added is not None:
            nothing = build.broadcast(build.number(0, FLOAT), rest)
            added = build.concat((added, nothing), 3)
    left = shown if allowed is None else build.binary(_P.AND, allowed, shown)
    return left, added


def scored(
    build: Builder, q: str, keys: str, scale: float, softcap: float | None
) -> str:
    """Return scores [batch, heads, queries, columns].

    Args:
        build: collects the operations.
        q: the queries, [batch, heads, queries, width].
        keys: [batch, groups, columns, width]; the heads of a group share keys.
        scale: the factor on the products of queries and keys.
        softcap: the bound of scores, as in `kvc::attention`; None for no bound.
    """
    batch, heads, queries, width = build.shape(q)
    groups, columns = build.shape(keys)[1:3]
    x = build.with_number(_P.MUL, q, scale)
    x = build.reshape(x, (batch, groups, heads // groups * queries, width))
    x = build.product(x, build.turned(keys))
    x = build.reshape(x, (batch, heads, queries, columns))
    if softcap is None:
        return x
    capped = build.unary(_P.TANH, build.with_number(_P.DIVIDE, x, softcap))
    return build.with_number(_P.MUL, capped, softcap)


def _weighted_sum(
    build: Builder,
    scores: str,
    values: str,
    allowed: str | None,
    bias: str | None,
) -> str:
    """Mix values by the softmax of scores; a query without visible keys gets zeros.

    Args:
        build: collects the operations.
        scores: [batch, heads, queries, columns].
        values: [batch, groups, columns, width].
        allowed: the visibility, a bool tensor that broadcasts to the scores; None if
            all columns are visible.
        bias: an addition to scores, a float tensor that broadcasts to the scores; or
            None.
    """
    dtype = build.dtype(scores)
    if bias is not None:
        bias = build.with_number(_P.MAXIMUM, bias, -_LARGEST_BIAS[dtype])
        bias = build.with_number(_P.MINIMUM, bias, _LARGEST_BIAS[dtype])
        scores = build.binary(_P.ADD, scores, bias)
    if allowed is not None:
        scores = build.where(allowed, scores, build.number(LEAST[dtype], dtype))
    weights = build.softmax(scores, 3)
    if allowed is not None:
        weights = build.where(allowed, weights, build.number(0, dtype))
    return mixed(build, weights, values)


def mixed(build: Builder, weights: str, values: str) -> str:
    """Return the sums of values by weights, [batch, heads, queries, width].

    Args:
        build: collects the operations.
        weights: [batch, heads, queries, columns].
        values: [batch, groups, columns, width]; the heads of a group share values.
    """
    batch, heads, queries, columns = build.shape(weights)
    groups, _, width = build.shape(values)[1:]
    rows = heads // groups * queries
    x = build.reshape(weights, (batch, groups, rows, columns))
    x = build.product(x, values)
    return build.reshape(x, (batch, heads, queries, width))
