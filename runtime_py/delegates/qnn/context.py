"""Graphs on the device, and calls bound to memory: one `Context` per program.

In: plans. Out: calls. All graphs of a program share one context of the device. A graph
is built when a call first needs it, or comes from the bundle. `subprocess_calls.py` has
the code that this module shares with other backends whose library runs in a subprocess.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

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
from kvc.runtime.delegates.subprocess_calls import (
    WEIGHTS,
    ApartCall,
    ApartContext,
    ArrayPlaces,
    ended_if_broken,
)
from kvc.runtime.delegates.subprocesses import BUILDING_S, Process
from kvc.runtime.memory.arrays import Array

_WORK: Final = Path(worker.__file__)

Read = Callable[[Stored], Array]  # the elements of a weight, in the device's dtype
Graph = tuple[str, bytes]  # its name in a context, and the context


class Context(ApartContext[Stored, "Call"]):
    """The graphs of a program on the device; used by several threads."""

    def __init__(self, architecture: int) -> None:
        """Set the architecture to build graphs for; start no subprocess yet."""
        super().__init__(lambda: Process(_WORK, LIBRARY, "kvc-qnn-"))
        self._architecture = architecture

    def call(self, plan: Plan, read: Read, found: Graph | None) -> "Call":
        """Return a call of a plan, bound to new memory.

        Args:
            plan: the plan to run.
            read: returns a weight's elements.
            found: the prebuilt graph; None to build the graph.
        """
        return self._bound(Call(self, plan, read, found, next(self._numbers)))

    def _build(self, process: Process, call: "Call") -> Iterable[str]:
        model, file = call.plan.model, _file_of(call.plan.model)
        # An unfinished graph stays in the shared context, and the library then refuses
        # to build others there.
        with ended_if_broken(process):
            do = self._write_graph(process, call)
            process.ask(
                do, BUILDING_S, name=model.name, model=file, arch=self._architecture
            )
        return [model.name]

    def _write_graph(self, process: Process, call: "Call") -> str:
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
        """Write a plan's model, and those of its weights that were not written yet."""
        self._write_weights(process, plan.stored, read)
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
        """Return a plan's graph in a context without other graphs.

        Equal plans give equal bytes, whatever graphs were built before.
        """
        with self._lock:
            return self._store(self._alive(), plan, read)

    def _store(self, process: Process, plan: Plan, read: Read) -> Graph:
        model = plan.model
        with ended_if_broken(process):
            self._write(process, plan, read)
        name = process.ask(
            "store",
            BUILDING_S,
            name=model.name,
            model=_file_of(model),
            arch=self._architecture,
        )
        return str(name), (process.folder / _context_of(model)).read_bytes()


def _file_of(model: Model) -> str:
    return f"{model.name}.model.onnx"


def _context_of(model: Model) -> str:
    return f"{model.name}_qnn.bin"


def _within(model: Model, own_name: str) -> Model:
    """Return a model of one node, which loads a prebuilt graph from the context file.

    The context file lies in the model's folder.
    """
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


class Call(ApartCall[Plan]):
    """A plan bound to memory.

    Attributes:
        read: returns a weight's elements.
        found: the prebuilt graph, or None to build the graph.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        read: Read,
        found: Graph | None,
        number: int,
    ) -> None:
        """Allocate memory for inputs and outputs."""
        self.read, self.found = read, found
        passed = (*plan.model.inputs, *plan.model.outputs)
        kinds = {value.name: (value.dtype, value.shape) for value in passed}
        super().__init__(context, plan, plan.model.name, number, ("kvc-qnn", kinds))

    def placed(self) -> Mapping[str, ArrayPlaces]:
        """Return the locations of inputs and outputs; dtypes are ONNX's numbers."""
        model = self.plan.model
        return {
            "inputs": self._placed(model.inputs),
            "outputs": self._placed(model.outputs),
        }

    def _placed(self, values: Iterable[Value]) -> ArrayPlaces:
        return [
            (v.name, KINDS[v.dtype], self.memory.places[v.name], v.shape)
            for v in values
        ]
