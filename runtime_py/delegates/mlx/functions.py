"""The supported operators as functions of arrays of MLX.

In: an operator's arguments in the order of its signature, with arrays for tensors and
numbers for symbolic sizes; the dtype and shape of its result. Out: the result, in any
dtype; the caller casts it to the dtype of the result.
Indices are checked, since MLX silently reads out of bounds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Final

import mlx.core as mx
import numpy as np

from kvc.runtime.delegates.mlx.attention import attend, attend_product, update_cache
from kvc.schema.errors import IndexOutOfRange
from kvc.schema.frozen import frozen

Number = int | float | bool
_SMALLEST: Final = float(np.finfo(np.float32).eps)  # torch's default of rms_norm
_GROUPS: Final = (128, 64, 32)  # group sizes of MLX: weights that share a scale


@frozen
class Result:
    """The shape and dtype of an operator's result."""

    shape: tuple[int, ...]
    dtype: mx.Dtype


def _cast(made: Result, x: mx.array | Number) -> mx.array | Number:
    return x.astype(made.dtype) if isinstance(x, mx.array) else x


def _pair(
    function: Callable[..., mx.array], made: Result, x: object, y: object, *_: object
) -> mx.array:
    return function(_cast(made, x), _cast(made, y))


def _sum(
    function: Callable[..., mx.array], made: Result, x: object, y: object, alpha: Number
) -> mx.array:
    other = _cast(made, y)
    return function(_cast(made, x), other if alpha == 1 else other * alpha)


def _rsub(made: Result, x: mx.array, y: mx.array | Number, alpha: Number) -> mx.array:
    held = x.astype(made.dtype)
    return mx.subtract(y, held if alpha == 1 else held * alpha)


def _alone(function: Callable[..., mx.array], made: Result, x: mx.array) -> mx.array:
    return function(x.astype(made.dtype))


def _compare(
    function: Callable[..., mx.array], _: Result, x: mx.array, y: mx.array | Number
) -> mx.array:
    return function(x, y)


def _gelu(made: Result, x: mx.array, approximate: str) -> mx.array:
    if approximate == "none":
        return x * (1 + mx.erf(x / sqrt(2))) / 2
    return x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) / 2


def _glu(made: Result, gate: mx.array, up: mx.array, activation: str) -> mx.array:
    if activation == "silu":
        return gate * mx.sigmoid(gate) * up
    return _gelu(made, gate, "tanh" if activation == "gelu_tanh" else "none") * up


def _clamp(
    made: Result, x: mx.array, least: Number | None, most: Number | None
) -> mx.array:
    x = x if least is None else mx.maximum(x, least)
    return x if most is None else mx.minimum(x, most)


def _power(made: Result, x: mx.array, exponent: Number) -> mx.array:
    return x * x if exponent == 2 else mx.power(x.astype(made.dtype), exponent)


def _where(made: Result, there: mx.array, x: mx.array, y: mx.array) -> mx.array:
    return mx.where(there, x, y)


def _masked(made: Result, x: mx.array, mask: mx.array, value: Number) -> mx.array:
    return mx.where(mask, mx.array(value, made.dtype), x)


def _view(made: Result, x: mx.array, *_: object) -> mx.array:
    return x.reshape(made.shape)


def _copy(made: Result, _: mx.array, x: mx.array) -> mx.array:
    return x


def _reduce(
    function: Callable[..., mx.array],
    made: Result,
    x: mx.array,
    axes: Sequence[int] | None,
    keep: bool,
) -> mx.array:
    held = x.astype(made.dtype) if function in (mx.sum, mx.mean) else x
    if not held.ndim:
        return held
    if not x.size:  # MLX 0.32.4 may never end here
        nothing = float("nan") if function is mx.mean else 0
        return mx.full(made.shape, nothing, dtype=made.dtype)
    return function(held, axis=tuple(axes) if axes else None, keepdims=keep)


def _linear(
    made: Result, x: mx.array, weight: mx.array, bias: mx.array | None
) -> mx.array:
    found = x @ weight.T
    return found if bias is None else found + bias


def _addmm(
    made: Result, bias: mx.array, x: mx.array, y: mx.array, beta: Number, alpha: Number
) -> mx.array:
    product = x @ y
    product = product if alpha == 1 else alpha * product
    if beta == 0:  # this also drops infinities and NaN in the bias
        return product
    return product + (bias if beta == 1 else beta * bias)


