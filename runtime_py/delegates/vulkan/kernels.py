"""Translate elementwise operators, copies and reductions to steps of shaders.

A kernel gets the arrays of an instruction's results, and the instruction's arguments in
the order of the operator's signature, with arrays for tensors. Arrays of results can
have any strides.
"""

import math
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Final

import numpy as np

from kvc.runtime.delegates.vulkan.steps import Steps, check_count, seen_as, whole_bits
from kvc.runtime.memory.arrays import Array

Kernel = Callable[..., None]
Where = tuple[int | slice | EllipsisType, ...]
WHOLE: Final = 64
# Operation numbers of elementwise.comp.
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


def _op(op: int, arrays: Sequence[Array | None]) -> int:
    """Return the number of an operation for the dtypes of its arrays."""
    floats = any(a is not None and a.dtype.kind == "f" for a in arrays)
    return op if floats else WHOLE + op


def _scalars(**given: object) -> dict[str, dict[int, float] | dict[int, int]]:
    """Return a step's numbers, once as floats and once as integers, by their index.

    The keyword `_2` gives the number with index 2.
    """
    found = {int(name[1:]): value for name, value in given.items()}
    return {
        "numbers": {i: float(v) for i, v in found.items()},  # type: ignore[arg-type]
        "integers": {i: _whole(v) for i, v in found.items()},
    }


def _whole(value: object) -> int:
    """Return a number as an integer; 0 for a number that no integer can represent."""
    if isinstance(value, float) and not (
        math.isfinite(value) and _LEAST <= value <= _MOST
    ):
        return 0
    return int(value)  # type: ignore[call-overload, no-any-return]


def _binary(op: int) -> Kernel:
    def kernel(
        steps: Steps, out: Sequence[Array], a: Array, b: Array | float, alpha: float = 1
    ) -> None:
        tensor = b if isinstance(b, np.ndarray) else None
        numbers = _scalars(_2=0 if isinstance(b, np.ndarray) else b, _3=alpha)
        steps.each(_op(op, out), [out[0], a, tensor], **numbers)  # type: ignore[arg-type]

    return kernel


def _compare(op: int) -> Kernel:
    def kernel(steps: Steps, out: Sequence[Array], a: Array, b: Array | float) -> None:
        tensor = b if isinstance(b, np.ndarray) else None
        numbers = _scalars(_2=0 if isinstance(b, np.ndarray) else b)
        steps.each(_op(op, [a, tensor]), [out[0], a, tensor], **numbers)  # type: ignore[arg-type]

    return kernel


def _unary(op: int) -> Kernel:
    def kernel(steps: Steps, out: Sequence[Array], a: Array) -> None:
        steps.each(_op(op, out), [out[0], a])

    return kernel


def invert(steps: Steps, out: Sequence[Array], x: Array) -> None:
    op = _NOT if x.dtype.kind == "b" else _INVERT
    steps.each(WHOLE + op, [out[0], x])


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


def cat(steps: Steps, out: Sequence[Array], parts: Sequence[Array], axis: int) -> None:
    start, (made,) = 0, out
    for part in parts:
        if part.ndim != made.ndim:  # torch accepts empty vectors among other shapes
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
        where: Where = (*before, number, ...)
        steps.copy(out[0][where], part)


def repeat(steps: Steps, out: Sequence[Array], x: Array, times: Sequence[int]) -> None:
    (made,) = out
    x = x.reshape((1,) * (made.ndim - x.ndim) + x.shape)
    if not made.size:  # an operand repeated 0 times may have elements
        return
    shape = [n for pair in zip(times, x.shape, strict=True) for n in pair]
    tiles = np.lib.stride_tricks.as_strided(
        made,
        shape,
        [
            n
            for size, step in zip(x.shape, made.strides, strict=True)
            for n in (size * step, step)
        ],
    )
    apart = [i for _ in times for i in (None, slice(None))]
    steps.copy(tiles, x[(*apart, ...)])


def after(steps: Steps, out: Sequence[Array], start: Array, count: int) -> None:
    target = seen_as(out[0], start.shape)
    assert target is not None, "one start for each row"
    steps.each(WHOLE + _ADD, [target, start, None], integers={2: count, 3: 1})


def rotary(
    steps: Steps, out: Sequence[Array], x: Array, cos: Array, sin: Array
) -> None:
    half, whole = x.shape[-1] // 2, cos.shape[-1] == x.shape[-1]
    second = slice(half, None) if whole else slice(None)
    first = slice(half) if whole else slice(None)
    halves = [out[0][..., :half], out[0][..., half:], x[..., :half], x[..., half:]]
    tables = [table[..., part] for part in (first, second) for table in (cos, sin)]
    shape = halves[0].shape
    tensors = [*halves, *(np.broadcast_to(table, shape) for table in tables)]
    steps.add("rotary", 0, tensors, count=halves[0].size)


def _reduce(op: int) -> Kernel:
    """Return a kernel that reduces the given axes, or all axes if none are given."""

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
        check_count(count)
        if op in _CHOOSING and not count and out[0].size:
            raise ValueError("there is no greatest or least of no elements")
        if keep:
            where = tuple(0 if i in gone else slice(None) for i in range(x.ndim))
            out = [made[(*where, ...)] for made in out]
        tensors = [out[0], x.transpose(kept + gone), *out[1:]]
        integers = {0: len(kept), 1: count}
        steps.add("reduce", op, tensors, count=out[0].size, integers=integers)

    return kernel


(
    _SUM,
    _MEAN,
    _GREATEST,
    _SMALLEST,
    _ANY,
    _ALL,
    _ARGMAX,
    _ARGMIN,
    _MAXES,
    _MINS,
    _SUMS,
) = range(11)
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
    **{
        f"aten::{n}.{k}": _compare(op)
        for n, op in _COMPARED.items()
        for k in ("Tensor", "Scalar")
    },
    **{f"aten::{name}": _unary(op) for name, op in _UNARY.items()},
    **{f"aten::{name}": _compare(op) for name, op in _LOGIC.items()},
    "aten::bitwise_not": invert,
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
}
