"""Compute functions of MIL (the program form of Core ML) by numpy, without coremltools.

A call is computed in float64 or int64 and rounded once to its dtype; shapes and dtypes
must be those that the calls declare. States begin as zeros and keep their values from
call to call.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
from numpy_operators import ONE, TWO, gelu, softmax

from kvc.runtime.delegates.coreml.mil import DTYPES, Call, Data, Number, Numbers, Var
from kvc.runtime.delegates.coreml.package import stored


class Interpreter:
    """Runs functions of one package, which share states.

    `data` is called with the name of named data and returns its array.
    """

    def __init__(self, functions, data) -> None:
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


def _gelu(x, mode):
    assert mode in ("EXACT", "TANH_APPROXIMATION")
    return gelu(x, mode != "EXACT")


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


def _one(name):
    return lambda x: ONE[name](x)


def _two(name):
    return lambda x, y: TWO[name](x, y)


_ONE = "abs ceil cos erf exp floor relu sigmoid silu sin sqrt tanh"
_TWO = (
    "add sub mul maximum minimum equal not_equal greater greater_equal less less_equal"
)
KINDS: Mapping[str, Callable[..., object]] = {
    **{name: _one(name) for name in _ONE.split()},
    **{name: _two(name) for name in _TWO.split()},
    "cast": lambda x, dtype: np.trunc(x) if dtype == "int32" else x,
    "concat": lambda values, axis: np.concatenate(values, axis),
    "constexpr_blockwise_shift_scale": _widened,
    "gather": _gather,
    "gather_along_axis": lambda x, indices, axis: np.take_along_axis(x, indices, axis),
    "gelu": _gelu,
    "identity": lambda x: x,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log": lambda x, epsilon: np.log(x + epsilon),
    "logical_and": _two("and"),
    "logical_not": _one("not"),
    "logical_or": _two("or"),
    "logical_xor": _two("xor"),
    "matmul": lambda x, y, transpose_y=False: x @ (y.mT if transpose_y else y),
    "mod": lambda x, y: x % y,
    "pow": _two("power"),
    "real_div": _two("divide"),
    "reduce_max": _reduce(np.max),
    "reduce_mean": _reduce(np.mean),
    "reduce_min": _reduce(np.min),
    "reduce_sum": _reduce(np.sum),
    "reshape": _reshape,
    "select": _select,
    "slice_by_index": _slice,
    "slice_update": _slice_update,
    "softmax": softmax,
    "tile": lambda x, reps: np.tile(x, reps),
    "transpose": lambda x, perm: x.transpose(perm),
}
