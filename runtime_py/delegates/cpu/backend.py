"""The run-time part of the backend `cpu`: the native library, or reference kernels.

In: a block that `kvc.schema.backends.cpu` supports. Out: a handle that binds the block
to a list of native steps, without torch. If the library was not built, the handle runs
the block with the reference kernels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.cpu.binding import bind_steps
from kvc.runtime.delegates.operands import taken_block
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Workspace,
    library_unless,
    on_host,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.native.library import Library, find_library
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.cpu import why_not
from kvc.schema.model import Block, Program
from kvc.schema.model import Delegate as Partition
from kvc.schema.two_threads import share


class Cpu(Delegate):
    """Runs whole methods with kvc's kernels."""

    runs_on = "the processor, by kvc's own kernels"

    def __init__(self, options: Options) -> None:
        """Find the library, unless the reference is requested.

        Raises:
            MissingLibrary: the library is missing, and `options.reference` is False.
        """
        self._options = options
        self._library = library_unless(options.reference, find_library, "cpu")

    @staticmethod
    def check_library() -> None:
        """Check that the library can be used.

        Raises:
            MissingLibrary: the library cannot be used.
        """
        find_library()

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, and return its handle; see `Delegate.init`."""
        program, path = self._options.program, self._options.path
        block = taken_block(program, path, partition, why_not, over_operands=True)
        if self._library is None:
            return ReferenceHandle(program, partition, data)
        buffers = {name: data[program.names[name].name] for name in partition.names}
        method = program.methods[partition.method].name
        return CpuHandle(method, block, buffers, self._library, self._options.threads)

    @staticmethod
    def unread(
        program: Program, partition: Partition, constant: Callable[[int], Array]
    ) -> Handle:
        """Return a handle that binds a partition without its data; see `Delegate`."""
        method = program.methods[partition.method]
        block = method.blocks[partition.block]
        return UnreadHandle(method.name, block, constant, find_library())

    def packed(self) -> Mapping[str, int]:
        """Return {}: weights are used as they are in the bundle, not packed."""
        return {}

    def close(self) -> None:
        """Do nothing: handles share no resource."""


class CpuHandle(Handle):
    """A partition that runs natively.

    When the partition is first used, two threads read and check all its named data.
    """

    moves = True

    def __init__(
        self,
        method: str,
        block: Block,
        buffers: Mapping[int, FreeableBuffer],
        library: Library,
        threads: int,
    ) -> None:
        self._method, self._block, self._buffers = method, block, buffers
        self._library, self._threads = library, threads
        self._data: Mapping[int, Array] | None = None

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the partition's code to memory addresses; see `Handle.prepare`."""
        return bind_steps(
            self._method,
            self._block,
            sizes,
            on_host(inputs),
            on_host(outputs),
            workspace.arena,
            self._find(),
            self._library,
            self._threads,
        )

    def _find(self) -> Callable[[int], Array]:
        """Return what returns named data by id."""
        return self._read().__getitem__

    def pack(self) -> None:
        """Read and check the partition's named data."""
        self._read()

    def _read(self) -> Mapping[int, Array]:
        """Return the partition's named data by id, read and checked on first use."""
        if self._data is None:
            found: dict[int, Array] = {}

            def read(todo: Iterator[tuple[int, FreeableBuffer]]) -> None:
                for name, buffer in todo:
                    found[name] = buffer.array()

            share(iter(self._buffers.items()), read)
            self._data = found
        return self._data

    def close(self) -> None:
        """Free the partition's named data."""
        self._data = None
        for buffer in self._buffers.values():
            buffer.free()


class UnreadHandle(CpuHandle):
    """A partition that is bound to arrays that stand for its data, and not run."""

    def __init__(
        self,
        method: str,
        block: Block,
        constant: Callable[[int], Array],
        library: Library,
    ) -> None:
        super().__init__(method, block, {}, library, threads=1)
        self._constant = constant

    def _find(self) -> Callable[[int], Array]:
        return self._constant
