"""Caches and attention on arrays of MLX."""

from typing import Final

import mlx.core as mx
import numpy as np

from kvc.runtime.delegates.host_checks import check_length, check_slots
from kvc.schema.errors import CacheOverflow

_NOTHING: Final = mx.array(float("-inf"))


def update_cache(
    cache: mx.array,
    update: mx.array,
    start: mx.array | None,
    axis: int,
    mode: str,
    lengths: mx.array | None,
    keep: int,
) -> mx.array:
    """Return a cache [batch, heads, slots, width] with new rows in it.

    Raises:
        IndexOutOfRange, CacheOverflow, RowLengthOutOfRange: the rows do not fit.
    """
    batch, _, slots, _ = cache.shape
    count, ring = update.shape[2], mode == "circular"
    starts = [0] * batch if start is None else start.tolist()
    counts = [count] * batch if lengths is None else lengths.tolist()
    for row, (first, own) in enumerate(zip(starts, counts, strict=True)):
        check_length(row, own, count)
        if not ring:
            check_slots(row, first, own, slots)
        elif own > slots:
            raise CacheOverflow(row=row, start=first, count=own, capacity=slots)
    rows = update.astype(cache.dtype)
    if not ring and lengths is None and len(set(starts)) == 1:
        at = mx.array([starts[0]])
        return mx.slice_update(cache, rows, at, axes=(2,)) if count else cache
    place = np.arange(slots) - np.array(starts)[:, None]
    if ring:
        place %= slots
    written = (place >= 0) & (place < np.array(counts)[:, None])
    chosen = mx.array(np.where(written, place, 0)[:, None, :, None])
    found = mx.take_along_axis(rows, chosen, axis=2) if count else cache
    return mx.where(mx.array(written[:, None, :, None]), found, cache)


def attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    total: mx.array,
    scale: float | None,
    causal: bool,
    left: int | None,
    right: int | None,
    softcap: float | None,
    mask: mx.array | None,
    slopes: mx.array | None,
    sinks: None,
    layout: str,
    k_scale: None,
    v_scale: None,
    lengths: mx.array | None,
    keep: int,
) -> mx.array:
    """Return the attention of queries to a cache, as `kvc::attention` does."""
    batch, _, count, _ = q.shape
    slots = k.shape[2]
    end = total.reshape(-1, 1, 1)
    own = mx.array(count) if lengths is None else lengths.reshape(-1, 1, 1)
    numbers = mx.arange(count).reshape(1, count, 1)
    at = mx.arange(slots).reshape(1, 1, slots)
    if layout == "circular":
        last = end - 1
        at = last - (last - at) % slots
    queries = end - own + numbers
    seen = (at >= 0) & (at < end)
    ahead = 0 if causal else right
    if ahead is not None:
        seen = seen & (at <= queries + ahead)
    if left is not None:
        seen = seen & (at >= queries - left)
    if lengths is not None:
        seen = seen & (numbers < own)
    seen = mx.broadcast_to(seen, (batch, count, slots))[:, None]
    added = None
    if mask is not None and mask.dtype == mx.bool_:
        seen = seen & mask
    elif mask is not None:
        added = mask.astype(mx.float32)
    if slopes is not None:
        far = (at - queries).astype(mx.float32)[:, None]
        bias = slopes.reshape(1, -1, 1, 1) * far
        added = bias if added is None else added + bias
    return mixed(q, k, v, seen, added, scale, softcap)


def attend_product(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | None,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> mx.array:
    """Return the attention of queries to the given keys and values, without a cache."""
    seen, added = None, None
    if causal:
        seen = mx.tri(q.shape[-2], k.shape[-2], dtype=mx.float32) > 0
    elif mask is not None and mask.dtype == mx.bool_:
        seen = mask
    elif mask is not None:
        added = mask
    return mixed(q, k, v, seen, added, scale, None)


def mixed(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    seen: mx.array | None,
    added: mx.array | None,
    scale: float | None,
    softcap: float | None,
) -> mx.array:
    """Return softmax(queries keys) values; zeros if no key is visible.

    Args:
        q: [..., heads, count, width].
        k: [..., kv_heads, slots, width].
        v: [..., kv_heads, slots, width].
        seen: bool, which keys each query sees, broadcasts to [..., heads, count,
            slots]; None if all keys are visible.
        added: numbers to add to scores, broadcast as `seen`; None for no addition.
        scale: factor on the scores; None for one over the root of the width.
        softcap: bound of the scores, or None.
    """
    keys, values = k.astype(q.dtype), v.astype(q.dtype)
    group = q.shape[-3] // keys.shape[-3] if q.ndim > 2 else 1
    if group > 1:
        keys, values = (mx.repeat(each, group, axis=-3) for each in (keys, values))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q * factor) @ keys.swapaxes(-1, -2)
    if softcap is not None:
        scores = mx.tanh(scores / softcap) * softcap
    if added is not None:
        scores = scores + added
    if seen is not None:
        scores = mx.where(seen, scores, _NOTHING)
    largest = mx.max(scores, axis=-1, keepdims=True)
    blind = largest == _NOTHING
    raised = mx.exp(scores - mx.where(blind, 0.0, largest))
    total = mx.sum(raised, axis=-1, keepdims=True)
    weights = raised / mx.where(blind, 1.0, total)
    return weights @ values
