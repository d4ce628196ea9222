"""Functions that Core AI has, and calls that are bound to memory: one `Context`.

In: plans. Out: calls. The functions of a program are built together into one asset, in
which each weight is stored once; where there are more than a few, each is built when a
call first needs it. Where the process has been lost, the next call builds again.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from kvc.runtime.arenas import align_up
from kvc.runtime.arrays import Array
from kvc.runtime.delegates.apart import BUILDING_S, RUNNING_S, Process
from kvc.runtime.delegates.coreai import worker
from kvc.runtime.delegates.coreai.function import Function, Weight
from kvc.runtime.delegates.coreai.library import LIBRARY
from kvc.runtime.delegates.coreai.plan import Plan
from kvc.runtime.delegates.shared_arrays import SharedArrays
from kvc.schema.errors import NativeCallFailed, WorkerLost

WEIGHTS: Final = "weights.bin"
MOST_TOGETHER: Final = 8  # functions that are built when the first of them is needed
_WORK: Final = Path(worker.__file__)

Read = Callable[[Weight], Array]  # the elements of a weight, in its dtype
# All plans of a program, with a limit; None where they are more.
Together = Callable[[int], Sequence[Plan] | None]
Placed = tuple[str, str, int, tuple[int, ...]]  # name, dtype, offset, shape


class Context:
    """What a program has in Core AI; used from many threads."""

    def __init__(self) -> None:
        """Begin without a process."""
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._built: set[str] = set()
        self._offsets: dict[Weight, tuple[int, int]] = {}
        self._numbers = count()

    @property
    def stored(self) -> Mapping[Weight, int]:
        """Return the bytes of the weights in the file."""
        offsets = self._offsets.copy()  # other threads build functions
        return {weight: nbytes for weight, (_, nbytes) in offsets.items()}

    def call(self, plan: Plan, together: Together, read: Read) -> "Call":
        """Return a call of a plan, bound to memory of its own.

        Args:
            plan: to run.
            together: returns what to build with it.
            read: returns weights.
        """
        with self._lock:
            call = Call(self, plan, together, read, next(self._numbers))
            try:
                self._ready(call)
            except BaseException:
                call.memory.close()
                raise
            return call

    def run(self, call: "Call") -> None:
        """Run a call.

        Raises:
            NativeCallFailed: the library refuses.
            WorkerLost: it ended its process, or takes too long.
        """
        with self._lock:
            process = self._ready(call)
            process.ask("run", RUNNING_S, number=call.number)

    def _ready(self, call: "Call") -> Process:
        """Return the process, in which the call is bound."""
        process = self._alive()
        if call.process is process:
            return process
        function = call.plan.function
        if function.name not in self._built:
            some = call.together(MOST_TOGETHER) or [call.plan]
            self._build(process, [each.function for each in some], call.read)
        process.ask(
            "bind",
            RUNNING_S,
            call.memory.descriptor,
            name=function.name,
            number=call.number,
            nbytes=call.memory.nbytes,
            inputs=call.placed(function.inputs),
            states=call.placed([state.name for state in function.states]),
            outputs=call.placed([*function.outputs]),
        )
        call.process = process
        return process

    def _alive(self) -> Process:
        if self._process is None or self._process.is_lost:
            self._built.clear()
            self._offsets.clear()
            self._process = Process(_WORK, LIBRARY, "kvc-coreai-")
        return self._process

    def _build(
        self, process: Process, functions: Sequence[Function], read: Read
    ) -> None:
        file = self._write(process, functions, read)
        process.ask("build", BUILDING_S, file=file)
        self._built |= {each.name for each in functions}

    def _write(
        self, process: Process, functions: Sequence[Function], read: Read
    ) -> str:
        """Write functions, and those of their weights that no other had."""
        try:
            self._write_weights(process, functions, read)
            places = {weight: at for weight, (at, _) in self._offsets.items()}
            found = [each.as_json(places) for each in functions]
            file = f"functions{next(self._numbers)}.json"
            (process.folder / file).write_text(json.dumps(found))
        except BaseException:  # nobody knows what is in the file of weights
            process.end()
            raise
        return file

    def _write_weights(
        self, process: Process, functions: Sequence[Function], read: Read
    ) -> None:
        with (process.folder / WEIGHTS).open("ab") as file:
            for weight in (w for function in functions for w in function.weights):
                if weight in self._offsets:
                    continue
                content = read(weight).tobytes()
                file.write(bytes(align_up(file.tell()) - file.tell()))
                self._offsets[weight] = file.tell(), len(content)
                file.write(content)

    def store(self, functions: Sequence[Function], read: Read) -> Mapping[str, bytes]:
        """Return the files of an asset with some functions, by their paths in it."""
        with self._lock:
            process = self._alive()
            file = self._write(process, functions, read)
            names = process.ask("store", BUILDING_S, file=file, folder="made.aimodel")
            assert isinstance(names, list)
            folder = process.folder / "made.aimodel"
            return {name: (folder / name).read_bytes() for name in names}

    def forget(self, call: "Call") -> None:
        """Give a call back."""
        with self._lock:
            process = self._process
            if process is not None and call.process is process and not process.is_lost:
                # What it held goes with the process.
                with contextlib.suppress(WorkerLost, NativeCallFailed):
                    process.ask("forget", RUNNING_S, number=call.number)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


class Call:
    """A plan bound to memory that the process sees too.

    Attributes:
        number: of the call, in its context.
        plan: what it runs.
        together: returns what to build with it.
        read: returns weights.
        memory: of its arrays, which the process sees too.
        process: in which it is bound, None before.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        together: Together,
        read: Read,
        number: int,
    ) -> None:
        """Lay inputs, states and outputs out, and make their memory."""
        self._context = context
        self.number, self.plan, self.together, self.read = number, plan, together, read
        kinds = {
            name: (tensor.dtype, tensor.shape)
            for name, tensor in plan.function.passed.items()
        }
        self.memory = SharedArrays("kvc-coreai", kinds)
        self.process: Process | None = None

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return arrays over the memory, by name of inputs, states and outputs."""
        if self.memory.renew():
            self.process = None
        return self.memory.arrays

    def placed(self, names: Sequence[str]) -> list[Placed]:
        """Return where arrays lie."""
        known = self.plan.function.passed
        return [
            (n, known[n].dtype, self.memory.places[n], known[n].shape) for n in names
        ]

    def run(self) -> None:
        """Run it; raises as `Context.run`."""
        self._context.run(self)

    def close(self) -> None:
        """Give it back; no array over its memory is used afterwards."""
        try:
            self._context.forget(self)
        finally:
            self.memory.close()
