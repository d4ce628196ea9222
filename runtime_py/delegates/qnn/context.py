"""Graphs on the device, and calls bound to memory: one `Context` per program.

In: plans. Out: calls. All graphs of a program share one context of the device. A graph
is built when a call first needs it, or comes from the bundle.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from kvc.runtime.delegates.qnn.library import QNN
from kvc.runtime.delegates.qnn.model_file import (
    Attribute,
    Model,
    Node,
    encode_model,
)
from kvc.runtime.delegates.qnn.plan import Plan, Stored
from kvc.runtime.delegates.subprocess_calls import (
    WEIGHTS,
    ApartCall,
    ApartContext,
    Passed,
    ended_if_broken,
)
from kvc.runtime.delegates.subprocesses import BUILDING_S, Process
from kvc.runtime.memory.arrays import Array

Read = Callable[[Stored], Array]  # the elements of a weight, in the device's dtype
Graph = tuple[str, bytes]  # its name in a context, and the context
Call = ApartCall[Plan, Stored, Graph | None]


class Context(ApartContext[Plan, Stored, Graph | None]):
    """The graphs of a program on the device; used by several threads.

    A call gets the prebuilt graph of its plan, or None to build the graph.
    """

    package, work = QNN, Path(__file__).with_name("worker.py")

    def __init__(self, architecture: int) -> None:
        """Set the architecture to build graphs for; start no subprocess yet."""
        super().__init__()
        self._architecture = architecture

    def describe(self, plan: Plan) -> tuple[str, Passed]:
        """Return the model's name, and its inputs and outputs."""
        uses = {"inputs": plan.model.inputs, "outputs": plan.model.outputs}
        return plan.model.name, {
            use: {value.name: (value.dtype, value.shape) for value in values}
            for use, values in uses.items()
        }

    def _build(self, process: Process, call: Call) -> Iterable[str]:
        # An unfinished graph stays in the shared context, and the library then refuses
        # to build others there.
        with ended_if_broken(process):
            do = self._write_graph(process, call)
            self._ask(process, do, call.plan.model)
        return [call.name]

    def _ask(self, process: Process, do: str, model: Model) -> object:
        file, arch = _file_of(model), self._architecture
        return process.ask(do, BUILDING_S, name=model.name, model=file, arch=arch)

    def _write_graph(self, process: Process, call: Call) -> str:
        if call.how is None:
            self._write(process, call.plan, call.read)
            return "build"
        model, (own_name, content) = call.plan.model, call.how
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
            process, model = self._alive(), plan.model
            with ended_if_broken(process):
                self._write(process, plan, read)
            name = self._ask(process, "store", model)
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
