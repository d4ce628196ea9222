"""The delegate `ethosu`: runs partitions on the host, and exports files for NPUs.

kvc itself runs nothing on an NPU. On the host, numpy computes the TOSA graph of a
partition, and gets the same integers as an NPU. `export` compiles the same graphs for
an NPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.ethosu.host_calls import bind_call
from kvc.runtime.delegates.ethosu.image import TARGETS, Unit, image_of
from kvc.runtime.delegates.ethosu.lowered_values import ELEMENTS
from kvc.runtime.delegates.ethosu.lowering import lower, results_of, written_inputs
from kvc.runtime.delegates.ethosu.tosa import TosaGraph
from kvc.runtime.delegates.ethosu.vela import VERSION
from kvc.runtime.delegates.operands import taken_block, where_of
from kvc.runtime.delegates.state_memories import StateMemories
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Packing,
    Workspace,
    on_host,
)
from kvc.runtime.states.owner import Buffer
from kvc.schema import model
from kvc.schema.backends.ethosu import why_not
from kvc.schema.backends.grids import Grid, Stored, read_grids
from kvc.schema.buckets import fixed_sizes
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Graph


class EthosU(Delegate):
    """The run-time part."""

    runs_on = "an Arm Ethos-U NPU, its integers computed on the host"

    def __init__(self, options: Options) -> None:
        self._program, self._path = options.program, options.path

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the NPUs that files can be exported for."""
        return tuple(TARGETS)

    def init(
        self, partition: model.Delegate, data: Mapping[str, FreeableBuffer]
    ) -> "EthosUHandle":
        """Check a partition's code and grids, and return its handle.

        Raises:
            BadProgram: the backend does not support an operator, or a grid is missing,
                or TOSA does not support a grid.
        """
        program = self._program
        graph = taken_block(program, self._path, partition, why_not).graph
        where = where_of(program, partition)
        grids = read_grids(partition.payload, graph, self._path, where)
        self._check(graph, grids, where)
        every = fixed_sizes(program.symbols, [value.type for value in graph.values])
        names = {i: data[program.names[i].name] for i in partition.names}
        return EthosUHandle(graph, grids, every or (), names)

    def _check(self, graph: Graph, grids: Mapping[int, Grid], where: str) -> None:
        """Check that all values have grids, and that writes are to whole inputs.

        Raises:
            BadProgram: a grid is missing or not supported by TOSA, or an instruction
                writes to a slice of an input.
        """
        wrong = ""
        for number, value in enumerate(graph.values):
            if number not in grids and value.type.dtype is DType.FLOAT32:
                wrong = f"value {number} has no grid"
        for number, grid in grids.items():
            if grid.stored not in ELEMENTS:
                wrong = f"value {number} is {grid.stored.name.lower()} on its grid"
            elif grid.stored is Stored.INT16 and grid.zero:
                wrong = f"value {number} is int16 with a zero at {grid.zero}"
        for root, new in written_inputs(graph).items():
            if graph.values[root].type != graph.values[new].type:
                wrong = f"value {new} is a part of input {root}, which it is to become"
        if wrong:
            raise BadProgram(path=self._path, where=where, what=wrong)

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return the command streams of all partitions, at all their sizes.

        Raises:
            MissingLibrary: Vela is missing.
            ExportFailed: Vela rejects a partition, crashes, or takes too long.
        """
        program, units = self._program, list[Unit]()
        memories = StateMemories(program)
        for number, handle in sorted(handles.items()):
            assert isinstance(handle, EthosUHandle), "init makes only these"
            method = program.methods[program.delegates[number].method].name
            states = {
                value: program.states[state].name
                for value in handle.inputs
                if (state := memories.state_of(number, value)) is not None
            }
            units += handle.units(f"partition{number}", method, states)
        raw = image_of(target, units)
        key = f"ethosu {target} vela{VERSION}"
        return Packing(key, "", tuple(sorted(handles)), len(raw), lambda: raw)

    def packed(self) -> Mapping[str, int]:
        """Return {}: no packed data is kept."""
        return {}

    def close(self) -> None:
        """Do nothing: no resource is shared."""


class EthosUHandle(Handle):
    """A partition, and its translation to a TOSA graph."""

    def __init__(
        self,
        graph: Graph,
        grids: Mapping[int, Grid],
        every: Sequence[Mapping[str, int]],
        buffers: Mapping[int, FreeableBuffer],
    ) -> None:
        self._graph, self._grids = graph, grids
        self._every, self._buffers = every, buffers

    def lowered(self, sizes: Mapping[str, int]) -> TosaGraph:
        """Return the partition's TOSA graph at `sizes`."""
        return lower(
            self._graph, self._grids, sizes, lambda name: self._buffers[name].array()
        )

    @property
    def inputs(self) -> Sequence[int]:
        """Return the ids of the inputs of the partition's code."""
        return self._graph.inputs

    def units(
        self, name: str, method: str, states: Mapping[int, str]
    ) -> Iterator[Unit]:
        """Yield the partition at each combination of its sizes.

        Args:
            name: name of the partition.
            method: name of the partition's method.
            states: names of the states among the partition's inputs, by value id.
        """
        graph = self._graph
        places = {value: f"input {i}" for i, value in enumerate(graph.inputs)}
        places |= {value: f"state {state}" for value, state in states.items()}
        inputs = [(self._grids.get(value), places[value]) for value in graph.inputs]
        outputs = [
            (self._grids[value], " and ".join(what))
            for value, what in _results(graph, places).items()
        ]
        for sizes in self._every:
            said = "".join(f"_{key}={size}" for key, size in sorted(sizes.items()))
            yield Unit(f"{name}{said}", method, self.lowered(sizes), inputs, outputs)

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Translate the partition for `sizes`; see `Handle.prepare`."""
        return bind_call(
            self._graph,
            self.lowered(sizes),
            self._grids,
            sizes,
            on_host(inputs),
            on_host(outputs),
        )

    def close(self) -> None:
        """Free the partition's named data."""
        for buffer in self._buffers.values():
            buffer.free()


def _results(graph: Graph, places: Mapping[int, str]) -> dict[int, list[str]]:
    told: dict[int, list[str]] = {value: [] for value in results_of(graph)}
    for number, value in enumerate(graph.outputs):
        told[value].append(f"output {number}")
    for root, value in written_inputs(graph).items():
        told[value].append(f"new content of {places[root]}")
    return told
