"""The reference delegate: runs the code of a partition with the ordinary kernels.

In: a partition of a verified program, and the program's data. Out: a handle whose
prepared calls run frames, and then copy the outputs that cannot be computed in the
caller's memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.partition_memory import partition_memory
from kvc.runtime.execution.code import code_of
from kvc.runtime.execution.delegate import Handle, Workspace, first_write, on_host
from kvc.runtime.execution.executor import Frame, RunProgress, Unbegun
from kvc.runtime.execution.frames import bind_graph
from kvc.runtime.execution.values import GraphMemory
from kvc.runtime.memory.arrays import Array, copy_into, lies_over
from kvc.runtime.states.owner import Buffer
from kvc.schema.model import Delegate, Program


class ReferenceHandle(Handle):
    """A partition that the runtime's own kernels run."""

    runs_torch = True

    def __init__(
        self, program: Program, partition: Delegate, data: Mapping[str, FreeableBuffer]
    ) -> None:
        block = program.methods[partition.method].blocks[partition.block]
        self._graph, self._first_write = block.graph, first_write(block)
        self._buffers = {i: data[program.names[i].name] for i in partition.names}
        self._code = code_of(program, partition.method, _refuse_nesting, {})

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the partition's code to memory; see `Handle.prepare`."""
        graph, targets = self._graph, on_host(outputs)
        memory = partition_memory(
            graph,
            sizes,
            on_host(inputs),
            targets,
            workspace.arena,
            self.constant,
        )
        frame = self.watched(
            bind_graph(graph, sizes, memory, self._code), sizes, memory
        )
        return partial(_run, frame, _copies(frame, targets), self._first_write)

    def constant(self, name: int) -> Array:
        """Return named data by id, as the array that the code reads."""
        return self._buffers[name].private_array()

    def watched(
        self, frame: Frame, sizes: Mapping[str, int], memory: GraphMemory
    ) -> Frame:
        """Return the frame to run; subclasses can add steps to the frame."""
        return frame

    def close(self) -> None:
        """Free the partition's named data."""
        for buffer in self._buffers.values():
            buffer.free()


def _copies(frame: Frame, outputs: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return the copies to make after a run, each as (output array, source array)."""
    pairs = zip(outputs, frame.outputs, strict=True)
    return [(to, made) for to, made in pairs if not lies_over(to, made)]


def _run(frame: Frame, copies: list[tuple[Array, Array]], first_write: int) -> None:
    progress = RunProgress()
    try:
        frame.run(progress)
    except Exception as error:
        if progress.last(error) < first_write:
            raise Unbegun from error
        raise
    for to, made in copies:
        copy_into(to, made)


def _refuse_nesting(delegate: int) -> Handle:
    raise AssertionError("a verified delegate runs no other delegate")
