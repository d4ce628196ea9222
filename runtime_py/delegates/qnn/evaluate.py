"""Run a model of integers with numpy: the reference for the device.

In: a plan whose tensors are on grids. Out: the plan's outputs. Each node is computed in
float32 from the numbers that its operands' integers stand for, and its result is
rounded to the nearest number of the result's grid, halves to even. The device can be
off by a few units of the grid, as the README of this folder describes.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvc.runtime.delegates.qnn.model_file import Attribute, Model
from kvc.runtime.delegates.qnn.plan import Plan, Stored
from kvc.runtime.memory.arrays import Array

Read = Callable[[Stored], Array]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.integer[Any]]
Attributes = Mapping[str, Attribute]
_erf: Final = np.frompyfunc(math.erf, 1, 1)


class HostContext:
    """Takes the place of `Context` when the device's library is missing."""

    def call(self, plan: Plan, read: Read, found: object) -> "HostCall":
        """Return a call of a plan, bound to new memory."""
        return HostCall(plan, read)


class HostCall:
    """A plan that numpy runs.

    Attributes:
        plan: the plan.
        arrays: memory of inputs and outputs, by name.
    """

    def __init__(self, plan: Plan, read: Read) -> None:
        """Allocate the memory of inputs and outputs, and read the weights."""
        self.plan, model = plan, plan.model
        values = (*model.inputs, *model.outputs)
        self.arrays: Mapping[str, Array] = {
            value.name: np.zeros(value.shape, value.dtype) for value in values
        }
        self._constants = {**(model.constants or {})}
        self._constants |= {each.name: read(each) for each in plan.stored}

    def run(self) -> None:
        """Compute the outputs from the inputs."""
        given = {
            value.name: self.arrays[value.name] for value in self.plan.model.inputs
        }
        made = evaluate(self.plan.model, {**self._constants, **given})
        for name, array in made.items():
            self.arrays[name][...] = array

    def close(self) -> None:
        """Do nothing: no resource is held."""


def evaluate(model: Model, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a model, by name.

    Args:
        model: a model with operators that are implemented for integers.
        given: inputs, weights and constants, by name.
    """
    values = dict(given)
    with np.errstate(all="ignore"):
        for node in model.nodes:
            values[node.outputs[0]] = _OPERATORS[node.op](
                node.attributes, *(values[n] for n in node.inputs)
            )
    return {value.name: values[value.name] for value in model.outputs}


def _widen(
    attributes: Attributes, x: Integers, scale: Floats, zero: Integers
) -> Floats:
    """Return (x - zero) * scale; a matrix has a scale for each column."""
    steps = (x.astype(np.int32) - zero.astype(np.int32)).astype(np.float32)
    made: Floats = steps * scale
    return made


def _round(
    attributes: Attributes, x: Floats, scale: Floats, zero: Integers
) -> Integers:
    ends = np.iinfo(zero.dtype)
    steps = np.rint(np.nan_to_num(x / scale)) + zero.astype(np.float32)
    whole: Integers = np.clip(steps, ends.min, ends.max).astype(zero.dtype)
    return whole


def _softmax(attributes: Attributes, x: Floats) -> Floats:
    shares = np.exp(x - x.max(-1, keepdims=True))
    made: Floats = shares / shares.sum(-1, keepdims=True)
    return made


def _rms_norm(attributes: Attributes, x: Floats, weight: Floats) -> Floats:
    least = attributes["epsilon"]
    assert isinstance(least, float)
    mean = np.mean(x * x, -1, keepdims=True)
    made: Floats = x / np.sqrt(mean + np.float32(least)) * weight
    return made


def _mean(attributes: Attributes, x: Floats, axes: Integers) -> Floats:
    made: Floats = np.mean(x, tuple(axes.tolist()), keepdims=True)
    return made


def _gelu(attributes: Attributes, x: Floats) -> Floats:
    if attributes["approximate"] == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        opened = np.tanh(inner)
    else:
        opened = np.asarray(_erf(x / math.sqrt(2)), np.float32)
    return np.asarray(x * (1 + opened) / 2, np.float32)


def _slice(
    attributes: Attributes, x: Array, start: Array, end: Array, axis: Array, by: Array
) -> Array:
    spans = [slice(None)] * x.ndim
    spans[int(axis[0])] = slice(int(start[0]), int(end[0]), int(by[0]))
    return x[tuple(spans)]


def _concat(attributes: Attributes, *some: Array) -> Array:
    axis = attributes["axis"]
    assert isinstance(axis, int)
    return np.concatenate(some, axis)


def _transpose(attributes: Attributes, x: Array) -> Array:
    order = attributes["perm"]
    assert isinstance(order, tuple)
    return x.transpose(order)


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    def operator(attributes: Attributes, *arrays: Array) -> Array:
        return function(*arrays)

    return operator


_OPERATORS: Final[Mapping[str, Callable[..., Array]]] = {
    "DequantizeLinear": _widen,
    "QuantizeLinear": _round,
    "Softmax": _softmax,
    "RMSNormalization": _rms_norm,
    "ReduceMean": _mean,
    "Gelu": _gelu,
    "Slice": _slice,
    "Concat": _concat,
    "Transpose": _transpose,
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Max": _plain(np.maximum),
    "Min": _plain(np.minimum),
    "MatMul": _plain(np.matmul),
    "Neg": _plain(np.negative),
    "Abs": _plain(np.abs),
    "Relu": _plain(lambda x: np.maximum(x, 0)),
    "Sigmoid": _plain(lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": _plain(np.tanh),
    "Reshape": _plain(lambda x, shape: x.reshape(shape)),
    "Expand": _plain(lambda x, shape: np.broadcast_to(x, shape)),
}
