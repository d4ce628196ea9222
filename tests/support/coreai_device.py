"""A numpy replacement of Apple's Core AI library, for tests of the backend `coreai`.

It takes the requests of `runtime_py/delegates/coreai/worker.py` in this process, reads
the functions that the library would be given, and computes them. `ASKED` lists its
requests. An asset that it stores is a copy of the functions.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy_lowering import OPERATIONS
from numpy_process import NumpyProcess

from kvc.runtime.delegates.coreai.backend import CoreAI
from kvc.runtime.delegates.coreai.context import CORE_AI, Context
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
            made = OPERATIONS[op](*(found[n] for n in inputs), shape=shape, **facts)
            if op != "cast":
                assert made.dtype == np.dtype(dtype), (op, made.dtype, dtype)
            assert made.shape == tuple(shape), (op, made.shape, shape)
            found[output] = made.astype(dtype)
    return found


def use_numpy_core_ai(patch: pytest.MonkeyPatch) -> None:
    """Make the backend use numpy instead of the library, installed or not."""
    ASKED.clear()
    patch.setattr(Context, "_start", NumpyCoreAI)
    here = replace(CORE_AI, versions={}, linux_only=False)
    patch.setattr(CoreAI, "package", here)