def _rms_norm(
    made: Result,
    x: mx.array,
    _: object,
    weight: mx.array | None,
    epsilon: float | None,
) -> mx.array:
    least = _SMALLEST if epsilon is None else epsilon
    found = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + least)
    return found if weight is None else found * weight


def _layer_norm(
    made: Result,
    x: mx.array,
    _: object,
    weight: mx.array | None,
    bias: mx.array | None,
    epsilon: float,
) -> mx.array:
    apart = x - mx.mean(x, axis=-1, keepdims=True)
    found = apart * mx.rsqrt(mx.mean(apart * apart, axis=-1, keepdims=True) + epsilon)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _rotary(made: Result, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    half = x.shape[-1] // 2
    if cos.shape[-1] == half:
        cos, sin = (mx.concatenate([each, each], axis=-1) for each in (cos, sin))
    turned = mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + turned * sin


def checked(index: mx.array, size: int, least: int = 0) -> mx.array:
    """Return indices into `size` elements, after checking each.

    If `least` is negative, indices from `least` to -1 are valid, too.

    Raises:
        IndexOutOfRange: an index is below `least`, or not below `size`.
    """
    for found in index.reshape(-1).tolist():
        if not least <= found < size:
            raise IndexOutOfRange(place="", index=found, size=size)
    return index


def _embedding(made: Result, table: mx.array, index: mx.array) -> mx.array:
    return mx.take(table, checked(index, table.shape[0]), axis=0)


def _select(made: Result, x: mx.array, axis: int, index: mx.array) -> mx.array:
    if not x.ndim:
        return x
    return mx.take(x, checked(index.reshape(-1), x.shape[axis]), axis=axis)


def _gather(made: Result, x: mx.array, axis: int, index: mx.array) -> mx.array:
    if not (x.ndim and index.size):
        return mx.broadcast_to(x.reshape(-1)[:1], made.shape) if index.size else index
    checked(index, x.shape[axis])
    along = axis % x.ndim
    part = tuple(
        slice(None) if n == along else slice(0, size)
        for n, size in enumerate(index.shape)
    )
    return mx.take_along_axis(x[part], index, axis=along)


def _indexed(made: Result, x: mx.array, indices: Sequence[mx.array]) -> mx.array:
    size = x.shape[0]
    at = checked(indices[0], size, -size)
    return mx.take(x, mx.where(at < 0, at + size, at), axis=0)


@frozen
class Packed:
    """An int8 matrix [out, in] with its scales, in the layout of MLX's products.

    Attributes:
        weight: uint32 [out, in / 4], each element of which has four weights, plus 128
            each; or int8 [out, in] if rows cannot be divided into groups.
        scales: float32 [out, groups], one for each group; float32 [out] for int8.
        biases: float32 [out, groups], -128 times the scales; None for int8.
        group: the number of weights that share a scale, 0 for int8.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group: int

    def times(self, x: mx.array) -> mx.array:
        """Multiply x [..., in] by the transpose of the matrix."""
        if self.biases is None:
            return (x @ self.weight.astype(mx.float32).T) * self.scales
        return mx.quantized_matmul(
            x,
            self.weight,
            scales=self.scales,
            biases=self.biases,
            transpose=True,
            group_size=self.group,
            bits=8,
        )


def packed(weight: np.ndarray, scale: np.ndarray) -> Packed:
    """Rearrange an int8 matrix for MLX's products."""
    rows, columns = weight.shape
    group = next((one for one in _GROUPS if columns % one == 0 and rows), 0)
    if not (group and columns):
        return Packed(mx.array(weight), mx.array(scale), None, 0)
    raised = (weight.view(np.uint8) ^ 128).view(np.uint32)
    scales = np.repeat(scale[:, None], columns // group, axis=1)
    return Packed(mx.array(raised), mx.array(scales), mx.array(-128 * scales), group)


def _transpose(made: Result, x: mx.array, one: int, other: int) -> mx.array:
    return x.swapaxes(one, other) if x.ndim else x


def _permute(made: Result, x: mx.array, order: Sequence[int]) -> mx.array:
    return x.transpose([axis % x.ndim for axis in order]) if x.ndim else x


def _slice(
    made: Result, x: mx.array, axis: int, start: int | None, end: int | None, by: int
) -> mx.array:
    where = [slice(None)] * x.ndim
    where[axis] = slice(*slice(start, end, by).indices(x.shape[axis]))
    return x[tuple(where)]


def _select_one(made: Result, x: mx.array, axis: int, index: int) -> mx.array:
    where: list[slice | int] = [slice(None)] * x.ndim
    where[axis] = index % x.shape[axis]
    return x[tuple(where)]


def _repeat(made: Result, x: mx.array, times: Sequence[int]) -> mx.array:
    return mx.tile(x, tuple(times)) if times else x


def _expand(made: Result, x: mx.array, *_: object) -> mx.array:
    return mx.broadcast_to(x, made.shape)


def _cat(made: Result, tensors: Sequence[mx.array], axis: int) -> mx.array:
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors)
    return mx.concatenate([x.astype(made.dtype) for x in kept], axis=axis)


def _stack(made: Result, tensors: Sequence[mx.array], axis: int) -> mx.array:
    return mx.stack([x.astype(made.dtype) for x in tensors], axis=axis)


def _full(made: Result, _: object, value: Number, __: object) -> mx.array:
    return mx.full(made.shape, value, dtype=made.dtype)


def _arange(made: Result, start: Number, _: Number, by: Number, __: object) -> mx.array:
    return mx.array(start + by * np.arange(*made.shape)).astype(made.dtype)


def _softmax(made: Result, x: mx.array, axis: int) -> mx.array:
    return mx.softmax(x, axis=axis, precise=True)


def _without_result(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    return lambda made, *arguments: function(*arguments)


Function = Callable[..., mx.array]
_ALIKE = [
    "abs",
    "ceil",
    "floor",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "log",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
]
FUNCTIONS: Final[Mapping[str, Function]] = {
    **{f"aten::{name}": partial(_alone, getattr(mx, name)) for name in _ALIKE},
    "aten::neg": partial(_alone, mx.negative),
    "aten::relu": partial(_alone, lambda x: mx.maximum(x, 0)),
    "aten::silu": partial(_alone, lambda x: x * mx.sigmoid(x)),
    "aten::gelu": _gelu,
    **{
        f"aten::{name}.{kind}": partial(_pair, function)
        for name, function in {
            "mul": mx.multiply, "div": mx.divide,
        }.items()
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten::{name}.{kind}": partial(_sum, function)
        for name, function in {"add": mx.add, "sub": mx.subtract}.items()
        for kind in ("Tensor", "Scalar")
    },
    "aten::rsub.Scalar": _rsub,
    "aten::maximum": partial(_pair, mx.maximum),
    "aten::minimum": partial(_pair, mx.minimum),
    "aten::pow.Tensor_Scalar": _power,
    "aten::clamp": _clamp,
    **{
        f"aten::{name}.{kind}": partial(_compare, function)
        for name, function in {
            "eq": mx.equal, "ne": mx.not_equal, "lt": mx.less, "le": mx.less_equal,
            "gt": mx.greater, "ge": mx.greater_equal,
        }.items()
        for kind in ("Tensor", "Scalar")
    },
    "aten::logical_and": _without_result(mx.logical_and),
    "aten::logical_or": _without_result(mx.logical_or),
    "aten::logical_not": _without_result(mx.logical_not),
    "aten::where.self": _where,
    "aten::masked_fill.Scalar": _masked,
    "aten::_to_copy": lambda made, x, *_: x,
    "aten::clone": _view,
    "aten::reshape": _view,
    "aten::copy": _copy,
    "aten::repeat": _repeat,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::full": _full,
    "aten::arange.start_step": _arange,
    "aten::sum.dim_IntList": partial(_reduce, mx.sum),
    "aten::mean.dim": partial(_reduce, mx.mean),
    "aten::amax": partial(_reduce, mx.max),
    "aten::amin": partial(_reduce, mx.min),
    "aten::softmax.int": _softmax,
    "aten::rms_norm": _rms_norm,
    "aten::layer_norm": _layer_norm,
    "aten::linear": _linear,
    **{f"aten::{name}": _without_result(mx.matmul) for name in ("matmul", "mm", "bmm")},
    "aten::addmm": _addmm,
    "aten::embedding": _embedding,
    "aten::gather": _gather,
    "aten::index_select": _select,
    "aten::index.Tensor": _indexed,
    "aten::scaled_dot_product_attention": _without_result(attend_product),
    "kvc::glu": _glu,
    "kvc::rotary_embedding": _rotary,
    "kvc::after": lambda made, start, count: start + count,
    "kvc::attention": _without_result(attend),
    "kvc::cache_update": _without_result(update_cache),
}  # fmt: skip
VIEWS: Final[Mapping[str, Function]] = {
    **{f"aten::{name}": _view for name in ("alias", "view", "unsqueeze")},
    "aten::squeeze.dims": _view,
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select_one,
    "aten::expand": _expand,
}
