"""From operators to steps of shaders: elements, reductions, rows, products, attention.

A kernel gets the arrays of its results, and the arguments of an instruction in the order
of its signature, arrays for tensors. It writes results of any strides.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from kvc.runtime.arrays import Array
from kvc.runtime.delegates.vulkan.steps import ABSENT, Steps, seen_as, whole_bits

Kernel = Callable[..., None]
WHOLE: Final = 64
# The numbers of elementwise.comp.
_SAME, _ADD, _SUB, _RSUB, _MUL, _DIV, _MAX, _MIN, _POWER = range(9)
_COMPARED = {"eq": 9, "ne": 10, "lt": 11, "le": 12, "gt": 13, "ge": 14}
_WHERE, _CLAMP = 15, 16
_UNARY = {
    "neg": 17, "abs": 18, "ceil": 19, "floor": 20, "round": 21, "trunc": 22, "sqrt": 23,
    "rsqrt": 24, "reciprocal": 25, "exp": 26, "log": 27, "sin": 28, "cos": 29,
    "tanh": 30, "sigmoid": 31, "silu": 32, "relu": 33, "erf": 36,
}  # fmt: skip
_GELU: Final = {"none": 34, "tanh": 35}
_GLU: Final = {"silu": 37, "gelu": 38, "gelu_tanh": 39}
_LOGIC = {
    "bitwise_and.Tensor": 40, "bitwise_or.Tensor": 41, "bitwise_xor.Tensor": 42,
    "logical_and": 43, "logical_or": 44, "logical_xor": 45,
}  # fmt: skip
_INVERT, _NOT = 46, 47
_COUNT, _COUNT_WHOLE, _LOWER, _UPPER = 48, WHOLE + 48, WHOLE + 49, WHOLE + 50
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_TILE: Final = 16  # rows and columns that matmul.comp takes together
_ROWS: Final = 8  # rows that matvec.comp takes together


def _op(op: int, arrays: Sequence[Array | None]) -> int:
    """Return the number of an op for the class of its arrays."""
    floats = any(a is not None and a.dtype.kind == "f" for a in arrays)
    return op if floats else WHOLE + op


def _scalars(**given: object) -> dict[str, dict[int, float] | dict[int, int]]:
    """Return numbers by index (`_2=x`), as floats and as integers."""
    found = {int(name[1:]): value for name, value in given.items()}
    return {
        "numbers": {i: float(v) for i, v in found.items()},  # type: ignore[arg-type]
        "integers": {i: _whole(v) for i, v in found.items()},
    }


def _whole(value: object) -> int:
    """Return the integer that stands for a number; 0 for a fraction, which none reads."""
    if isinstance(value, float) and not (math.isfinite(value) and _LEAST <= value <= _MOST):
        return 0
    return int(value)  # type: ignore[call-overload, no-any-return]


def _binary(op: int) -> Kernel:
    def kernel(
        steps: Steps, out: Sequence[Array], a: Array, b: Array | float, alpha: float = 1
    ) -> None:
        tensor = b if isinstance(b, np.ndarray) else None
        number = 0 if isinstance(b, np.ndarray) else b
        numbers = _scalars(_2=number, _3=alpha)
        steps.each(_op(op, out), [out[0], a, tensor], **numbers)  # type: ignore[arg-type]

    return kernel


def _compare(op: int) -> Kernel:
    def kernel(steps: Steps, out: Sequence[Array], a: Array, b: Array | float) -> None:
        tensor = b if isinstance(b, np.ndarray) else None
        number = 0 if isinstance(b, np.ndarray) else b
        numbers = _scalars(_2=number)
        steps.each(_op(op, [a, tensor]), [out[0], a, tensor], **numbers)  # type: ignore[arg-type]

    return kernel


def _unary(op: int) -> Kernel:
    def kernel(steps: Steps, out: Sequence[Array], a: Array) -> None:
        steps.each(_op(op, out), [out[0], a])

    return kernel


def scalar_power(steps: Steps, out: Sequence[Array], base: float, x: Array) -> None:
    steps.each(_POWER, [out[0], None, x], numbers={1: float(base)})


def gelu(steps: Steps, out: Sequence[Array], x: Array, approximate: str) -> None:
    steps.each(_GELU[approximate], [out[0], x])


def glu(
    steps: Steps, out: Sequence[Array], gate: Array, up: Array, activation: str
) -> None:
    steps.each(_GLU[activation], [out[0], gate, up])


def clamp(
    steps: Steps,
    out: Sequence[Array],
    x: Array,
    least: Array | float | None,
    most: Array | float | None,
) -> None:
    low, high = (b if isinstance(b, np.ndarray) else None for b in (least, most))
    floats = out[0].dtype.kind == "f"
    ends = (-math.inf, math.inf) if floats else (_LEAST, _MOST)
    bounds = [
        end if each is None or isinstance(each, np.ndarray) else each
        for each, end in zip((least, most), ends, strict=True)
    ]
    numbers = _scalars(_2=bounds[0], _3=bounds[1])
    steps.each(_op(_CLAMP, out), [out[0], x, low, high], **numbers)  # type: ignore[arg-type]


def where(
    steps: Steps, out: Sequence[Array], condition: Array, a: Array, b: Array
) -> None:
    tensors = [whole_bits(out[0]), condition, whole_bits(a), whole_bits(b)]
    steps.each(WHOLE + _WHERE, tensors)


def masked_fill(
    steps: Steps, out: Sequence[Array], x: Array, mask: Array, value: float
) -> None:
    numbers = _scalars(_2=value)
    steps.each(_op(_WHERE, out), [out[0], mask, None, x], **numbers)  # type: ignore[arg-type]


def cast(steps: Steps, out: Sequence[Array], x: Array, _dtype: object) -> None:
    steps.each(_op(_SAME, [x]), [out[0], x])


def copy(steps: Steps, out: Sequence[Array], x: Array) -> None:
    steps.copy(out[0], x)


def reshape(steps: Steps, out: Sequence[Array], x: Array, _shape: object) -> None:
    target = seen_as(out[0], x.shape)
    if target is not None:
        steps.copy(target, x)
    else:
        steps.copy(out[0], steps.packed(x).reshape(out[0].shape))


def full(
    steps: Steps, out: Sequence[Array], _size: object, value: float, _dtype: object
) -> None:
    numbers = _scalars(_1=value)
    steps.each(_op(_SAME, out), [out[0], None], **numbers)  # type: ignore[arg-type]


def arange(
    steps: Steps,
    out: Sequence[Array],
    start: float,
    _end: float,
    step: float,
    _dtype: object,
) -> None:
    op = _COUNT if out[0].dtype.kind == "f" else _COUNT_WHOLE
    steps.each(op, out, **_scalars(_0=start, _1=step))  # type: ignore[arg-type]


def triangle(op: int) -> Kernel:
    def kernel(steps: Steps, out: Sequence[Array], x: Array, diagonal: int) -> None:
        tensors = [whole_bits(out[0]), whole_bits(x)]
        steps.each(op, tensors, integers={2: diagonal}, merge=False)

    return kernel


def cat(
    steps: Steps, out: Sequence[Array], parts: Sequence[Array], axis: int
) -> None:
    start, (made,) = 0, out
    for part in parts:
        if part.ndim != made.ndim:  # torch takes an empty vector beside anything
            continue
        end = start + part.shape[axis]
        before = (slice(None),) * (axis % made.ndim)
        steps.copy(made[(*before, slice(start, end))], part)
        start = end


def stack(
    steps: Steps, out: Sequence[Array], parts: Sequence[Array], axis: int
) -> None:
    before = (slice(None),) * (axis % out[0].ndim)
    for number, part in enumerate(parts):
        steps.copy(out[0][(*before, number, ...)], part)


def repeat(steps: Steps, out: Sequence[Array], x: Array, times: Sequence[int]) -> None:
    (made,) = out
    x = x.reshape((1,) * (made.ndim - x.ndim) + x.shape)
    if not made.size:
        return
    shape = [n for pair in zip(times, x.shape, strict=True) for n in pair]
    tiles = np.lib.stride_tricks.as_strided(
        made,
        shape,
        [n for size, step in zip(x.shape, made.strides, strict=True) for n in (size * step, step)],
    )
    steps.copy(tiles, x[tuple(i for _ in times for i in (None, slice(None)))])


def after(steps: Steps, out: Sequence[Array], start: Array, count: int) -> None:
    target = seen_as(out[0], start.shape)
    assert target is not None, "one start for each row"
    steps.each(WHOLE + _ADD, [target, start, None], integers={2: count, 3: 1})


def rotary(steps: Steps, out: Sequence[Array], x: Array, cos: Array, sin: Array) -> None:
    half, whole = x.shape[-1] // 2, cos.shape[-1] == x.shape[-1]
    second = slice(half, None) if whole else slice(None)
    first = slice(half) if whole else slice(None)
    halves = [out[0][..., :half], out[0][..., half:], x[..., :half], x[..., half:]]
    tables = [table[..., part] for part in (first, second) for table in (cos, sin)]
    shape = halves[0].shape
    tensors = [*halves, *(np.broadcast_to(table, shape) for table in tables)]
    steps.add("rotary", 0, tensors, count=halves[0].size)


def _reduce(op: int) -> Kernel:
    """Reduce along axes, all where none are given: results first one, then an index."""

    def kernel(
        steps: Steps,
        out: Sequence[Array],
        x: Array,
        axes: Sequence[int] | int | None = None,
        keep: bool = False,
    ) -> None:
        given = (axes,) if isinstance(axes, int) else tuple(axes or range(x.ndim))
        gone = sorted({axis % x.ndim for axis in given}) if x.ndim else []
        kept = [axis for axis in range(x.ndim) if axis not in gone]
        count = math.prod(x.shape[axis] for axis in gone)
        if op in _CHOOSING and not count and out[0].size:
            raise ValueError("there is no greatest or least of no elements")
        if keep:
            where = tuple(0 if i in gone else slice(None) for i in range(x.ndim))
            out = [made[(*where, ...)] for made in out]
        tensors = [out[0], x.transpose(kept + gone), *out[1:]]
        integers = {0: len(kept), 1: count}
        steps.add("reduce", op, tensors, count=out[0].size, integers=integers)

    return kernel


_SUM, _MEAN, _GREATEST, _SMALLEST, _ANY, _ALL, _ARGMAX, _ARGMIN, _MAXES, _MINS, _SUMS = (
    range(11)
)
_CHOOSING: Final = {_GREATEST, _SMALLEST, _ARGMAX, _ARGMIN, _MAXES, _MINS}


def cumsum(steps: Steps, out: Sequence[Array], x: Array, axis: int) -> None:
    if not x.ndim:
        steps.copy(out[0], x)
        return
    made, x = (np.moveaxis(array, axis, -1) for array in (out[0], x))
    length = x.shape[-1]
    count = x.size // length if length else 0
    integers = {0: x.ndim - 1, 1: length}
    steps.add("reduce", _SUMS, [made, x], count=count, integers=integers)


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
    """Add a step over rows, of the last axis or of `width` elements of the last ones."""
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
    """Add a step for [..., m, k] times [..., k, n]; batches are broadcast to `out`."""
    *batch, m, n = out.shape
    depth = x.shape[-1]
    x = np.broadcast_to(x, (*batch, m, depth))
    y = np.broadcast_to(y, (*batch, depth, n))
    more = None if more is None else np.broadcast_to(more, out.shape)
    tensors, numbers = [out, x, y, more], {0: float(alpha), 1: float(beta)}
    if not batch and m <= _ROWS and y.strides[0] == y.itemsize:
        steps.add("matvec", 0, tensors, count=n * (m > 0), groups=n * (m > 0), numbers=numbers)
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
    # No window is wider, and positions of one lie within 64 bits.
    bounds = [ABSENT if b is None else min(b, 1 << 61) for b in (left, right)]
    numbers = {0: width**-0.5 if scale is None and width else scale or 0, 1: softcap or 0}
    tensors = [made, q, k, v, valid, mask, slopes, sinks, k_scale, v_scale, lengths]
    integers = {0: layout == "circular", 1: bounds[0], 2: bounds[1], 3: keep, 4: total}
    count = batch * heads * seq
    groups = max(1, count)  # one checks lengths, also of nothing
    steps.add(
        "attention", 0, tensors, count=count, groups=groups, integers=integers, numbers=numbers
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
    """Attend to all keys; the first query of causal ones sees the first."""
    made, q, k, v = (
        array.reshape((1,) * (4 - array.ndim) + array.shape) for array in (out[0], q, k, v)
    )
    q = np.broadcast_to(q, (*made.shape[:3], q.shape[-1]))
    total = made.shape[2] if causal else k.shape[2]
    none = (None,) * 3
    attention(
        *(steps, [made], q, k, v, None, scale, causal, None, None, None),
        *(mask, None, None, "linear", *none, 0, total),
    )


KERNELS: dict[str, Kernel] = {
    "aten::add.Tensor": _binary(_ADD),
    "aten::add.Scalar": _binary(_ADD),
    "aten::sub.Tensor": _binary(_SUB),
    "aten::sub.Scalar": _binary(_SUB),
    "aten::rsub.Scalar": _binary(_RSUB),
    "aten::mul.Tensor": _binary(_MUL),
    "aten::mul.Scalar": _binary(_MUL),
    "aten::div.Tensor": _binary(_DIV),
    "aten::div.Scalar": _binary(_DIV),
    "aten::maximum": _binary(_MAX),
    "aten::minimum": _binary(_MIN),
    "aten::pow.Tensor_Scalar": _binary(_POWER),
    "aten::pow.Scalar": scalar_power,
    **{f"aten::{n}.{k}": _compare(op) for n, op in _COMPARED.items() for k in ("Tensor", "Scalar")},
    **{f"aten::{name}": _unary(op) for name, op in _UNARY.items()},
    **{f"aten::{name}": _compare(op) for name, op in _LOGIC.items()},
    "aten::bitwise_not": _unary(_INVERT),
    "aten::logical_not": _unary(_NOT),
    "aten::gelu": gelu,
    "kvc::glu": glu,
    "aten::clamp": clamp,
    "aten::clamp.Tensor": clamp,
    "aten::where.self": where,
    "aten::masked_fill.Scalar": masked_fill,
    "aten::_to_copy": cast,
    "aten::clone": copy,
    "aten::reshape": reshape,
    "aten::full": full,
    "aten::arange.start_step": arange,
    "aten::tril": triangle(_LOWER),
    "aten::triu": triangle(_UPPER),
    "aten::cat": cat,
    "aten::stack": stack,
    "aten::repeat": repeat,
    "kvc::after": after,
    "kvc::rotary_embedding": rotary,
    "aten::sum.dim_IntList": _reduce(_SUM),
    "aten::mean.dim": _reduce(_MEAN),
    "aten::amax": _reduce(_GREATEST),
    "aten::amin": _reduce(_SMALLEST),
    **{f"aten::any{kind}": _reduce(_ANY) for kind in ("", ".dim", ".dims")},
    **{f"aten::all{kind}": _reduce(_ALL) for kind in ("", ".dim", ".dims")},
    "aten::argmax": _reduce(_ARGMAX),
    "aten::argmin": _reduce(_ARGMIN),
    "aten::max.dim": _reduce(_MAXES),
    "aten::min.dim": _reduce(_MINS),
    "aten::cumsum": cumsum,
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
