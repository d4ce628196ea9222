"""`kvc::attention`: attention over the valid part of a cache.

In: queries, a whole cache of keys and values, the number of valid positions of each
row, and the number of real queries of each row. Out: the attended values. The work
grows with the number of visible keys, not with the capacity of the cache, and no mask
over the capacity is ever made. `valid_length`, causality, windows, soft cap and mask
have the meaning of `nonpad_kv_seqlen` and the attributes of ONNX Attention (opsets 24
and 25). ALiBi slopes (Press et al., 2021), sinks (GPT-OSS), rings, int8 caches and row
lengths are kvc's additions. `rows.py` computes one row.

The same checks of arguments run on real and on fake tensors. The sizes of fake tensors
can be symbolic, so the checks use `torch._check_value`, which defers a condition that
cannot be decided yet.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kvc.schema.rings import can_keep, oldest
from kvc.schema.torch_ops.int8_rows import as_cache
from kvc.schema.torch_ops.rows import (
    attend_last,
    attend_one,
    attend_row,
    check_row_lengths,
    read_row_lengths,
)
from kvc.schema.torch_ops.visibility import RowVisibility, Scoring

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Attention(NamedTuple):
    """The arguments of `attention`, which documents them."""

    q: Tensor
    k: Tensor
    v: Tensor
    valid_length: Tensor
    scale: float | None = None
    causal: bool = True
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    mask: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    layout: str = "linear"
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    row_lengths: Tensor | None = None
    keep: int = 0


@torch.library.custom_op("kvc::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid_length: Tensor,
    scale: float | None = None,
    causal: bool = True,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
    mask: Tensor | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    layout: str = "linear",
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> Tensor:
    """Attend from each query to the visible keys of its row.

    Query i of a row is at position p = valid_length - count + i, where `count` is
    `seq`, or the row's entry of `row_lengths`. float16 and bfloat16 are computed in
    float32 wherever torch's own fused attention does not apply.

    Args:
        q: [batch, heads, seq, head_dim], the queries of the last `seq` positions:
            float32, float64, bfloat16 or float16, the dtype of `k` and `v`. If `q` is
            float32, `k` and `v` can also be float16; the computation is in float32.
            `k` and `v` can also be int8, with scales.
        k: [batch, kv_heads, slots, head_dim]; `heads` is a multiple of `kv_heads`.
        v: [batch, kv_heads, slots, value_dim].
        valid_length: int64 [batch], the number of positions of `k` and `v` that hold
            data, including the positions of the queries.
        scale: factor on the scores; None means 1 / sqrt(head_dim).
        causal: the query sees keys up to p (bottom-right aligned); a query at a
            negative position sees no key.
        window_left: the query sees keys from p - window_left on; None for no lower
            limit.
        window_right: the query sees keys up to p + window_right; None for no upper
            limit.
        softcap: a number c that changes each score to c * tanh(score / c), before mask
            and slopes are applied.
        mask: [batch or 1, heads or 1, seq, positions], bool (True for visible keys) or
            float (added to scores). The last axis is the position of a key; keys after
            the end of the axis are hidden.
        slopes: float32 [heads]; adds slopes[head] * (key position - p) (ALiBi).
        sinks: float [heads], one more logit in each head's softmax, without a value.
        layout: "linear": position p is in slot p. "circular": position p is in slot p
            modulo `slots`; valid_length counts all positions since the row's start, and
            positions before valid_length - slots have been overwritten, except those
            that `keep` protects.
        k_scale: float32 [batch, kv_heads, slots], the scales of `k`, if `k` and `v` are
            int8 rows from `quantize_cache`. Such rows are multiplied in float32, or in
            float64 if `q` is float64.
        v_scale: float32 [batch, kv_heads, slots], the scales of `v`.
        row_lengths: int64 [batch], from 0 to `seq`: the number of real queries of each
            row. Real queries come first; later queries are padding. None if all queries
            are real.
        keep: the number of first positions that a circular cache never overwrites, as
            in `cache_update`; `window_left` does not hide them. 0 <= keep < `slots`;
            only with layout "circular". The positions are the attention sinks of
            StreamingLLM (Xiao et al., 2023).

    Returns:
        [batch, heads, seq, value_dim]; the result is zeros for a query that sees no
        key, or is padding.

    Raises:
        ValueError: arguments do not fit each other, or a valid length is negative or,
            in the linear layout, larger than `slots`.
        RowLengthOutOfRange: a row length is negative, or more than `seq`.
    """
    given = Attention(
        q, k, v, valid_length, scale, causal, window_left, window_right, softcap,
        mask, slopes, sinks, layout, k_scale, v_scale, row_lengths, keep,
    )  # fmt: skip
    check_arguments(given)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    attend_into(out, *given)
    return out


@attention.register_fake
def _(*arguments: object) -> Tensor:
    given = Attention(*arguments)  # type: ignore[arg-type]
    check_arguments(given)
    return given.q.new_empty((*given.q.shape[:-1], given.v.shape[-1]))


_WINDOW, _LAYOUT = map(Attention._fields.index, ("window_left", "layout"))
_NOTHING = (None,) * 8


def attend_into(out: Tensor, *arguments: object) -> None:
    """Write the result of `attention(*arguments)` into a contiguous tensor.

    The caller has checked shapes, dtypes and settings.

    Raises:
        ValueError, RowLengthOutOfRange: a valid length or a row length is out of range;
            nothing has been written.
    """
    given = Attention(*arguments)  # type: ignore[arg-type]
    q, k, v, layout = given.q, given.k, given.v, given.layout
    slots, seq = k.shape[2], q.shape[2]
    others = (*given[_WINDOW:_LAYOUT], given.k_scale, given.row_lengths)
    narrow = given.k_scale is None and k.dtype != q.dtype
    single = q.shape[0] == seq == 1 and layout == "linear" and not narrow
    if single and others == _NOTHING:
        total = int(given.valid_length)
        if 0 < total <= slots and out.numel():  # a shortcut for decode
            keys, values = k.narrow(2, 0, total), v.narrow(2, 0, total)
            attend_one(out, q, keys, values, given.scale)
            return
    lengths: list[int] = given.valid_length.tolist()
    cached = as_cache(k, given.k_scale), as_cache(v, given.v_scale)
    check_lengths(lengths, slots, layout)
    counted = read_row_lengths(given.row_lengths, len(lengths), seq)
    if out.numel() == 0:
        return
    scoring = Scoring(given.scale, given.softcap, given.mask, given.slopes, given.sinks)
    bare = given.window_left is None and layout == "linear" and scoring.is_bare
    bare = bare and not narrow
    ahead, mask = 0 if given.causal else given.window_right, given.mask
    for row, (total, count) in enumerate(zip(lengths, counted, strict=True)):
        o, x, (y, z) = out, q, cached
        if len(lengths) > 1:
            o, x = out.narrow(0, row, 1), q.narrow(0, row, 1)
            y, z = (one.narrow(0, row, 1) for one in cached)
        if count < seq:
            o.narrow(2, count, seq - count).zero_()
            o, x = o.narrow(2, 0, count), x.narrow(2, 0, count)
        if count == 1 and bare:
            attend_last(o, x, y, z, total, given.scale)
        elif count:
            end = total if mask is None else min(total, mask.shape[3])
            first = oldest(total, slots, given.keep)
            sight = RowVisibility(
                count, total - count, first, end, given.window_left, ahead, given.keep
            )
            attend_row(o, x, y, z, sight, scoring.of_row(row))


def check_arguments(given: Attention) -> None:
    """Check the arguments of `attention` without reading tensor values.

    Raises:
        ValueError: an argument does not fit; the message names the first one.
    """
    q, k, v = given.q, given.k, given.v
    _check_operands(q, k, v, given.valid_length)
    check_row_lengths(given.row_lengths, q.shape[0], "attention")
    _check_dtypes(q, k, v, given.k_scale is not None)
    scales = {"k_scale": given.k_scale, "v_scale": given.v_scale}
    missing = [name for name, scale in scales.items() if scale is None]
    _check(len(missing) != 1, "one of k_scale and v_scale alone")
    for name, scale in scales.items():
        if scale is not None:
            _check_scale(scale, name, k)
    _check_settings(given.window_left, given.window_right, given.softcap, given.layout)
    fits = can_keep(given.keep, given.layout, k.shape[2])
    _check(fits, f"{given.keep} of {k.shape[2]} positions kept, {given.layout}")
    if given.mask is not None:
        _check_mask(given.mask, q)
    if given.slopes is not None:
        _check_per_head(given.slopes, "slopes", q)
        dtype = given.slopes.dtype
        _check(dtype == torch.float32, f"slopes are {dtype}, not float32")
    if given.sinks is not None:
        _check_per_head(given.sinks, "sinks", q)


def check_lengths(lengths: list[int], slots: int, layout: str) -> None:
    """Check the number of valid positions of each row of a cache.

    Raises:
        ValueError: a number is negative, or more than the slots of a linear cache.
    """
    for row, valid in enumerate(lengths):
        if valid < 0 or (valid > slots and layout == "linear"):
            raise ValueError(
                f"attention: row {row} has {valid} valid positions, "
                f"the cache has {slots}"
            )


def _check_operands(q: Tensor, k: Tensor, v: Tensor, valid_length: Tensor) -> None:
    _check(
        q.dim() == k.dim() == v.dim() == 4,
        f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions, not 4 each",
    )
    shapes = f"q {_text(q)}, k {_text(k)} and v {_text(v)}"
    for tensor in (k, v):
        _check(q.shape[0] == tensor.shape[0], f"different batches in {shapes}")
    _check(q.shape[3] == k.shape[3], f"different widths of q and k in {shapes}")
    _check(q.shape[3] > 0, f"heads of no width in {shapes}")
    _check(k.shape[2] == v.shape[2], f"different slots of k and v in {shapes}")
    _check(
        k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1],
        f"{q.shape[1]} query heads, {k.shape[1]} key heads and "
        f"{v.shape[1]} value heads do not group",
    )
    _check(
        valid_length.dtype == torch.int64 and valid_length.dim() == 1,
        f"valid_length is {valid_length.dtype} {_text(valid_length)}, "
        f"not int64 of one dimension",
    )
    _check(
        valid_length.shape[0] == q.shape[0],
        f"{valid_length.shape[0]} valid lengths for {q.shape[0]} rows",
    )


def _check_dtypes(q: Tensor, k: Tensor, v: Tensor, scaled: bool) -> None:
    found = f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}"
    if scaled:
        fits = q.dtype in _DTYPES and k.dtype == v.dtype == torch.int8
        _check(fits, f"{found}, not floating, int8 and int8, which have scales")
        return
    narrow = q.dtype == torch.float32 and k.dtype == torch.float16
    fits = q.dtype in _DTYPES and k.dtype == v.dtype and (q.dtype == k.dtype or narrow)
    _check(fits, f"{found}, not one floating dtype, or float16 beside float32")


def _check_scale(scale: Tensor, name: str, k: Tensor) -> None:
    shaped = scale.dim() == 3
    for dim in range(3):
        shaped = shaped and scale.shape[dim] == k.shape[dim]
    _check(
        shaped and scale.dtype == torch.float32,
        f"{name} is {scale.dtype} {_text(scale)}, not float32 {list(k.shape[:3])}",
    )


def _check_settings(
    left: int | None, right: int | None, softcap: float | None, layout: str
) -> None:
    for name, window in (("window_left", left), ("window_right", right)):
        _check(window is None or window >= 0, f"{name} is {window}, less than 0")
    _check(
        softcap is None or 0 < softcap < math.inf,
        f"softcap is {softcap}, not a positive number",
    )
    _check(
        layout in ("linear", "circular"),
        f"layout {layout!r} is not 'linear' or 'circular'",
    )


def _check_mask(mask: Tensor, q: Tensor) -> None:
    _check(
        mask.dtype == torch.bool or mask.is_floating_point(),
        f"the mask is {mask.dtype}, neither bool nor floating",
    )
    text = (
        f"the mask is {_text(mask)}, not [{q.shape[0]} or 1, {q.shape[1]} or 1, "
        f"{q.shape[2]}, positions]"
    )
    _check(mask.dim() == 4, text)
    for dim in (0, 1):
        # A symbolic size is that of q; comparing it with 1 would specialize it.
        size: int | torch.SymInt = mask.shape[dim]
        if not isinstance(size, int) or size != 1:
            _check(size == q.shape[dim], text)
    _check(mask.shape[2] == q.shape[2], text)


def _check_per_head(tensor: Tensor, name: str, q: Tensor) -> None:
    _check(tensor.is_floating_point(), f"{name} are {tensor.dtype}, not floating")
    _check(
        tensor.dim() == 1 and tensor.shape[0] == q.shape[1],
        f"{name} are {_text(tensor)}, not one for each of {q.shape[1]} heads",
    )


def _text(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _check(condition: bool | torch.SymBool, text: str) -> None:
    torch._check_value(condition, lambda: f"attention: {text}")  # type: ignore[no-untyped-call]
