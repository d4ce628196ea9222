"""The reference run-time half: runs the code of a delegate with the ordinary kernels.

In: a delegate of a verified program, and the program's data. Out: a handle whose
prepared calls are frames, followed by copies of outputs that cannot be made in place.
"""

from collections.abc import Callable, Mapping, Sequence

from kvc.runtime.arrays import Array, address_of, copy_into
from kvc.runtime.binding.code import code_of
from kvc.runtime.binding.executor import Frame
from kvc.runtime.binding.frames import bind_graph
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.base import Handle, Workspace, on_host
from kvc.runtime.delegates.part_memory import part_memory
from kvc.runtime.states.owner import Buffer
from kvc.schema.model import Delegate, Program


class ReferenceHandle(Handle):
    """The code of a delegate, run by the kernels of the runtime itself."""

    runs_torch = True

    def __init__(
        self, program: Program, part: Delegate, data: Mapping[str, FreeableBuffer]
    ) -> None:
        method = program.methods[part.method]
        self._graph = method.blocks[part.block].graph
        self._buffers = {i: data[program.names[i].name] for i in part.names}
        self._code = code_of(program, part.method, _refuse_nesting, {})

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the code; see `Handle.prepare`."""
        graph, targets = self._graph, on_host(outputs)
        memory = part_memory(
            graph,
            sizes,
            on_host(inputs),
            targets,
            workspace.arena,
            lambda name: self._buffers[name].private_array(),
        )
        frame = bind_graph(graph, sizes, memory, self._code)
        return _with_copies(frame, targets)

    def close(self) -> None:
        """Free the data."""
        for buffer in self._buffers.values():
            buffer.free()


def _with_copies(frame: Frame, outputs: Sequence[Array]) -> Callable[[], None]:
    pairs = zip(outputs, frame.outputs, strict=True)
    copies = [(to, made) for to, made in pairs if not _lies_there(made, to)]
    if not copies:
        return frame.run

    def run() -> None:
        frame.run()
        for to, made in copies:
            copy_into(to, made)

    return run


def _lies_there(made: Array, target: Array) -> bool:
    """Tell whether a result lies where it is wanted; a state may have room after it."""
    return address_of(made) == address_of(target) and made.strides == target.strides


def _refuse_nesting(delegate: int) -> Handle:
    raise AssertionError("a verified delegate runs no other one")
