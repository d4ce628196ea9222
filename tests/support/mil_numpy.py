"""Compute functions of MIL by numpy, as they are before coremltools sees them.

A call is computed in float64 or int64 and rounded once to its dtype; shapes and dtypes
are those that the calls say. States begin as zeros and go from call to call.
"""

from collections.abc import Callable, Mapping, Sequence
from math import erf, prod

import numpy as np

from kvc.runtime.delegates.coreml.mil import (
    DTYPES,
    Call,
    Data,
    Function,
    Number,
    Numbers,
    Var,
)
from kvc.runtime.delegates.coreml.package import stored

_erf = np.vectorize(erf, otypes=[np.float64])


class Interpreter:
    """Functions of a package that share states; `data` returns named data."""

    def __init__(
        self, functions: Sequence[Function], data: Callable[[int], np.ndarray]
    ) -> None:
        self._functions = {one.name: one for one in functions}
        self._data = data
        self.states: dict[str, np.ndarray] = {}

    def __call__(self, name: str, **given: np.ndarray) -> dict[str, np.ndarray]:
        function = self._functions[name]
        values: dict[str, np.ndarray] = {}
        for var in function.inputs:
            values[var.name] = given.pop(var.name).astype(DTYPES[var.dtype])
            assert values[var.name].shape == var.shape, var
        assert not given, f"{name} takes no {[*given]}"
        for var in function.states:
            state = self.states.setdefault(var.name, np.zeros(var.shape, np.float16))
            assert (state.shape, var.dtype) == (var.shape, "fp16")
        with np.errstate(all="ignore"):
            for call in function.calls:
                made = self._run(call, values)
                assert made.shape == call.result.shape, call
                values[call.result.name] = made.astype(DTYPES[call.result.dtype])
                if call.kind == "coreml_update_state":
                    (state,) = (v for n, v in call.inputs if n == "state")
                    self.states[state.name] = values[call.result.name]
        return {var.name: values[var.name] for var in function.outputs}

    def _run(self, call: Call, values: Mapping[str, np.ndarray]) -> np.ndarray:
        given = dict(call.inputs)
        if call.kind == "read_state":
            return self.states[given["input"].name]
        if call.kind == "coreml_update_state":
            return self._value(given["value"], values)
        inputs = {name: self._value(one, values) for name, one in given.items()}
        return np.asarray(KINDS[call.kind](**inputs))

    def _value(self, given: object, values: Mapping[str, np.ndarray]) -> object:
        match given:
            case Var():
                return _wide(values[given.name])
            case Data() | Numbers():
                return _wide(stored(given, self._data, "numpy"))
            case Number():
                return _wide(np.array(given.value).astype(DTYPES[given.dtype]))
            case tuple() if any(isinstance(one, Var | Data | Numbers) for one in given):
                return [self._value(one, values) for one in given]
            case _:
                return given


def _wide(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array if array.dtype.kind == "b" else array.astype(np.int64)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x, mode):
    if mode == "EXACT":
        return x * (1 + _erf(x / np.sqrt(2))) / 2
    assert mode == "TANH_APPROXIMATION"
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def _softmax(x, axis):
    raised = np.exp(x - x.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


def _layer_norm(x, axes, epsilon):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _reduce(function):
    return lambda x, axes, keep_dims: function(x, axis=axes, keepdims=keep_dims)


def _slice(x, begin, end, stride):
    return x[tuple(map(slice, begin, end, stride))]


def _slice_update(x, update, begin, end):
    made, place = x.copy(), tuple(map(slice, begin, end))
    assert made[place].shape == update.shape, "it is written outside of the cache"
    made[place] = update
    return made


def _gather(x, indices, axis):
    assert indices.min() >= 0
    return np.take(x, indices, axis)


def _widened(data, scale):
    assert scale.shape == (data.shape[0], 1)
    return data * scale


def _select(cond, a, b):
    assert cond.shape == np.broadcast_shapes(a.shape, b.shape)
    return np.where(cond, a, b)


def _linear(x, weight, bias=0.0):
    assert x.ndim == weight.ndim == 2
    return x @ weight.T + bias


def _reshape(x, shape):
    assert prod(shape) == x.size
    return x.reshape(shape)


KINDS: Mapping[str, Callable[..., object]] = {
    "abs": lambda x: abs(x),
    "add": lambda x, y: x + y,
    "cast": lambda x, dtype: np.trunc(x) if dtype == "int32" else x,
    "ceil": lambda x: np.ceil(x),
    "concat": lambda values, axis: np.concatenate(values, axis),
    "constexpr_blockwise_shift_scale": _widened,
    "cos": lambda x: np.cos(x),
    "equal": lambda x, y: x == y,
    "erf": lambda x: _erf(x),
    "exp": lambda x: np.exp(x),
    "floor": lambda x: np.floor(x),
    "gather": _gather,
    "gather_along_axis": lambda x, indices, axis: np.take_along_axis(x, indices, axis),
    "gelu": _gelu,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "identity": lambda x: x,
    "layer_norm": _layer_norm,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "linear": _linear,
    "log": lambda x, epsilon: np.log(x + epsilon),
    "logical_and": lambda x, y: x & y,
    "logical_not": lambda x: ~x,
    "logical_or": lambda x, y: x | y,
    "logical_xor": lambda x, y: x ^ y,
    "matmul": lambda x, y, transpose_y=False: (
        x @ (y.swapaxes(-1, -2) if transpose_y else y)
    ),
    "maximum": lambda x, y: np.maximum(x, y),
    "minimum": lambda x, y: np.minimum(x, y),
    "mod": lambda x, y: x % y,
    "mul": lambda x, y: x * y,
    "not_equal": lambda x, y: x != y,
    "pow": lambda x, y: x**y,
    "real_div": lambda x, y: x / y,
    "reduce_max": _reduce(np.max),
    "reduce_mean": _reduce(np.mean),
    "reduce_min": _reduce(np.min),
    "reduce_sum": _reduce(np.sum),
    "relu": lambda x: np.maximum(x, 0),
    "reshape": _reshape,
    "select": _select,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "sin": lambda x: np.sin(x),
    "slice_by_index": _slice,
    "slice_update": _slice_update,
    "softmax": _softmax,
    "sqrt": lambda x: np.sqrt(x),
    "sub": lambda x, y: x - y,
    "tanh": lambda x: np.tanh(x),
    "tile": lambda x, reps: np.tile(x, reps),
    "transpose": lambda x, perm: x.transpose(perm),
}
