"""A numpy replacement of Apple's Core AI library, for tests of the backend `coreai`.

It takes the requests of `runtime_py/delegates/coreai/worker.py` in this process, reads
the functions that the library would be given, and computes them. `ASKED` lists its
requests. An asset that it stores is a copy of the functions.
"""

import json
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy_operators import ONE, TWO, gelu, softmax
from numpy_process import NumpyProcess

from kvc.runtime.delegates.coreai import backend, context
from kvc.runtime.delegates.subprocess_calls import WEIGHTS

ASKED: list[str] = []
Arrays = Mapping[str, np.ndarray]


class NumpyCoreAI(NumpyProcess):
    asked = ASKED

    def _build(self, descriptor: int | None, file: str) -> None:
        for function in json.loads((self.folder / file).read_text()):
            self._known[function["name"]] = function

    def _store(self, descriptor: int | None, file: str, folder: str) -> list[str]:
        made = self.folder / folder
        made.mkdir()
        for name in (file, WEIGHTS):
            (made / name).write_bytes((self.folder / name).read_bytes())
        return [file, WEIGHTS]

    def _run(self, descriptor: int | None, number: int) -> None:
        function, inputs, states, outputs = self._bound[number]
        weights = (self.folder / WEIGHTS).read_bytes()
        found = run_function(function, {**inputs, **states}, weights)
        after = dict(function["states"])
        for name, array in outputs.items():
            array[...] = found[function["outputs"][name]]
        for name, array in states.items():
            array[...] = found[after[name]]


def run_function(function: dict, given: Arrays, weights: bytes) -> Arrays:
    """Run a function; return all its tensors, which must have the declared shapes.

    Args:
        function: the description of the function, from JSON.
        given: the inputs and states, by tensor name.
        weights: the bytes of the weights file.
    """
    found = {name: array.copy() for name, array in given.items()}
    for name, numbers in function["constants"].items():
        dtype, shape = function["tensors"][name]
        found[name] = np.array(numbers, dtype).reshape(shape)
    for name, at in function["weights"].items():
        dtype, shape = function["tensors"][name]
        count = math.prod(shape)
        found[name] = np.frombuffer(weights, dtype, count, at).reshape(shape)
    with np.errstate(all="ignore"):
        for op, inputs, output, facts in function["steps"]:
            dtype, shape = function["tensors"][output]
            made = OPERATORS[op](*(found[n] for n in inputs), shape=shape, **facts)
            if op != "cast":
                assert made.dtype == np.dtype(dtype), (op, made.dtype, dtype)
            assert made.shape == tuple(shape), (op, made.shape, shape)
            found[output] = made.astype(dtype)
    return found


def _slice(x: np.ndarray, shape, axis, start, end, by) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, end, by),)]


def _write(x: np.ndarray, update, at, shape, axis) -> np.ndarray:
    first, made = int(at[0]), x.copy()
    assert 0 <= first <= x.shape[axis] - update.shape[axis]
    span = slice(first, first + update.shape[axis])
    made[(slice(None),) * axis + (span,)] = update
    return made


def _rows(table: np.ndarray, index: np.ndarray, shape: object) -> np.ndarray:
    assert 0 <= index.min() <= index.max() < len(table)
    return table[index]


def _plain(function: Callable) -> Callable:
    return lambda *arrays, shape: function(*arrays)


def _reduced(function: Callable) -> Callable:
    return lambda x, shape, axes: function(x, axis=tuple(axes), keepdims=True)


OPERATORS: Mapping[str, Callable] = {
    **{name: _plain(function) for name, function in (ONE | TWO).items()},
    "where": _plain(np.where),
    "modulo": _plain(np.fmod),
    "gelu": lambda x, shape, approximate: gelu(x, approximate != "none"),
    "softmax": lambda x, shape, axis: softmax(x, axis),
    "cast": lambda x, shape: x,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, shape, order: x.transpose(order),
    "slice": _slice,
    "broadcast": lambda x, shape: np.broadcast_to(x, shape),
    "concat": lambda *parts, shape, axis: np.concatenate(parts, axis),
    "rows": _rows,
    "along": lambda x, index, shape, axis: np.take_along_axis(x, index, axis),
    "write": _write,
    "sum": _reduced(np.sum),
    "mean": _reduced(np.mean),
    "max": _reduced(np.max),
    "min": _reduced(np.min),
}


def use_numpy_core_ai(patch: pytest.MonkeyPatch) -> None:
    """Make the backend use numpy instead of the library, installed or not."""
    ASKED.clear()
    patch.setattr(context, "Process", NumpyCoreAI)
    patch.setattr(backend, "check_installed", lambda: None)
