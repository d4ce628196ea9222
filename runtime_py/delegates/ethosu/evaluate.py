"""Compute a TOSA graph with numpy: the integers that the specification says, exactly.

In: a graph of this backend, int8 arrays for its inputs. Out: int8 arrays. The rounding
of RESCALE is SINGLE_ROUND: half a step is added before the shift (TOSA 1.0, 2.13.2).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvc.runtime.arrays import Array
from kvc.runtime.delegates.ethosu.tosa import Element, Operator, TosaGraph

Wide = NDArray[np.int64]
_BOUNDS: Final = {Element.INT8: (-128, 127), Element.INT32: (-(1 << 31), (1 << 31) - 1)}


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
    return [values[name].astype(np.int8) for name in graph.outputs]


def _rescale(
    operator: Operator, x: Wide, multiplier: Wide, shift: Wide, zero: Wide, out: Wide
) -> Wide:
    shifted = (x - zero) * multiplier + (np.int64(1) << (shift - 1))
    result: Wide = (shifted >> shift) + out
    return result


def _convolution(
    operator: Operator, x: Wide, weight: Wide, bias: Wide, zero: Wide, other: Wide
) -> Wide:
    patches = _patches(operator, x - zero, weight.shape[1:3])
    return np.tensordot(patches, weight - other, ((3, 4, 5), (1, 2, 3))) + bias


def _depthwise(
    operator: Operator, x: Wide, weight: Wide, bias: Wide, zero: Wide, other: Wide
) -> Wide:
    patches = _patches(operator, x - zero, weight.shape[:2])
    made = np.einsum("nhwyxc,yxcm->nhwcm", patches, weight - other)
    flat: Wide = made.reshape(*made.shape[:3], -1) + bias
    return flat


def _patches(operator: Operator, x: Wide, kernel: Sequence[int]) -> Wide:
    """Return what a kernel sees, [n, height, width, y, x, channels]."""
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
    "ADD": lambda _, one, other: one + other,
    "SUB": lambda _, one, other: one - other,
    "MUL": lambda _, one, other, shift: one * other,
    "TABLE": lambda _, x, entries: entries[x + 128],
    "CONCAT": _concat,
    "RESHAPE": lambda _, x, shape: x.reshape(shape),
    "SLICE": _slice,
    "TILE": lambda _, x, times: np.tile(x, times),
    "TRANSPOSE": _transpose,
    "RESCALE": _rescale,
    "IDENTITY": lambda _, x: x,
}
