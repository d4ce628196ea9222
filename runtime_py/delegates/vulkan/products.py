"""Translate row norms, matrix products and attention to steps of shaders.

Kernels have the form that `kernels.py` describes.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.vulkan.kernels import Kernel
from kvc.runtime.delegates.vulkan.steps import ABSENT, Steps, seen_as
from kvc.runtime.memory.arrays import Array

_TILE: Final = 16  # rows and columns per workgroup of matmul.comp
_MOST_ROWS: Final = 8  # rows per workgroup of matvec.comp


def _rows(
    steps: Steps,
    op: int,
    out: Array,
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 0,
    width: int | None = None,
) -> None:
    """Add a step that computes on rows.

    A row is the last axis, or `width` consecutive elements.
    """
    if width is not None:
        lead = x.size // width if width else 0
        x = steps.packed(x).reshape(lead, width)
        target = seen_as(out, (lead, width))
        if target is None:
            between = steps.temporary(out.shape, out.dtype)
            _rows(steps, op, between, x, weight, bias, eps, width)
            steps.copy(out, between)
            return
        out = target
        weight, bias = (
            None if each is None else steps.packed(each).reshape(width)
            for each in (weight, bias)
        )
    rows = x.size // x.shape[-1] if x.shape[-1] else 0
    tensors = [out, x, weight, bias]
    steps.add("rows", op, tensors, count=rows, groups=rows, numbers={0: eps})


def rms_norm(
    steps: Steps,
    out: Sequence[Array],
    x: Array,
    shape: Sequence[int],
    weight: Array | None,
    eps: float | None,
) -> None:
    least = float(np.finfo(np.float32).eps) if eps is None else eps
    width = None if len(shape) == 1 else math.prod(shape)
    _rows(steps, 0, out[0], x, weight, None, least, width)


def layer_norm(
    steps: Steps,
    out: Sequence[Array],
    x: Array,
    shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> None:
    width = None if len(shape) == 1 else math.prod(shape)
    _rows(steps, 1, out[0], x, weight, bias, eps, width)


def softmax(steps: Steps, out: Sequence[Array], x: Array, _axis: int) -> None:
    _rows(steps, 2, out[0], x)


def log_softmax(steps: Steps, out: Sequence[Array], x: Array, _axis: int) -> None:
    _rows(steps, 3, out[0], x)


def _product(
    steps: Steps,
    out: Array,
    x: Array,
    y: Array,
    more: Array | None = None,
    alpha: float = 1,
    beta: float = 1,
) -> None:
    """Add a step that multiplies x [..., m, k] by y [..., k, n].

    Batch axes broadcast to those of `out`. The result is alpha x y + beta more.
    """
    *batch, m, n = out.shape
    depth = x.shape[-1]
    x = np.broadcast_to(x, (*batch, m, depth))
    y = np.broadcast_to(y, (*batch, depth, n))
    more = None if more is None else np.broadcast_to(more, out.shape)
    tensors, numbers = [out, x, y, more], {0: float(alpha), 1: float(beta)}
    if not batch and m <= _MOST_ROWS and y.strides[0] == y.itemsize:
        steps.add(
            "matvec", 0, tensors, count=n * (m > 0), groups=n * (m > 0), numbers=numbers
        )
        return
    tiles = math.prod(batch) * -(-m // _TILE) * -(-n // _TILE)
    steps.add("matmul", 0, tensors, count=tiles, groups=tiles, numbers=numbers)


def linear(
    steps: Steps, out: Sequence[Array], x: Array, weight: Array, bias: Array | None
) -> None:
    (made,) = out
    rows = math.prod(x.shape[:-1])
    flat = seen_as(x, (rows, x.shape[-1]))
    if flat is None:
        flat = steps.packed(x).reshape(rows, x.shape[-1])
    target = seen_as(made, (rows, made.shape[-1]))
    if target is not None:
        _product(steps, target, flat, weight.T, bias)
        return
    between = steps.temporary((rows, made.shape[-1]), made.dtype)
    _product(steps, between, flat, weight.T, bias)
    steps.copy(made, between.reshape(made.shape))


def matmul(steps: Steps, out: Sequence[Array], x: Array, y: Array) -> None:
    (made,) = out
    if y.ndim == 1:
        y, made = y[:, None], made[..., None]
    if x.ndim == 1:
        x, made = x[None], made[..., None, :]
    _product(steps, made, x, y)


def addmm(
    steps: Steps,
    out: Sequence[Array],
    more: Array,
    x: Array,
    y: Array,
    beta: float,
    alpha: float,
) -> None:
    _product(steps, out[0], x, y, more, alpha, beta)


def attention(
    steps: Steps,
    out: Sequence[Array],
    q: Array,
    k: Array,
    v: Array,
    valid: Array | None,
    scale: float | None,
    causal: bool,
    left: int | None,
    right: int | None,
    softcap: float | None,
    mask: Array | None,
    slopes: Array | None,
    sinks: Array | None,
    layout: str,
    k_scale: Array | None,
    v_scale: Array | None,
    lengths: Array | None,
    keep: int,
    total: int = 0,
) -> None:
    (made,) = out
    batch, heads, seq, width = q.shape
    k, v = (np.broadcast_to(each, (batch, *each.shape[1:])) for each in (k, v))
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, seq, mask.shape[-1]))
    if heads and not k.shape[1]:
        raise ValueError(f"{heads} heads of queries over none of keys")
    right = 0 if causal else right
    # Wider windows change nothing, and these positions fit 64 bits.
    bounds = [ABSENT if b is None else min(b, 1 << 61) for b in (left, right)]
    numbers = {
        0: width**-0.5 if scale is None and width else scale or 0,
        1: softcap or 0,
    }
    tensors = [made, q, k, v, valid, mask, slopes, sinks, k_scale, v_scale, lengths]
    integers = {0: layout == "circular", 1: bounds[0], 2: bounds[1], 3: keep, 4: total}
    count = batch * heads * seq
    groups = max(1, count)  # one group checks lengths, even without queries
    steps.add(
        "attention",
        0,
        tensors,
        count=count,
        groups=groups,
        integers=integers,
        numbers=numbers,
    )


def attention_product(
    steps: Steps,
    out: Sequence[Array],
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    causal: bool,
    scale: float | None,
    _grouped: bool,
) -> None:
    """Attend to all keys; if `causal`, the first query sees only the first key."""
    made, q, k, v = (
        array.reshape((1,) * (4 - array.ndim) + array.shape)
        for array in (out[0], q, k, v)
    )
    q = np.broadcast_to(q, (*made.shape[:3], q.shape[-1]))
    total = made.shape[2] if causal else k.shape[2]
    none = (None,) * 3
    attention(
        *(steps, [made], q, k, v, None, scale, causal, None, None, None),
        *(mask, None, None, "linear", *none, 0, total),
    )


PRODUCTS: dict[str, Kernel] = {
    "aten::rms_norm": rms_norm,
    "aten::layer_norm": layer_norm,
    "aten::softmax.int": softmax,
    "aten::log_softmax.int": log_softmax,
    "aten::linear": linear,
    "aten::matmul": matmul,
    "aten::mm": matmul,
    "aten::bmm": matmul,
    "aten::addmm": addmm,
    "kvc::attention": attention,
    "aten::scaled_dot_product_attention": attention_product,
}


# Operators of quantized rows and weights.


_ROWS, _CACHE, _LINEAR = range(3)
_MOST_INT8_ROWS: Final = 8  # rows per workgroup of quantized.comp


def quantize_rows(steps: Steps, out: Sequence[Array], x: Array) -> None:
    q, scale, zero = out
    rows = x.size // x.shape[-1]
    steps.add("quantized", _ROWS, [q, scale, zero, x], count=rows, groups=rows)


def quantize_cache(steps: Steps, out: Sequence[Array], x: Array) -> None:
    rows = math.prod(x.shape[:-1])
    steps.add("quantized", _CACHE, [*out, x], count=rows, groups=rows)


def linear_qd8(
    steps: Steps,
    out: Sequence[Array],
    q: Array,
    scale: Array,
    zero: Array,
    weight: Array,
    weight_scale: Array,
    bias: Array | None,
) -> None:
    (made,) = out
    rows, columns = math.prod(q.shape[:-1]), weight.shape[0]
    flat = steps.packed(q).reshape(rows, q.shape[-1])
    scale, zero = (steps.packed(each).reshape(rows) for each in (scale, zero))
    target = seen_as(made, (rows, columns))
    to = steps.temporary((rows, columns), made.dtype) if target is None else target
    count = columns * -(-rows // _MOST_INT8_ROWS)
    tensors = [to, flat, scale, zero, weight, weight_scale, bias]
    steps.add("quantized", _LINEAR, tensors, count=count, groups=count)
    if target is None:
        steps.copy(made, to.reshape(made.shape))


QUANTIZED: dict[str, Kernel] = {
    "kvc::quantize_rows": quantize_rows,
    "kvc::quantize_cache": quantize_cache,
    "kvc::linear_qd8": linear_qd8,
}
