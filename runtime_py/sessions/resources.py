"""The resources that a program's calls share, and that `Program.release` frees.

In: a program and its data. Out: constants, initialized delegates, and execution
contexts, all made at the first request. After `close`, calls get no contexts any more,
and the resources are freed when the last call that uses them ends; sessions keep their
states.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType

from kvc.runtime.calls.contexts import ContextPool, ExecutionContext
from kvc.runtime.data import FreeableBuffer, NamedBuffers
from kvc.runtime.delegates.table import Factory, delegate_of
from kvc.runtime.execution.code import Code, Prepared, code_of, import_beside_packing
from kvc.runtime.execution.delegate import Delegate, Handle, Options, Packing
from kvc.runtime.execution.list_frames import ListBinder
from kvc.runtime.memory.arrays import Array
from kvc.runtime.native.library import NEVER_FROM_FILES, Library, native_library
from kvc.runtime.threads import settle_threads
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen
from kvc.schema.left import needs_torch, why_torch
from kvc.schema.model import Program
from kvc.schema.torch_package import check_torch
from kvc.schema.uses import constants_of

FindBackend = Callable[[str], Factory]  # maps a name to a backend's run-time half


@frozen
class LoadSettings:
    """Settings of `load` that a program's calls share.

    Attributes:
        reference: True to run partitions by the reference implementation of a backend's
            arithmetic; False to refuse a backend whose library is missing; None to use
            the library if it is installed.
        max_turns: the greatest number of iterations of a `while_loop` each time that
            control reaches the loop; None for no limit.
        devices: the index of the requested device, by name of the backend.
        find_backend: returns the run-time half of a backend, given the backend's name.
    """

    reference: bool | None = None
    max_turns: int | None = None
    devices: Mapping[str, int] = MappingProxyType({})
    find_backend: FindBackend = delegate_of


class Resources:
    """The constants, delegates and contexts of a program; safe for many threads.

    Attributes:
        pool: the execution contexts.
    """

    def __init__(
        self,
        path: str,
        program: Program,
        buffers: NamedBuffers,
        settings: LoadSettings,
    ) -> None:
        self._path, self._settings = path, settings
        self._program = program
        self._buffers = buffers
        self._lock = threading.RLock()
        self._constants: dict[int, tuple[FreeableBuffer, Array]] = {}
        self._backends: dict[str, Delegate] = {}
        self._handles: dict[int, Handle] = {}
        self.pool = ContextPool(self._make_context)
        self._codes: dict[int, Code] = {}
        self._prepared: Prepared = {}
        self._lists: ListBinder | None = None
        lists = () if program.bounds is None else program.bounds.lists
        own = () if settings.reference else (one.method for one in lists)
        self._listed = frozenset(own)

    def constant(self, name: int) -> Array:
        """Return a constant, which stays in memory until the resources are closed.

        Raises:
            KvcError: as `FreeableBuffer.private_array`.
        """
        found = self._constants.get(name)
        if found is None:
            # Outside the lock: threads check different blobs at the same time.
            buffer = self._buffers.handle(name)
            taken = buffer, buffer.private_array()
            with self._lock:
                found = self._constants.setdefault(name, taken)
            if found is not taken:
                buffer.free()
        return found[1]

    def code(self, method: int) -> Code:
        """Return the code of a method, from which every context can bind frames."""
        if method not in self._codes:
            made = code_of(
                self._program,
                method,
                self._delegate,
                self._prepared,
                self._settings.max_turns,
            )
            self._codes[method] = made
        return self._codes[method]

    def lists(self, method: int) -> ListBinder | None:
        """Return what binds the lists of a method, None if it has none to be used.

        Lists are for the native library of their version.
        """
        bounds = self._program.bounds
        if bounds is None or method not in self._listed:
            return None
        with self._lock:
            if self._lists is None:
                library = native_library()
                if library is None or library.version != bounds.kernels_version:
                    return None
                self._check_kernels(bounds.kernels, library)
                self._lists = ListBinder(
                    self._path,
                    bounds,
                    self._program.states,
                    library,
                    settle_threads(),
                )
            return self._lists

    def _check_kernels(self, kernels: Sequence[str], library: Library) -> None:
        """Refuse lists with kernels that this version lacks, or that take addresses."""
        for name in kernels:
            if name in NEVER_FROM_FILES or not library.has(name):
                what = f"there is no kernel {name!r}"
                raise BadProgram(path=self._path, where="bound lists", what=what)

    def backend(self, name: str) -> Delegate:
        """Return the delegate of a backend; make it at the first request."""
        with self._lock:
            if name not in self._backends:
                threads = settle_threads()
                options = Options(
                    self._path,
                    self._program,
                    self._settings.reference,
                    threads,
                    self._settings.devices.get(name),
                )
                self._backends[name] = self._settings.find_backend(name)(options)
            return self._backends[name]

    def packed(self) -> Mapping[str, int]:
        """Return the bytes of packed weights of all delegates, by data name."""
        total: Counter[str] = Counter()
        with self._lock:
            for backend in self._backends.values():
                total.update(backend.packed())
        return total

    def pack(self) -> tuple[Packing, ...]:
        """Prepare the shared resources: torch, constants, delegates, packed weights.

        Raises:
            ExecutionError: a backend's library refuses a partition.
            MissingPackage: a method needs torch, which is not installed.
            KvcError: as `constant`.
        """
        for number, method in enumerate(self._program.methods):
            graph, *blocks = method.graphs
            if needs_torch(graph, blocks):
                check_torch(f"method {method.name}", partial(why_torch, graph, blocks))
                partitions = self.code(number).partitions
                import_beside_packing(partitions.values(), self._delegate)
                own = (
                    g for i, g in enumerate(method.graphs, -1) if i not in partitions
                )
                for name in set[int]().union(*map(constants_of, own)):
                    self.constant(name)
        by_backend: dict[str, dict[int, Handle]] = {}
        for index, partition in enumerate(self._program.delegates):
            handles = by_backend.setdefault(partition.backend, {})
            handles[index] = self._delegate(index)
        backends = self._backends
        packed = (backends[name].pack(by_id) for name, by_id in by_backend.items())
        return tuple(chain.from_iterable(packed))

    def export(self, backend: str, target: str) -> Packing:
        """Return the file for a target, which has all partitions of a backend.

        Raises:
            ExecutionError: a backend's library refuses a partition.
            KvcError: as `constant`.
        """
        handles = {
            index: self._delegate(index)
            for index, partition in enumerate(self._program.delegates)
            if partition.backend == backend
        }
        return self._backends[backend].export(target, handles)

    def close(self, when_gone: Callable[[], None]) -> None:
        """Release the resources when no call uses them, then call `when_gone`."""

        def finish() -> None:
            self._free()
            when_gone()

        self.pool.close(finish)

    def _free(self) -> None:
        with self._lock:
            for handle in self._handles.values():
                handle.close()
            for backend in self._backends.values():
                backend.close()
            for buffer, _ in self._constants.values():
                buffer.free()
            self._handles.clear()
            self._backends.clear()
            self._constants.clear()
            self._prepared.clear()

    def _make_context(self) -> ExecutionContext:
        scratch = (method.graph.scratch_nbytes for method in self._program.methods)
        workspace = (
            partition.workspace_nbytes for partition in self._program.delegates
        )
        nbytes = max(scratch, default=0), max(workspace, default=0)
        return ExecutionContext(self, *nbytes)

    def _delegate(self, index: int) -> Handle:
        with self._lock:
            if index not in self._handles:
                partition = self._program.delegates[index]
                backend = self.backend(partition.backend)
                self._handles[index] = backend.init(partition, self._buffers)
            return self._handles[index]
