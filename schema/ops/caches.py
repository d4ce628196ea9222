"""Shape rules of operators that write or read caches."""

import math

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import (
    Rule,
    Shape,
    axis_of,
    require,
    require_row_lengths,
    same,
    shape_of,
)
from kvc.schema.rings import can_keep
from kvc.schema.types import TensorType


def cache_update(
    cache: TensorType,
    update: TensorType,
    write_indices: TensorType | None,
    axis: int,
    mode: str,
    row_lengths: TensorType | None,
    keep: int,
) -> Rule:
    """Check the arguments of `kvc::cache_update`; the result is like the cache."""
    shape, new = shape_of(cache), shape_of(update)
    alike = len(shape) == len(new) and _stores(cache.dtype, update.dtype)
    require(alike, "{} into {}", update, cache)
    axis = axis_of(axis, len(shape))
    require(axis > 0 and mode in ("linear", "circular"), f"axis {axis}, mode {mode!r}")
    fits = can_keep(keep, mode, shape[axis])
    require(fits, "{} positions of {} kept, {}", keep, cache, mode)
    fits = shape[:axis] + shape[axis + 1 :] == new[:axis] + new[axis + 1 :]
    require(fits, "{} into {}", update, cache)
    # A linear update that is too long is refused when it runs, since the least capacity
    # that a session may select can be below the longest prefill. So is an update with
    # row lengths, which may write only some of its rows.
    refused_late = mode == "linear" or row_lengths is not None
    fits = refused_late or new[axis] <= shape[axis]
    require(fits, "{} is longer than {}", update, cache)
    require_row_lengths(row_lengths, shape[0])
    if write_indices is not None:
        require(write_indices.dtype is DType.INT64, "write_indices are not int64")
        require(shape_of(write_indices) == shape[:1], "one write index per batch row")
    return same(cache)


def _stores(cache: DType, computed: DType) -> bool:
    """Tell whether a cache of dtype `cache` can store values of dtype `computed`.

    The dtypes must be equal, except that a float16 cache can store float32.
    """
    narrow = cache is DType.FLOAT16 and computed is DType.FLOAT32
    return cache is computed or narrow


def after(start: TensorType, count: int) -> Rule:
    """`kvc::after`: the position that is `count` after the start of a call."""
    fits = start.dtype is DType.INT64 and len(start.dims) <= 1 and count >= 0
    require(fits, f"{count} after {start}")
    return same(start)


def append(past: TensorType, update: TensorType, axis: int) -> Rule:
    """`kvc::append`: concatenate `past` and `update` along an axis."""
    shape, new = list(shape_of(past)), shape_of(update)
    require(len(shape) == len(new), f"{update} after {past}")
    require(past.dtype is update.dtype, f"{update} after {past}")
    axis = axis_of(axis, len(shape))
    others = all(
        i == axis or a == b for i, (a, b) in enumerate(zip(shape, new, strict=True))
    )
    require(others, f"{update} after {past}")
    shape[axis] += new[axis]
    return ((past.dtype, tuple(shape)),)


def replace(past: TensorType, source: TensorType, axis: int) -> Rule:
    """`kvc::replace`: replace a tensor by `source`, perhaps longer along an axis."""
    shape, new = shape_of(past), shape_of(source)
    require(len(shape) == len(new), f"{source} in place of {past}")
    require(past.dtype is source.dtype, f"{source} in place of {past}")
    axis = axis_of(axis, len(shape))
    require(
        shape[:axis] + shape[axis + 1 :] == new[:axis] + new[axis + 1 :],
        f"{source} in place of {past}",
    )
    return ((source.dtype, new),)


def cached_attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    valid: TensorType,
    _scale: float | None,
    _causal: bool,
    left: int | None,
    right: int | None,
    softcap: float | None,
    mask: TensorType | None,
    slopes: TensorType | None,
    sinks: TensorType | None,
    layout: str,
    k_scale: TensorType | None,
    v_scale: TensorType | None,
    row_lengths: TensorType | None,
    keep: int,
) -> Rule:
    """Check the arguments of `kvc::attention`; the result has the queries' shape.

    Its last axis has the width of the values.
    """
    shape = _cached_heads(q, k, v)
    _cached_dtypes(q, k, v, k_scale, v_scale)
    require(valid.dtype is DType.INT64 and shape_of(valid) == shape[:1], "valid_length")
    require_row_lengths(row_lengths, shape[0])
    require(min(left or 0, right or 0) >= 0, f"windows {left} and {right}")
    require(softcap is None or 0 < softcap < math.inf, f"softcap {softcap}")
    require(layout in ("linear", "circular"), f"layout {layout!r}")
    fits = can_keep(keep, layout, shape_of(k)[2])
    require(fits, "{} positions of {} kept, {}", keep, k, layout)
    if mask is not None:
        _attention_mask(mask, shape)
    for each, name in ((slopes, "slopes"), (sinks, "sinks")):
        if each is not None:
            fits = shape_of(each) == shape[1:2] and each.dtype.is_floating
            require(fits, f"{name} {each} of {shape[1]} heads")
    require(slopes is None or slopes.dtype is DType.FLOAT32, f"slopes {slopes}")
    return ((q.dtype, (*shape[:3], shape_of(v)[3])),)


def _cached_heads(q: TensorType, k: TensorType, v: TensorType) -> Shape:
    """Check the shapes of queries, keys and values; return the queries' shape."""
    a, b, c = shape_of(q), shape_of(k), shape_of(v)
    fits = len(a) == len(b) == len(c) == 4
    fits = fits and b[:3] == c[:3] and a[3] == b[3] > 0 and a[0] == b[0]
    require(fits, "attention of {}, {}, {}", q, k, v)
    require(
        b[1] > 0 and a[1] % b[1] == 0, "query heads are not a multiple of key heads"
    )
    return a


def _cached_dtypes(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    k_scale: TensorType | None,
    v_scale: TensorType | None,
) -> None:
    """Check the dtypes of a cache.

    A cache must be able to store the dtype of the queries, or be int8 with scales.
    """
    require(q.dtype.is_floating, "attention of {}, {}, {}", q, k, v)
    if k_scale is None and v_scale is None:
        fits = k.dtype is v.dtype and _stores(k.dtype, q.dtype)
        require(fits, "attention of {}, {}, {}", q, k, v)
        return
    for cache, scale in ((k, k_scale), (v, v_scale)):
        text = f"scales {scale} of {cache}"
        require(scale is not None and cache.dtype is DType.INT8, text)
        assert scale is not None
        fits = shape_of(scale) == shape_of(cache)[:3]
        require(fits and scale.dtype is DType.FLOAT32, text)


def _attention_mask(mask: TensorType, q: Shape) -> None:
    """Check an attention mask.

    A mask is bool or floating, [batch or 1, heads or 1, seq, positions].
    """
    shape, text = shape_of(mask), f"mask {mask} of queries {q}"
    require(mask.dtype.is_floating or mask.dtype is DType.BOOL, text)
    require(len(shape) == 4 and shape[2] == q[2], text)
    require(shape[0] in (1, q[0]) and shape[1] in (1, q[1]), text)


def quantize_cache(x: TensorType) -> Rule:
    """`kvc::quantize_cache`: int8 rows, and a float32 scale for each row."""
    require(x.dtype.is_floating, f"quantize_cache of {x}")
    require(bool(x.dims) and x.dims[-1] != 0, f"quantize_cache of {x}")
    return ((DType.INT8, shape_of(x)), (DType.FLOAT32, shape_of(x)[:-1]))
