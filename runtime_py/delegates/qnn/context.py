"""Graphs that the device has, and calls that are bound to memory: one `Context`.

In: plans. Out: calls. All graphs of a program share one context of the device, and each
weight is stored once in the file that they read. A graph is built when a call first
needs it. Where the process has been lost, the next call builds again what it needs.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from kvc.runtime.arenas import align_up
from kvc.runtime.arrays import Array
from kvc.runtime.delegates.apart import BUILDING_S, RUNNING_S, Process
from kvc.runtime.delegates.qnn import worker
from kvc.runtime.delegates.qnn.library import LIBRARY
from kvc.runtime.delegates.qnn.model_file import (
    KINDS,
    Attribute,
    Model,
    Node,
    Value,
    encode_model,
)
from kvc.runtime.delegates.qnn.plan import Plan, Stored
from kvc.runtime.delegates.shared_arrays import SharedArrays
from kvc.schema.errors import WorkerLost

WEIGHTS: Final = "weights.bin"
_WORK: Final = Path(worker.__file__)

Read = Callable[[Stored], Array]  # the elements of a weight, as the device has them
Graph = tuple[str, bytes]  # its name in a context, and the context


class Context:
    """What a program has on the device; used from many threads."""

    def __init__(self, architecture: int) -> None:
        """Take the architecture that graphs are built for; nothing is started."""
        self._architecture = architecture
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._built: set[str] = set()
        self._offsets: dict[Stored, tuple[int, int]] = {}
        self._numbers = count()

    @property
    def stored(self) -> Mapping[Stored, int]:
        """Return the bytes of the weights in the file."""
        offsets = self._offsets.copy()  # other threads build graphs
        return {stored: nbytes for stored, (_, nbytes) in offsets.items()}

    def call(self, plan: Plan, read: Read, found: Graph | None) -> "Call":
        """Return a call of a plan, bound to memory of its own.

        Args:
            plan: to run.
            read: returns its weights.
            found: the graph where it is there already, None to build it.
        """
        with self._lock:
            call = Call(self, plan, read, found, next(self._numbers))
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
        name = call.plan.model.name
        if name not in self._built:
            self._build(process, call)
            self._built.add(name)
        process.ask(
            "bind",
            RUNNING_S,
            call.memory.descriptor,
            name=name,
            number=call.number,
            nbytes=call.memory.nbytes,
            inputs=call.placed(call.plan.model.inputs),
            outputs=call.placed(call.plan.model.outputs),
        )
        call.process = process
        return process

    def _alive(self) -> Process:
        if self._process is None or self._process.is_lost:
            self._built.clear()
            self._offsets.clear()
            self._process = Process(_WORK, LIBRARY, "kvc-qnn-")
        return self._process

    def _build(self, process: Process, call: "Call") -> None:
        model, file = call.plan.model, _file_of(call.plan.model)
        try:
            do = self._write_graph(process, call)
            process.ask(
                do, BUILDING_S, name=model.name, model=file, arch=self._architecture
            )
        except BaseException:
            # A graph that is begun and not finished stays in the context of all, and
            # the library then makes no other one there. Of a file that could not be
            # written, nobody knows what is in it.
            process.end()
            raise

    def _write_graph(self, process: Process, call: "Call") -> str:
        """Write what a graph is made of, and return what is to be done with it."""
        model = call.plan.model
        if call.found is None:
            self._write(process, call.plan, call.read)
            return "build"
        own_name, content = call.found
        (process.folder / _context_of(model)).write_bytes(content)
        wrapped = encode_model(_within(model, own_name))
        (process.folder / _file_of(model)).write_bytes(wrapped)
        return "load"

    def _write(self, process: Process, plan: Plan, read: Read) -> None:
        """Write a model, and those of its weights that no other had."""
        with (process.folder / WEIGHTS).open("ab") as file:
            for stored in plan.stored:
                if stored in self._offsets:
                    continue
                content = read(stored).tobytes()
                file.write(bytes(align_up(file.tell()) - file.tell()))
                self._offsets[stored] = file.tell(), len(content)
                file.write(content)
        pairs = zip(plan.model.weights, plan.stored, strict=True)
        weights = (
            replace(weight, offset=offset, nbytes=nbytes)
            for weight, stored in pairs
            for offset, nbytes in [self._offsets[stored]]
        )
        model = replace(plan.model, weights=tuple(weights))
        raw = encode_model(model, WEIGHTS)
        (process.folder / _file_of(model)).write_bytes(raw)

    def store(self, plan: Plan, read: Read) -> Graph:
        """Return a plan's graph in a context of its own.

        Equal plans give equal bytes, whatever else has been built.
        """
        with self._lock:
            process = self._alive()
            return self._store(process, plan, read)

    def _store(self, process: Process, plan: Plan, read: Read) -> Graph:
        model = plan.model
        try:
            self._write(process, plan, read)
        except BaseException:  # nobody knows what is in the file of weights
            process.end()
            raise
        name = process.ask(
            "store",
            BUILDING_S,
            name=model.name,
            model=_file_of(model),
            arch=self._architecture,
        )
        return str(name), (process.folder / _context_of(model)).read_bytes()

    def forget(self, call: "Call") -> None:
        """Give a call back."""
        with self._lock:
            process = self._process
            if process is not None and call.process is process and not process.is_lost:
                with contextlib.suppress(WorkerLost):  # what it held went with it
                    process.ask("forget", RUNNING_S, number=call.number)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


def _file_of(model: Model) -> str:
    return f"{model.name}.model.onnx"


def _context_of(model: Model) -> str:
    return f"{model.name}_qnn.bin"


def _within(model: Model, own_name: str) -> Model:
    """Return a model that takes its graph out of the context beside it."""
    facts: dict[str, Attribute] = {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": _context_of(model),
        "source": "QNN",
        "partition_name": own_name,
    }
    inputs = tuple(value.name for value in model.inputs)
    outputs = tuple(value.name for value in model.outputs)
    node = Node("EPContext", inputs, outputs, facts, "com.microsoft")
    return Model(model.name, (node,), model.inputs, model.outputs)


class Call:
    """A plan bound to memory that the process sees too.

    Attributes:
        number: of the call, in its context.
        plan: what it runs.
        read: returns weights.
        found: the graph where it is there already.
        memory: of its arrays, which the process sees too.
        process: in which it is bound, None before.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        read: Read,
        found: Graph | None,
        number: int,
    ) -> None:
        """Lay inputs and outputs out, and make their memory."""
        self._context, self.found = context, found
        self.number, self.plan, self.read = number, plan, read
        passed = (*plan.model.inputs, *plan.model.outputs)
        kinds = {value.name: (value.dtype, value.shape) for value in passed}
        self.memory = SharedArrays("kvc-qnn", kinds)
        self.process: Process | None = None

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return arrays over the memory, by name of inputs and outputs."""
        if self.memory.renew():
            self.process = None
        return self.memory.arrays

    def placed(
        self, values: Sequence[Value]
    ) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Return where values lie: name, number of the dtype, offset, shape."""
        return [
            (v.name, KINDS[v.dtype], self.memory.places[v.name], v.shape)
            for v in values
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
