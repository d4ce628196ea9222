"""Compile programs for the backend `coreml`, and compute their functions with numpy."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import mil_values
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


def computed(
    package: Path,
    calls: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    folder: Path,
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    told, given, made = folder / "calls.json", folder / "in.npz", folder / "out.npz"
    told.write_text(json.dumps([name for name, _ in calls]))
    arrays = {
        f"{number}.{name}": array
        for number, (_, inputs) in enumerate(calls)
        for name, array in inputs.items()
    }
    np.savez(given, **arrays)
    script = Path(mil_values.__file__)
    command = [sys.executable, str(script), *map(str, (package, told, given, made))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    with np.load(made) as found:
        results = [_starting(found, f"{number}.") for number in range(len(calls))]
        return results, _starting(found, "state.")


def _starting(found: Mapping[str, np.ndarray], start: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(start): found[k] for k in found if k.startswith(start)}
