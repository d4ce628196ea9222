"""Functions in Core AI, and calls bound to memory: one `Context` per program.

In: plans. Out: calls. If a program has few functions, all are built together into one
asset that stores each weight once. Otherwise each function is built when a call first
needs the function.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.runtime.delegates.lowering.function import Function, Weight
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.subprocess_calls import (
    ApartCall,
    ApartContext,
    Passed,
    ended_if_broken,
)
from kvc.runtime.delegates.subprocesses import BUILDING_S, Process
from kvc.runtime.memory.arrays import Array

CORE_AI: Final = LibraryPackage(
    "Core AI of Apple", "coreai", {"coreai-core": "1.0.0b3"}, linux_only=True
)
# The minimum system version of an asset.
TARGET: Final = "v27"
MOST_TOGETHER: Final = 8  # the most functions that are built together

# Returns the plans to build together, given the most plans; None to build each alone.
Together = Callable[[int], Sequence[Plan] | None]
Read = Callable[[Weight], Array]  # the elements of a weight, in the weight's dtype

Call = ApartCall[Plan, Weight, Together]


class Context(ApartContext[Plan, Weight, Together]):
    """The functions of a program in Core AI; used by several threads."""

    package, work = CORE_AI, Path(__file__).with_name("worker.py")

    def describe(self, plan: Plan) -> tuple[str, Passed]:
        """Return the name of a plan's function, and the inputs, states and outputs."""
        function = plan.function
        names = {
            "inputs": function.inputs,
            "states": [state.name for state in function.states],
            "outputs": [*function.outputs],
        }
        known = {n: (each.dtype, each.shape) for n, each in function.passed.items()}
        passed = {use: {n: known[n] for n in some} for use, some in names.items()}
        return function.name, passed

    def _build(self, process: Process, call: Call) -> Iterable[str]:
        plans = call.how(MOST_TOGETHER) or [call.plan]
        functions = [plan.function for plan in plans]
        file = self._write(process, functions, call.read)
        process.ask("build", BUILDING_S, file=file)
        return [each.name for each in functions]

    def _write(
        self, process: Process, functions: Sequence[Function], read: Read
    ) -> str:
        """Write functions to a file in the work folder, and return the file's name.

        Weights of the functions that were not written earlier are written too.
        """
        with ended_if_broken(process):
            weights = (weight for each in functions for weight in each.weights)
            self._write_weights(process, weights, read)
            places = {weight: at for weight, (at, _) in self._offsets.items()}
            found = [_as_json(each, places) for each in functions]
            file = f"functions{next(self._numbers)}.json"
            (process.folder / file).write_text(json.dumps(found))
        return file

    def store(self, functions: Sequence[Function], read: Read) -> Mapping[str, bytes]:
        """Return the files of an asset with `functions`, by paths in the asset.

        Args:
            functions: the functions of the asset.
            read: returns the elements of a weight.

        Raises:
            NativeCallFailed: the library refuses a function.
            WorkerLost: the library ended its process, or took too long.
        """
        with self._lock:
            process = self._alive()
            file = self._write(process, functions, read)
            names = process.ask("store", BUILDING_S, file=file, folder="made.aimodel")
            assert isinstance(names, list)
            folder = process.folder / "made.aimodel"
            return {name: (folder / name).read_bytes() for name in names}


def _as_json(function: Function, places: Mapping[Weight, int]) -> dict[str, object]:
    """Return a function for `json`; `places` has the file offset of each weight."""
    return {
        "name": function.name,
        "tensors": {k: [t.dtype, list(t.shape)] for k, t in function.tensors.items()},
        "inputs": list(function.inputs),
        "states": [[state.name, state.after] for state in function.states],
        "outputs": dict(function.outputs),
        "weights": {weight.name: places[weight] for weight in function.weights},
        "constants": {
            name: array.reshape(-1).tolist()
            for name, array in function.constants.items()
        },
        "steps": [
            [each.op, list(each.inputs), each.output, dict(each.facts)]
            for each in function.operations
        ],
    }
