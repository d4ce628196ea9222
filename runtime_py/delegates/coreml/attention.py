"""Caches and attention as calls of MIL.

If the batch has one row and all new rows are written, a slice of the cache is replaced.
Otherwise the whole cache is computed: each slot gets its new row, or stays unchanged.
Attention is a product, a softmax and a product; -30000 is added to the scores of hidden
keys. All layers share the visibility masks.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreml.mil import Emitter, NotTaken, Number, Step, Tensor

_HIDDEN: Final = 30000.0  # subtracted from a float16 score: its exponential is then 0


def after(step: Step, start: object, count: object) -> Tensor:
    """Return `start` + `count`, int32: the positions that lie `count` after `start`."""
    assert isinstance(count, int)
    return step.emitter.pair("add", step.read(start, "int32"), Number(count, "int32"))


def update_cache(
    step: Step,
    cache: object,
    update: object,
    start: object,
    _: object,
    mode: object,
    lengths: object,
    __: object,
) -> Tensor:
    """Return a cache [batch, heads, slots, width] with new rows in it."""
    emitter, dtype = step.emitter, step.dtype
    held, rows = step.read(cache, dtype), step.read(update, dtype)
    first = None if start is None else step.read(start, "int32")
    batch, _, slots, _ = held.shape
    count = rows.shape[2]
    whole = lengths is None and mode == "linear"
    if whole and count > slots:
        raise NotTaken(f"{count} rows are written to a cache of {slots}")
    if whole and (batch == 1 or first is None):
        return _slice_written(emitter, held, rows, first)
    at = _integers(emitter, range(slots), (1, slots, 1))
    if first is not None:
        at = emitter.pair("sub", at, emitter.reshape(first, (batch, 1, 1)))
    if mode == "circular":
        at = emitter.pair("mod", at, Number(slots, "int32"))
    at = emitter.reshape(at, (at.shape[0], 1, slots, 1))
    end: Tensor | Number = Number(count, "int32")
    if lengths is not None:
        end = emitter.reshape(step.read(lengths, "int32"), (batch, 1, 1, 1))
    is_written = emitter.pair(
        "logical_and",
        emitter.pair("greater_equal", at, Number(0, "int32"), "bool"),
        emitter.pair("less", at, end, "bool"),
    )
    return emitter.call(
        "select",
        dtype,
        held.shape,
        cond=emitter.spread(is_written, held.shape),
        a=_rows_at(emitter, rows, at, held.shape),
        b=held,
    )


def _rows_at(
    emitter: Emitter, rows: Tensor, at: Tensor, shape: Sequence[int]
) -> Tensor:
    """Return the new row of each slot; a slot that stays unchanged gets any row.

    Args:
        emitter: collects the calls.
        rows: the new rows, [batch, heads, count, width].
        at: int32 [1 or batch, 1, slots, 1], the index in `rows` for each slot.
        shape: the shape of the result, [batch, heads, slots, width].
    """
    count = rows.shape[2]
    if count == 1:
        return emitter.spread(rows, shape)
    found = emitter.pair("maximum", at, Number(0, "int32"))
    found = emitter.pair("minimum", found, Number(count - 1, "int32"))
    indices = emitter.spread(found, shape)
    return emitter.call(
        "gather_along_axis", rows.dtype, shape, x=rows, indices=indices, axis=2
    )


def _slice_written(
    emitter: Emitter, held: Tensor, rows: Tensor, first: Tensor | None
) -> Tensor:
    batch, heads, _, width = held.shape
    count = rows.shape[2]
    if first is None:
        begin: Tensor | tuple[int, ...] = (0, 0, 0, 0)
        end: Tensor | tuple[int, ...] = (batch, heads, count, width)
    else:
        before = _integers(emitter, (0, 0), (2,))
        begin = emitter.concat([before, first, _integers(emitter, (0,), (1,))], 0)
        last = emitter.pair("add", first, Number(count, "int32"))
        sizes = _integers(emitter, (batch, heads), (2,))
        end = emitter.concat([sizes, last, _integers(emitter, (width,), (1,))], 0)
    return emitter.call(
        "slice_update",
        held.dtype,
        held.shape,
        x=held,
        update=rows,
        begin=begin,
        end=end,
    )


def attend(step: Step, *arguments: object) -> Tensor:
    """Return the attention of queries to a cache, as `kvc::attention` does."""
    q, k, v, total, scale, causal, left, right, softcap = arguments[:9]
    mask, slopes, layout, lengths = (arguments[n] for n in (9, 10, 12, 15))
    emitter = step.emitter
    queries, keys, values = (step.read(each, step.dtype) for each in (q, k, v))
    batch, _, count, _ = queries.shape
    slots = keys.shape[2]
    end = step.read(total, "int32")
    end = emitter.reshape(end, (end.shape[0], 1, 1))
    known = None
    if lengths is not None:
        known = emitter.reshape(step.read(lengths, "int32"), (batch, 1, 1))
    at = _positions(emitter, end, slots, layout == "circular")
    numbers = _integers(emitter, range(count), (1, count, 1))
    begin = emitter.pair("sub", end, Number(count, "int32") if known is None else known)
    own = emitter.pair("add", begin, numbers)
    ahead = 0 if causal else right
    sees = [emitter.pair("greater_equal", at, Number(0, "int32"), "bool")]
    if layout != "circular":
        sees = [emitter.pair("less", at, end, "bool")]
    if isinstance(ahead, int):
        most = emitter.pair("add", own, Number(ahead, "int32"))
        sees.append(emitter.pair("less_equal", at, most, "bool"))
    if isinstance(left, int):
        least = emitter.pair("sub", own, Number(left, "int32"))
        sees.append(emitter.pair("greater_equal", at, least, "bool"))
    if known is not None:
        sees.append(emitter.pair("less", numbers, known, "bool"))
    both: Tensor = sees[0]
    for each in sees[1:]:
        both = emitter.pair("logical_and", both, each)
    wide = emitter.spread(both, (batch, count, slots))
    seen = emitter.reshape(wide, (batch, 1, count, slots))
    added: list[Tensor] = []
    if mask is not None:
        given = _mask(step, mask)
        if given.dtype == "bool":
            seen = emitter.pair("logical_and", seen, given)
        else:
            added.append(given)
    if slopes is not None:
        # Slots after the end are hidden; their distance must not raise the score.
        near = emitter.pair("minimum", at, emitter.pair("sub", end, Number(1, "int32")))
        added.append(_slope(emitter, step.read(slopes, "fp32"), near, own))
    operands = queries, keys, values
    return _mixed(step, operands, seen, added, _factor(scale, queries), softcap)


def _mask(step: Step, mask: object) -> Tensor:
    """Return a mask with four axes: bool, or float16 numbers to add to scores."""
    emitter, dtype = step.emitter, step.common((mask,))
    given = step.read(mask, "bool" if dtype == "bool" else "fp32")
    given = emitter.reshape(given, (*(1,) * (4 - len(given.shape)), *given.shape))
    return given if dtype == "bool" else _within(step, given)


def _within(step: Step, x: Tensor) -> Tensor:
    """Clip numbers that are added to scores, so that float16 can hold them."""
    emitter = step.emitter
    least = emitter.pair("maximum", x, Number(-_HIDDEN, x.dtype))
    return emitter.cast(
        emitter.pair("minimum", least, Number(_HIDDEN, x.dtype)), step.dtype
    )


def _slope(emitter: Emitter, slopes: Tensor, at: Tensor, own: Tensor) -> Tensor:
    """Return each head's slope times (slot's position minus query's position).

    Args:
        emitter: collects the calls.
        slopes: float32 [heads].
        at: the position of each slot, [1 or batch, 1, slots].
        own: the position of each query, [1 or batch, count, 1].

    Returns:
        float16 [1 or batch, heads, count, slots].
    """
    far = emitter.pair("sub", at, own)
    one_head = emitter.reshape(far, (far.shape[0], 1, *far.shape[1:]))
    each = emitter.reshape(slopes, (1, slopes.shape[0], 1, 1))
    made = emitter.pair("mul", emitter.cast(one_head, "fp32"), each)
    made = emitter.pair("maximum", made, Number(-_HIDDEN, "fp32"))
    return emitter.cast(made, "fp16")


def _positions(emitter: Emitter, end: Tensor, slots: int, ring: bool) -> Tensor:
    """Return the position whose row is in each slot, [1 or batch, 1, slots].

    Args:
        emitter: collects the calls.
        end: the number of positions written so far.
        slots: the number of slots.
        ring: whether the cache reuses its slots.
    """
    at = _integers(emitter, range(slots), (1, 1, slots))
    if not ring:
        return at
    last = emitter.pair("sub", end, Number(1, "int32"))
    behind = emitter.pair("mod", emitter.pair("sub", last, at), Number(slots, "int32"))
    return emitter.pair("sub", last, behind)


def attend_product(
    step: Step,
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: object,
    scale: object,
    _: object,
) -> Tensor:
    """Return the attention of queries to the given keys and values, without a cache."""
    emitter = step.emitter
    queries, keys, values = (step.read(each, step.dtype) for each in (q, k, v))
    count, slots = queries.shape[2], keys.shape[2]
    seen: Tensor | None = None
    added: list[Tensor] = []
    if causal:
        seen = emitter.numbers(np.tri(count, slots, dtype=np.bool_)[None, None], "bool")
    if mask is not None:
        given = _mask(step, mask)
        if given.dtype == "bool":
            seen = given
        else:
            added.append(given)
    operands, factor = (queries, keys, values), _factor(scale, queries)
    return _mixed(step, operands, seen, added, factor, None)


def _factor(scale: object, queries: Tensor) -> float:
    return scale if isinstance(scale, float) else float(queries.shape[-1] ** -0.5)


def _mixed(
    step: Step,
    operands: tuple[Tensor, Tensor, Tensor],
    seen: Tensor | None,
    added: Sequence[Tensor],
    factor: float,
    softcap: object,
) -> Tensor:
    """Return softmax(queries keys + additions) values; zeros if all keys are hidden.

    Args:
        step: the attention instruction.
        operands: queries [batch, heads, count, width]; keys and values [batch,
            kv_heads, slots, width].
        seen: bool [1 or batch, 1 or heads, count, slots], the keys that each query
            sees; None if all keys are visible.
        added: numbers to add to scores, each of a shape as for `seen`.
        factor: the factor on scores.
        softcap: the bound of scores, or None.
    """
    emitter, dtype = step.emitter, step.dtype
    queries, keys, values = operands
    batch, heads, count, width = queries.shape
    kv_batch, kv_heads, slots, _ = keys.shape
    group = max(1, heads // kv_heads)
    scaled: Tensor = emitter.pair("mul", queries, Number(factor, dtype))
    if group > 1:
        scaled = emitter.reshape(scaled, (batch, kv_heads, group * count, width))
    rows = max(batch, kv_batch)
    shape = (rows, kv_heads, group * count, slots)
    scores = emitter.call("matmul", dtype, shape, x=scaled, y=keys, transpose_y=True)
    if isinstance(softcap, float):
        small = emitter.pair("mul", scores, Number(1 / softcap, dtype))
        scores = emitter.pair(
            "mul", emitter.same("tanh", small), Number(softcap, dtype)
        )
    hidden = [] if seen is None else [_bias(emitter, seen, dtype)]
    for bias in (*added, *hidden):
        own = emitter.cast(bias, dtype)
        scores = emitter.pair("add", scores, _of_groups(emitter, own, shape, group))
    weights = emitter.same("softmax", scores, axis=3)
    shape = (rows, kv_heads, group * count, values.shape[3])
    mixed = emitter.call("matmul", dtype, shape, x=weights, y=values)
    made = emitter.reshape(mixed, step.shape)
    if seen is None:
        return made
    some = emitter.call(
        "reduce_max",
        dtype,
        (*seen.shape[:3], 1),
        x=emitter.cast(seen, dtype),
        axes=(3,),
        keep_dims=True,
    )
    return emitter.pair("mul", made, some)


def _bias(emitter: Emitter, seen: Tensor, dtype: str) -> Tensor:
    """Return numbers to add to scores: 0 for visible keys, else far below 0."""
    there = emitter.pair("sub", emitter.cast(seen, dtype), Number(1, dtype))
    return emitter.pair("mul", there, Number(_HIDDEN, dtype))


def _of_groups(
    emitter: Emitter, x: Tensor, scores: Sequence[int], group: int
) -> Tensor:
    """Reshape `x` [batch, heads or 1, count, ...] to broadcast to scores by groups.

    The scores [batch, kv_heads, group * count, ...] have the query heads of a group one
    after another. `scores` is their shape; `group` is the number of query heads that
    share a key head.
    """
    batch, heads, count, last = x.shape
    if group == 1 or (heads == 1 and count == 1):
        return x
    if count == 1:  # one row of a mask for all queries
        times = (1, 1, scores[2] // group, 1)
        shape = (batch, heads, scores[2] // group, last)
        x = emitter.call("tile", x.dtype, shape, x=x, reps=times)
        count = shape[2]
    if heads == 1:
        times = (1, 1, group, 1)
        return emitter.call(
            "tile", x.dtype, (batch, 1, group * count, last), x=x, reps=times
        )
    return emitter.reshape(x, (batch, scores[1], group * count, last))


def _integers(emitter: Emitter, values: Sequence[int], shape: Sequence[int]) -> Tensor:
    return emitter.numbers(np.array(values).reshape(shape), "int32")
