"""The reference run-time half: runs the code of a delegate with the ordinary kernels.

In: a delegate of a verified program, and the program's data. Out: a handle whose
prepared calls are frames. Inputs are lent to the code as to any block, so that it works
in the memory of states. Other outputs are bound to the given memory without a copy
where the graph allows it, and the rest lies in the context's workspace.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array, copy_into
from kvc.runtime.binding.executor import Frame
from kvc.runtime.binding.frames import Code, bind_graph, blocks_of
from kvc.runtime.binding.values import Memory
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.base import Handle, Workspace, on_host
from kvc.runtime.states.owner import Buffer
from kvc.schema.model import Alias, Delegate, Graph, Program, Scratch
from kvc.schema.ops import RESHAPING_VIEWS


class ReferenceHandle(Handle):
    """The code of a delegate, run by the kernels of the runtime itself."""

    runs_torch = True

    def __init__(
        self, program: Program, part: Delegate, data: Mapping[str, FreeableBuffer]
    ) -> None:
        method = program.methods[part.method]
        self._method = method.name
        self._graph = method.blocks[part.block].graph
        self._blocks = blocks_of(program, part.method)
        self._buffers = {i: data[program.names[i].name] for i in part.names}
        self._code = Code(_refuse_nesting)

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the code; see `Handle.prepare`."""
        graph, targets = self._graph, on_host(outputs)
        memory = Memory(
            scratch=_arena_for(graph.scratch_nbytes, workspace.arena),
            constant=lambda name: self._buffers[name].private_array(),
            given=place_outputs(graph, sizes, targets),
            callers=dict(zip(graph.inputs, on_host(inputs), strict=True)),
            workspace=workspace,
        )
        frame = bind_graph(self._method, graph, sizes, memory, self._code, self._blocks)
        return _with_copies(frame, targets)

    def close(self) -> None:
        """Free the data."""
        for buffer in self._buffers.values():
            buffer.free()


def place_outputs(
    graph: Graph, sizes: Mapping[str, int], outputs: Sequence[Array]
) -> dict[int, Array]:
    """Return the values that can lie in the memory of outputs, by id.

    An output that is a mere reshape of a scratch value puts that value there. What is
    left out (an output that is an input, a constant, a strided view, or there twice)
    must be copied after the run.
    """
    given: dict[int, Array] = {}
    makers = {v: i.op for i in graph.instructions for v in i.results}
    for value, array in zip(graph.outputs, outputs, strict=True):
        root = value
        storage = graph.values[root].storage
        while isinstance(storage, Alias) and makers.get(root) in RESHAPING_VIEWS:
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
    raise AssertionError("a verified delegate runs no other one")
