"""Core AI that is numpy: everything of the backend `coreai` but Apple's library.

It takes the requests of `runtime_py/delegates/coreai/worker.py` in this process, reads
the functions that the library would be given, and computes them. `ASKED` is what it was
asked to do. An asset that it stores is the functions themselves.
"""

import json
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from kvc.runtime.delegates.coreai import backend, context
from kvc.runtime.delegates.subprocess_calls import WEIGHTS

ASKED: list[str] = []
Place = tuple[str, str, int, tuple[int, ...]]
Arrays = Mapping[str, np.ndarray]


class NumpyCoreAI:
    """Takes the place of `Process`."""

    def __init__(self, *_: object) -> None:
        self._held = tempfile.TemporaryDirectory()
        self.folder, self.is_lost = Path(self._held.name), False
        self._functions: dict[str, dict] = {}
        self._bound: dict[int, tuple[dict, Arrays, Arrays, Arrays]] = {}

    def ask(
        self, do: str, limit_s: float, descriptor: int | None = None, **facts: object
    ) -> object:
        assert limit_s > 0
        ASKED.append(do)
        return getattr(self, f"_{do}")(descriptor, **facts)

    def _build(self, descriptor: int | None, file: str) -> None:
        for function in json.loads((self.folder / file).read_text()):
            self._functions[function["name"]] = function

    def _store(self, descriptor: int | None, file: str, folder: str) -> list[str]:
        made = self.folder / folder
        made.mkdir()
        for name in (file, WEIGHTS):
            (made / name).write_bytes((self.folder / name).read_bytes())
        return [file, WEIGHTS]

    def _bind(
        self,
        descriptor: int,
        name: str,
        number: int,
        nbytes: int,
        inputs: list[Place],
        states: list[Place],
        outputs: list[Place],
    ) -> None:
        held = mmap.mmap(os.dup(descriptor), nbytes)
        places = (_arrays(held, each) for each in (inputs, states, outputs))
        self._bound[number] = (self._functions[name], *places)

    def _run(self, descriptor: int | None, number: int) -> None:
        function, inputs, states, outputs = self._bound[number]
        weights = (self.folder / WEIGHTS).read_bytes()
        found = run_function(function, {**inputs, **states}, weights)
        after = dict(function["states"])
        for name, array in outputs.items():
            array[...] = found[function["outputs"][name]]
        for name, array in states.items():
            array[...] = found[after[name]]

    def _forget(self, descriptor: int | None, number: int) -> None:
        del self._bound[number]

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_lost = True
        self._held.cleanup()


def _arrays(held: mmap.mmap, places: list[Place]) -> Arrays:
    return {n: np.ndarray(shape, dtype, held, at) for n, dtype, at, shape in places}


def run_function(function: dict, given: Arrays, weights: bytes) -> Arrays:
    """Return all tensors of a function, each of exactly the dtype and shape it says."""
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


def _softmax(x: np.ndarray, shape: object, axis: int) -> np.ndarray:
    made = np.exp(x - x.max(axis, keepdims=True))
    return made / made.sum(axis, keepdims=True)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def _gelu(x: np.ndarray, shape: object, approximate: str) -> np.ndarray:
    if approximate == "none":
        return (x * (1 + _erf(x / math.sqrt(2))) / 2).astype(x.dtype)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return (x * (1 + np.tanh(inner)) / 2).astype(x.dtype)


def _slice(
    x: np.ndarray, shape: object, axis: int, start: int, end: int, by: int
) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, end, by),)]


def _write(
    x: np.ndarray, update: np.ndarray, at: np.ndarray, shape: object, axis: int
) -> np.ndarray:
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
    **{
        name: _plain(getattr(np, name))
        for name in (
            *("abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "equal", "not_equal"),
            *("greater", "divide", "maximum", "minimum", "where", "matmul"),
        )
    },
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "modulo": _plain(np.fmod),
    "and": _plain(np.logical_and),
    "or": _plain(np.logical_or),
    "not": _plain(np.logical_not),
    "rsqrt": _plain(lambda x: (1 / np.sqrt(x)).astype(x.dtype)),
    "sigmoid": _plain(lambda x: (1 / (1 + np.exp(-x))).astype(x.dtype)),
    "silu": _plain(lambda x: (x / (1 + np.exp(-x))).astype(x.dtype)),
    "relu": _plain(lambda x: np.maximum(x, 0)),
    "erf": _plain(_erf),
    "gelu": _gelu,
    "softmax": _softmax,
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
    """Let the backend have this in place of the library, be that here or not."""
    ASKED.clear()
    patch.setattr(context, "Process", NumpyCoreAI)
    patch.setattr(backend, "check_installed", lambda: None)
