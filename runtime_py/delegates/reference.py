"""The reference run-time half: runs a graph-shaped payload with the ordinary kernels.

In: a decoded, verified payload and the program's data. Out: a handle whose prepared
calls are frames: inputs and outputs are bound to the given memory without a copy
where the graph allows it, the rest lies in the context's workspace.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array, copy_into
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.base import Handle, Workspace
from kvc.runtime.executor import Frame
from kvc.runtime.frames import Code, bind_graph
from kvc.runtime.values import Memory
from kvc.schema.errors import BadProgram
from kvc.schema.model import Alias, Graph, Payload, Scratch

# Views that keep all elements in their order, so that base and view are the same bytes.
_RESHAPING = frozenset(
    {"aten::alias", "aten::view", "aten::unsqueeze", "aten::squeeze.dims"}
)


class ReferenceHandle(Handle):
    """A payload run by the kernels of the runtime itself."""

    runs_torch = True

    def __init__(
        self, payload: Payload, data: Mapping[str, FreeableBuffer], method: str
    ) -> None:
        self._payload = payload
        self._method = method
        self._buffers = tuple(data[name] for name in payload.names)
        self._code = Code(_refuse_nesting)

    def prepare(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the payload's graph; see `Handle.prepare`."""
        graph = self._payload.graph
        memory = Memory(
            scratch=_arena_for(graph.scratch_nbytes, workspace.arena),
            constant=lambda name: self._buffers[name].private_array(),
            given=place_interface(graph, sizes, inputs, outputs),
        )
        frame = bind_graph(self._method, graph, sizes, memory, self._code)
        return _with_copies(frame, outputs)

    def close(self) -> None:
        """Free the payload's data."""
        for buffer in self._buffers:
            buffer.free()


def place_interface(
    graph: Graph,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> dict[int, Array]:
    """Return the values that can lie in the memory of inputs and outputs, by id.

    An output that is a mere reshape of a scratch value puts that value there. What is
    left out (an output that is an input, a constant, a strided view, or there twice)
    must be copied after the run.
    """
    given = dict(zip(graph.inputs, inputs, strict=True))
    makers = {v: i.op for i in graph.instructions for v in i.results}
    for value, array in zip(graph.outputs, outputs, strict=True):
        root = value
        storage = graph.values[root].storage
        while isinstance(storage, Alias) and makers.get(root) in _RESHAPING:
            root = storage.base
            storage = graph.values[root].storage
        if not isinstance(storage, Scratch) or root in given:
            continue
        if root == value:
            given[root] = array
        elif array.flags.c_contiguous:
            given[root] = array.reshape(graph.values[root].type.shape(sizes))
    return given


def _arena_for(nbytes: int, workspace: Arena) -> Arena:
    if workspace.nbytes >= nbytes:
        return workspace
    return Arena(nbytes)


def _with_copies(frame: Frame, outputs: Sequence[Array]) -> Callable[[], None]:
    pairs = zip(outputs, frame.outputs, strict=True)
    copies = [(to, made) for to, made in pairs if not _same_place(to, made)]
    if not copies:
        return frame.run

    def run() -> None:
        frame.run()
        for to, made in copies:
            copy_into(to, made)

    return run


def _same_place(a: Array, b: Array) -> bool:
    return a.ctypes.data == b.ctypes.data and a.strides == b.strides


def _refuse_nesting(delegate: int) -> Handle:
    raise BadProgram(
        path="payload",
        where=f"delegate {delegate}",
        what="a delegate inside a delegate",
    )
