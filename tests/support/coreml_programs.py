"""Programs of the backend `coreml`, and their functions computed by numpy."""

from dataclasses import replace

import numpy as np
import tiny_runs
from mil_numpy import Interpreter

from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program
from kvc.runtime.delegates.coreml.functions import functions_of
from kvc.runtime.delegates.coreml.mil import Function

NEAR = 2e-3  # of the largest number: what float16 has


def recipe(name: str, **buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe(name), buckets=buckets)


def near(found: np.ndarray, wanted: np.ndarray, far: float = NEAR) -> bool:
    return tiny_runs.near(found, wanted, far)


def functions(program: Program) -> tuple[Function, ...]:
    return functions_of(program._engine.program)


def interpreter(program: Program) -> Interpreter:
    made = program._engine.program
    arrays = {n: program.data[one.name] for n, one in enumerate(made.names)}
    return Interpreter(functions(program), lambda name: arrays[name].array())
