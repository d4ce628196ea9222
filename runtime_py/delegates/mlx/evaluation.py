"""Compute a lowered function with arrays of MLX.

In: a `Function`, and arrays of its inputs and states. Out: arrays of its outputs and of
the new contents of states. MLX is lazy: MLX computes an array when the content of the
array is read.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import mlx.core as mx
import numpy as np

from kvc.runtime.delegates.lowering.context import DeviceTraits, Made, OpContext
from kvc.runtime.delegates.lowering.function import Function, Operation, Tensor
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.mlx import LINEAR, PRIMITIVES
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen

_P = Primitive
_GROUPS: Final = (128, 64, 32)  # group sizes of MLX: weights that share a scale
_DTYPES: Final = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.INT64: "int64",
    DType.INT32: "int32",
    DType.INT8: "int8",
    DType.BOOL: "bool",
}

# Products by int8 weights.


@frozen
class Packed:
    """An int8 matrix [out, in] with its scales, in the layout of MLX's products.

    Attributes:
        weight: uint32 [out, in / 4]; an element packs four weights, each raised by 128.
            Or int8 [out, in] if rows cannot be divided into groups.
        scales: float32 [out, groups], one for each group; float32 [out] for int8.
        biases: float32 [out, groups], -128 times the scales; None for int8.
        group: the number of weights that share a scale, 0 for int8.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group: int

    def times(self, x: mx.array) -> mx.array:
        """Return x [..., in] times the transpose of the matrix, [..., out]."""
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
    """Rearrange an int8 matrix [out, in], with float32 scales [out], for MLX."""
    rows, columns = weight.shape
    group = next((one for one in _GROUPS if columns % one == 0 and rows), 0)
    if not (group and columns):
        return Packed(mx.array(weight), mx.array(scale), None, 0)
    raised = (weight.view(np.uint8) ^ 128).view(np.uint32)
    scales = np.repeat(scale[:, None], columns // group, axis=1)
    return Packed(mx.array(raised), mx.array(scales), mx.array(-128 * scales), group)


def _linear_w8(
    line: OpContext, x: object, weight: object, scale: object, bias: object
) -> Made:
    """Multiply by the transpose of an int8 matrix [out, in], which stays int8."""
    build, names = line.build, [line.get(each) for each in (x, weight, scale)]
    made = build.operation(LINEAR, names, line.dtypes[0], line.shape)
    return made if bias is None else build.binary(_P.ADD, made, line.get(bias))


TRAITS: Final = DeviceTraits(
    PRIMITIVES,
    _DTYPES,
    checked=False,
    readable=True,
    zeroed=True,
    empty=True,
    forms={LINEAR: _linear_w8},
)


class Weights:
    """The named data of partitions, as arrays of MLX; each array is created once.

    Args:
        read: returns named data by id.
    """

    def __init__(self, read: Callable[[int], Array]) -> None:
        self._read = read
        self._plain: dict[int, mx.array] = {}
        self._packed: dict[tuple[int, int], Packed] = {}

    def plain(self, name: int) -> mx.array:
        """Return named data as an array with the same elements."""
        if name not in self._plain:
            self._plain[name] = mx.array(self._read(name))
        return self._plain[name]

    def times(self, weight: int, scale: int, x: mx.array) -> mx.array:
        """Return x [..., in] times the transpose of an int8 matrix, [..., out].

        Args:
            weight: the id of the matrix, int8 [out, in].
            scale: the id of the scales, float32 [out].
            x: float32 [..., in].
        """
        if (weight, scale) not in self._packed:
            values = np.ascontiguousarray(self._read(weight))
            self._packed[weight, scale] = packed(values, self._read(scale))
        return self._packed[weight, scale].times(x)

    def nbytes(self) -> Mapping[int, int]:
        """Return the number of bytes of the created arrays, by id of the named data."""
        found = {name: array.nbytes for name, array in self._plain.items()}
        for (weight, _), one in self._packed.items():
            found[weight] = found.get(weight, 0) + one.weight.nbytes
        return found

    def clear(self) -> None:
        """Release all arrays."""
        self._plain.clear()
        self._packed.clear()


# Functions.


class Evaluation:
    """A function that is ready to be computed.

    Args:
        function: the function.
        weights: the named data of the partitions.

    Attributes:
        done: the index of the operation that the last call began last.
    """

    def __init__(self, function: Function, weights: Weights) -> None:
        self._function, self._weights, self.done = function, weights, 0
        self._named = {each.name: each.data for each in function.weights}
        self._steps = [self._step(each) for each in function.operations]
        read = {name for _, inputs, _ in self._steps for name in inputs}
        read |= {*function.outputs.values(), *(each.after for each in function.states)}
        self._plain = [each for each in self._named.items() if each[0] in read]
        self._constants = {
            n: mx.array(array) for n, array in function.constants.items()
        }

    def __call__(self, given: Mapping[str, mx.array]) -> Mapping[str, mx.array]:
        """Return the outputs, and the new contents of states by the states' names."""
        found = {**given, **self._constants}
        found |= {name: self._weights.plain(number) for name, number in self._plain}
        for number, (apply, inputs, output) in enumerate(self._steps):
            self.done = number
            found[output] = apply(*[found[name] for name in inputs])
        outputs = {name: found[made] for name, made in self._function.outputs.items()}
        return outputs | {e.name: found[e.after] for e in self._function.states}

    def _step(
        self, each: Operation
    ) -> tuple[Callable[..., mx.array], Sequence[str], str]:
        """Return the function, operand names and result name of an operation."""
        if each.op == LINEAR:
            x, *names = each.inputs
            numbers = [self._named[name] for name in names]
            return partial(self._weights.times, *numbers), (x,), each.output
        if each.op in PLAIN:
            return PLAIN[each.op], each.inputs, each.output
        made = SET[each.op](self._function.tensors[each.output], **each.facts)
        return made, each.inputs, each.output


def _slice(
    kind: Tensor, axis: int, start: int, end: int, by: int
) -> Callable[..., mx.array]:
    where = (*(slice(None),) * axis, slice(start, end, by))
    return lambda x: x[where]


def _reduced(
    function: Callable[..., mx.array],
) -> Callable[..., Callable[..., mx.array]]:
    return lambda kind, axes: partial(function, axis=axes, keepdims=True)


_SAME_NAMES: Final = (
    "add divide power maximum minimum equal not_equal greater greater_equal less "
    "less_equal where matmul abs ceil floor exp log sqrt rsqrt reciprocal sin cos tanh "
    "sigmoid erf"
)
# The functions of operations that have no settings.
PLAIN: Final[Mapping[str, Callable[..., mx.array]]] = {
    **{_P(name): getattr(mx, name) for name in _SAME_NAMES.split()},
    _P.ROWS: partial(mx.take, axis=0),
    _P.SUB: mx.subtract,
    _P.MUL: mx.multiply,
    _P.MODULO: mx.remainder,
    _P.AND: mx.logical_and,
    _P.OR: mx.logical_or,
    _P.NOT: mx.logical_not,
    _P.NEG: mx.negative,
}
# Functions that return the function of an operation, given the type of the result and
# the settings of the operation.
SET: Final[Mapping[str, Callable[..., Callable[..., mx.array]]]] = {
    _P.CAST: lambda kind: lambda x: x.astype(getattr(mx, kind.dtype, mx.bool_)),
    _P.RESHAPE: lambda kind: lambda x: x.reshape(kind.shape),
    _P.BROADCAST: lambda kind: lambda x: mx.broadcast_to(x, kind.shape),
    _P.TRANSPOSE: lambda kind, order: lambda x: x.transpose(order),
    _P.SLICE: _slice,
    _P.CONCAT: lambda kind, axis: lambda *parts: mx.concatenate(parts, axis),
    _P.ALONG: lambda kind, axis: lambda x, at: mx.take_along_axis(x, at, axis),
    _P.WRITE: lambda kind, axis: partial(mx.slice_update, axes=(axis,)),
    _P.SOFTMAX: lambda kind, axis: partial(mx.softmax, axis=axis, precise=True),
    _P.SUM: _reduced(mx.sum),
    _P.MEAN: _reduced(mx.mean),
    _P.MAX: _reduced(mx.max),
    _P.MIN: _reduced(mx.min),
}
