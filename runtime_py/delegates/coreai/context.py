"""Functions in Core AI, and calls bound to memory: one `Context` per program.

In: plans. Out: calls. If a program has few functions, all are built together into one
asset that stores each weight once. Otherwise each function is built when a call first
needs the function. `subprocess_calls.py` has the code that this module shares with
other backends whose library runs in a subprocess.
"""

import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kvc.runtime.delegates.coreai import worker
from kvc.runtime.delegates.lowering.function import Function, Weight
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.subprocess_calls import (
    ApartCall,
    ApartContext,
    ArrayPlaces,
    ended_if_broken,
)
from kvc.runtime.delegates.subprocesses import BUILDING_S, Process
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import MissingLibrary

# Find Core AI: a package of exactly one version, which no kvc module imports.


PACKAGE: Final = "coreai-core"
VERSION: Final = "1.0.0b3"
INSTALL: Final = "pip install 'kvc[coreai]'"
LIBRARY: Final = "Core AI of Apple"
# The minimum system version of an asset.
TARGET: Final = "v27"


def check_installed() -> None:
    """Check that the library is installed, without loading it.

    Raises:
        MissingLibrary: the library is missing, has another version, or does not support
            this machine.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine != "x86_64":
        what = f"kvc runs it on Linux and x86-64, and this is {sys.platform}, {machine}"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)
    try:
        found = version(PACKAGE)
    except PackageNotFoundError as error:
        what = f"{PACKAGE} is not installed"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL) from error
    if found != VERSION:
        what = f"{PACKAGE} is of version {found}, where {VERSION} is needed"
        raise MissingLibrary(library=LIBRARY, reason=what, install=INSTALL)


# Functions in Core AI, and calls bound to memory.


MOST_TOGETHER: Final = 8  # functions that are built when the first of them is needed
_WORK: Final = Path(worker.__file__)

Read = Callable[[Weight], Array]  # the elements of a weight, in its dtype
# All plans of a program, given a limit; None if there are more.
Together = Callable[[int], Sequence[Plan] | None]


class Context(ApartContext[Weight, "Call"]):
    """The functions of a program in Core AI; used by several threads."""

    def __init__(self) -> None:
        """Initialize without starting a subprocess."""
        super().__init__(lambda: Process(_WORK, LIBRARY, "kvc-coreai-"))

    def call(self, plan: Plan, together: Together, read: Read) -> "Call":
        """Return a call of a plan, bound to new memory.

        Args:
            plan: the plan to run.
            together: returns the plans whose functions are built together with that of
                `plan`; None if each is built alone.
            read: returns a weight's elements.
        """
        return self._bound(Call(self, plan, together, read, next(self._numbers)))

    def _build(self, process: Process, call: "Call") -> Iterable[str]:
        plans = call.together(MOST_TOGETHER) or [call.plan]
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
        """Return the files of an asset with `functions`, by paths in the asset."""
        with self._lock:
            process = self._alive()
            file = self._write(process, functions, read)
            names = process.ask("store", BUILDING_S, file=file, folder="made.aimodel")
            assert isinstance(names, list)
            folder = process.folder / "made.aimodel"
            return {name: (folder / name).read_bytes() for name in names}


class Call(ApartCall[Plan]):
    """A plan bound to memory.

    Attributes:
        together: returns the plans whose functions are built together with that of this
            plan; None if each is built alone.
        read: returns a weight's elements.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        together: Together,
        read: Read,
        number: int,
    ) -> None:
        """Allocate memory for inputs, states and outputs."""
        self.together, self.read = together, read
        kinds = {
            name: (tensor.dtype, tensor.shape)
            for name, tensor in plan.function.passed.items()
        }
        memory = "kvc-coreai", kinds
        super().__init__(context, plan, plan.function.name, number, memory)

    def placed(self) -> Mapping[str, ArrayPlaces]:
        """Return the memory locations of the function's inputs, states and outputs.

        The keys are `inputs`, `states` and `outputs`.
        """
        function = self.plan.function
        return {
            "inputs": self._placed(function.inputs),
            "states": self._placed(state.name for state in function.states),
            "outputs": self._placed(function.outputs),
        }

    def _placed(self, names: Iterable[str]) -> ArrayPlaces:
        known = self.plan.function.passed
        return [
            (n, known[n].dtype, self.memory.places[n], known[n].shape) for n in names
        ]


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
