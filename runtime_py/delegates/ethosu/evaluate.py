"""Compute a TOSA graph with numpy: exactly the integers of the specification.

In: a graph of this backend, arrays of integers for its inputs. Out: arrays for the
graph's outputs, in the dtypes of the outputs. All other numbers are int64. Matrix
products are computed in float64, which represents their 48 bits exactly and has a fast
kernel. The rounding of RESCALE is SINGLE_ROUND: half a unit is added before the shift
(TOSA 1.0, 2.13.2).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.delegates.ethosu.tosa import Element, Operator, TosaGraph
from kvc.runtime.memory.arrays import Array

Wide = NDArray[np.int64]
_BOUNDS: Final = {
    element: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for element, bits in ((Element.INT8, 8), (Element.INT16, 16), (Element.INT32, 32))
}


def evaluate(graph: TosaGraph, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a graph."""
    values: dict[str, Wide] = {
        name: tensor.content.astype(np.int64)
        for name, tensor in graph.tensors.items()
        if tensor.content is not None
    }
    for name, given in zip(graph.inputs, inputs, strict=True):
        values[name] = given.astype(np.int64)
    for operator in graph.operators:
        tensor = graph.tensors[operator.output]
        arguments = [values[name] for name in operator.inputs]
        made = _COMPUTE[operator.kind](operator, *arguments)
        if operator.kind == "RESCALE":
            made = np.clip(made, *_BOUNDS[tensor.element])
        assert made.shape == tensor.shape, f"{operator.kind} makes {made.shape}"
        values[operator.output] = made
    return [
        values[name].astype(graph.tensors[name].element.numpy) for name in graph.outputs
    ]


def _rescale(
    operator: Operator, x: Wide, multiplier: Wide, shift: Wide, zero: Wide, out: Wide
) -> Wide:
    shifted = (x - zero) * multiplier + (np.int64(1) << (shift - 1))
    result: Wide = (shifted >> shift) + out
    return result.reshape(x.shape)  # also without any axis, if there is one multiplier


def _convolution(
    operator: Operator, x: Wide, weight: Wide, bias: Wide, zero: Wide, other: Wide
) -> Wide:
    patches = _patches(operator, x - zero, weight.shape[1:3])
    rows = patches.reshape(*patches.shape[:3], -1)
    return _matmul(rows, (weight - other).reshape(len(weight), -1).T) + bias


def _matmul(one: Wide, other: Wide) -> Wide:
    """Multiply matrices of integers; the sums need less than 53 bits."""
    made = np.matmul(one.astype(np.float64), other.astype(np.float64))
    exact: Wide = made.astype(np.int64)
    return exact


def _multiply(_: Operator, one: Wide, other: Wide, shift: Wide) -> Wide:
    (bits,) = shift.tolist()
    made: Wide = one * other
    return (made + (1 << (bits - 1))) >> bits if bits else made


def _shifted_left(_: Operator, one: Wide, other: Wide) -> Wide:
    """Shift the bits of int32 left; bits that do not fit int32 are dropped."""
    made: Wide = (one << other).astype(np.int32).astype(np.int64)
    return made


def _leading_zeros(operator: Operator, x: Wide) -> Wide:
    """Count the leading zeros of int32; 0 for negative numbers."""
    _, bits = np.frexp(x.astype(np.float64))  # x is below 2 ** bits
    made: Wide = np.where(x < 0, 0, 32 - bits)
    return made


def _table(_: Operator, x: Wide, entries: Wide) -> Wide:
    if len(entries) == 256:
        return entries[x + 128]
    place, rest = (x + (1 << 15)) >> 7, x & 127
    made: Wide = (entries[place] << 7) + (entries[place + 1] - entries[place]) * rest
    return made


def _scatter(_: Operator, values: Wide, indices: Wide, rows: Wide) -> Wide:
    made = values.copy()
    np.put_along_axis(made, indices[:, :, None], rows, 1)
    return made


def _depthwise(
    operator: Operator, x: Wide, weight: Wide, bias: Wide, zero: Wide, other: Wide
) -> Wide:
    patches = _patches(operator, x - zero, weight.shape[:2])
    made = np.einsum("nhwyxc,yxcm->nhwcm", patches, weight - other)
    flat: Wide = made.reshape(*made.shape[:3], -1) + bias
    return flat


def _patches(operator: Operator, x: Wide, kernel: Sequence[int]) -> Wide:
    """Return the patches under a kernel, [n, height, width, y, x, channels]."""
    names = ("pad", "stride", "dilation")
    pad, stride, dilation = (operator.attributes[name] for name in names)
    assert isinstance(pad, tuple)
    assert isinstance(stride, tuple)
    assert isinstance(dilation, tuple)
    padded = np.pad(x, ((0, 0), pad[:2], pad[2:], (0, 0)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, (1, 2))
    seen = seen[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]
    return seen.transpose(0, 1, 2, 4, 5, 3)


def _slice(operator: Operator, x: Wide, start: Wide, size: Wide) -> Wide:
    return x[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]


def _concat(operator: Operator, *values: Wide) -> Wide:
    axis = operator.attributes["axis"]
    assert isinstance(axis, int)
    return np.concatenate(values, axis)


def _transpose(operator: Operator, x: Wide) -> Wide:
    order = operator.attributes["perms"]
    assert isinstance(order, tuple)
    return x.transpose(order)


_COMPUTE: Final[Mapping[str, Callable[..., Wide]]] = {
    "CONV2D": _convolution,
    "DEPTHWISE_CONV2D": _depthwise,
    "MATMUL": lambda _, one, other, a, b: _matmul(one - a, other - b),
    "ADD": lambda _, one, other: one + other,
    "SUB": lambda _, one, other: one - other,
    "MAXIMUM": lambda _, one, other: np.maximum(one, other),
    "MINIMUM": lambda _, one, other: np.minimum(one, other),
    "LOGICAL_LEFT_SHIFT": _shifted_left,
    "ARITHMETIC_RIGHT_SHIFT": lambda _, one, other: one >> other,
    "CLZ": _leading_zeros,
    "REDUCE_MAX": lambda _, x: x.max(-1, keepdims=True),
    "REDUCE_SUM": lambda _, x: x.sum(-1, keepdims=True),
    "MUL": _multiply,
    "TABLE": _table,
    "SCATTER": _scatter,
    "CONCAT": _concat,
    "RESHAPE": lambda _, x, shape: x.reshape(shape),
    "SLICE": _slice,
    "TILE": lambda _, x, times: np.tile(x, times),
    "TRANSPOSE": _transpose,
    "RESCALE": _rescale,
    "IDENTITY": lambda _, x: x,
}
