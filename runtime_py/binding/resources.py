"""What the calls of a program share, and `Program.release` frees.

In: a program and its data. Out: constants, delegates that are ready, execution contexts
to lease, all made on first need. Once closed it leases no more contexts, and everything
is freed when the last call that uses it ends; sessions keep their states.

A context is scratch memory and bound frames. A call gets one that no other call uses,
preferably the one that served its session last, since its frames are bound to the
session's states. A context keeps a few frames and drops the least recently used; one
that is bound to other lengths is taken out to be bound again.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from itertools import chain

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array
from kvc.runtime.binding.code import Code, Prepared, code_of
from kvc.runtime.binding.executor import Binding
from kvc.runtime.binding.frames import needs_torch
from kvc.runtime.calls.first_call import import_beside_packing
from kvc.runtime.data import FreeableBuffer, NamedBuffers
from kvc.runtime.delegates.base import Delegate, Handle, Options, Packing, Workspace
from kvc.runtime.delegates.table import delegate_of
from kvc.runtime.states.memory import StateMemory
from kvc.runtime.threads import settle_threads
from kvc.schema.model import Program
from kvc.schema.torch_package import check_torch
from kvc.schema.uses import constants_of

FRAMES_KEPT = 8
Version = tuple[object, ...]  # lengths and addresses that a frame is bound to
FrameKey = tuple[int, tuple[tuple[int, ...], ...], StateMemory | None]


class ExecutionContext:
    """What one running call needs for itself."""

    def __init__(self, scratch_nbytes: int, workspace_nbytes: int) -> None:
        self.scratch = Arena(scratch_nbytes)
        self.workspace = Workspace(Arena(workspace_nbytes))
        self.served: StateMemory | None = None
        self._frames: OrderedDict[FrameKey, tuple[Version, Binding]] = OrderedDict()

    def frame(self, key: FrameKey, version: Version = ()) -> Binding | None:
        """Return what is bound for a method, steady shapes and states, if it still is.

        None where nothing is, or something to another version.
        """
        found = self._frames.get(key)
        if found is None or found[0] != version:
            return None
        self._frames.move_to_end(key)
        return found[1]

    def take(self, key: FrameKey) -> Binding | None:
        """Take what is bound, whatever the version: it is to be bound again."""
        found = self._frames.pop(key, None)
        return None if found is None else found[1]

    def keep(self, key: FrameKey, binding: Binding, version: Version = ()) -> None:
        """Keep what has been bound."""
        self._frames[key] = (version, binding)
        if len(self._frames) > FRAMES_KEPT:
            self._frames.popitem(last=False)

    def give_back(self) -> None:
        """Give the pages of scratch memory back."""
        self.scratch.discard()
        self.workspace.arena.discard()

    def close(self) -> None:
        """Drop what is bound, and what delegates keep here."""
        self._frames.clear()
        self.workspace.close()

    def forget_closed(self) -> None:
        """Drop what is bound to the states of sessions that have been closed."""
        for key in list(self._frames):
            if key[2] is not None and key[2].closed:
                self._frames.pop(key, None)
        if self.served is not None and self.served.closed:
            self.served = None


class ContextPool:
    """The idle contexts of a program; used from many threads."""

    def __init__(self, make: Callable[[], ExecutionContext]) -> None:
        self._make = make
        # Re-entrant: a session may be collected at any point.
        self._lock = threading.RLock()
        self._idle: list[ExecutionContext] = []
        self._leased = 0
        self._closed = False
        self._when_drained: Callable[[], None] | None = None

    def take(self, states: StateMemory | None) -> ExecutionContext | None:
        """Lend a context for one call, None once the pool is closed."""
        with self._lock:
            if self._closed:
                return None
            for context in self._idle:
                if context.served is states:
                    self._idle.remove(context)
                    break
            else:
                context = self._idle.pop() if self._idle else self._make()
            self._leased += 1
            return context

    def put_back(self, context: ExecutionContext, states: StateMemory | None) -> None:
        """Take a context back from a call on the states of a session."""
        context.served = states
        with self._lock:
            if not self._closed:
                self._leased -= 1
                context.forget_closed()
                self._idle.append(context)
                return
        context.close()  # before the last lease ends, and delegates are closed
        with self._lock:
            self._leased -= 1
        self._finish()

    def forget_closed(self) -> None:
        """Drop frames of closed sessions; leased contexts do so on return."""
        with self._lock:
            for context in self._idle:
                context.forget_closed()

    def give_back(self) -> None:
        """Give the scratch pages of contexts that no call uses back."""
        with self._lock:
            for context in self._idle:
                context.give_back()

    def close(self, when_drained: Callable[[], None]) -> None:
        """Lend no more and drop all; call `when_drained` once no call runs any more."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed = True
            self._when_drained = when_drained
            self._leased += 1  # by this, until what is idle has been closed
        for context in idle:
            context.close()
        with self._lock:
            self._leased -= 1
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._leased or self._when_drained is None:
                return
            action, self._when_drained = self._when_drained, None
        action()


class Resources:
    """Constants, delegates and contexts; used from many threads.

    Attributes:
        pool: the contexts.
    """

    def __init__(
        self,
        path: str,
        program: Program,
        buffers: NamedBuffers,
        reference: bool | None = None,
    ) -> None:
        self._path = path
        self._reference = reference
        self._program = program
        self._buffers = buffers
        self._lock = threading.RLock()
        self._constants: dict[int, tuple[FreeableBuffer, Array]] = {}
        self._backends: dict[str, Delegate] = {}
        self._handles: dict[int, Handle] = {}
        self.pool = ContextPool(self._make_context)
        self._codes: dict[int, Code] = {}
        self._prepared: Prepared = {}

    def constant(self, name: int) -> Array:
        """Return named data that stays in memory as long as this.

        Raises as `FreeableBuffer.private_array`.
        """
        found = self._constants.get(name)
        if found is None:
            # Without the lock: different blobs are checked at the same time.
            buffer = self._buffers.handle(name)
            taken = buffer, buffer.private_array()
            with self._lock:
                found = self._constants.setdefault(name, taken)
            if found is not taken:
                buffer.free()
        return found[1]

    def code(self, method: int) -> Code:
        """Return what a method is bound with, shared by all contexts."""
        if method not in self._codes:
            made = code_of(self._program, method, self._delegate, self._prepared)
            self._codes[method] = made
        return self._codes[method]

    def backend(self, name: str) -> Delegate:
        """Return the run-time half of a backend."""
        with self._lock:
            if name not in self._backends:
                threads = settle_threads()
                options = Options(self._path, self._program, self._reference, threads)
                self._backends[name] = delegate_of(name)(options)
            return self._backends[name]

    def packed(self) -> Mapping[str, int]:
        """Return how many bytes delegates keep in a form of their own, by name."""
        total: Counter[str] = Counter()
        with self._lock:
            for backend in self._backends.values():
                total.update(backend.packed())
        return total

    def pack(self) -> tuple[Packing, ...]:
        """Make ready what calls share: torch, constants, delegates, packed weights.

        Raises:
            ExecutionError: a library refuses a partition.
            MissingPackage: a method needs torch, which is not installed.
            KvcError: as `constant`.
        """
        for number, method in enumerate(self._program.methods):
            if needs_torch(method.graph):
                check_torch(f"method {method.name}")
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

    def close(self, when_gone: Callable[[], None]) -> None:
        """Let go of everything once no call uses it, and then call `when_gone`."""

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
        return ExecutionContext(max(scratch, default=0), max(workspace, default=0))

    def _delegate(self, index: int) -> Handle:
        with self._lock:
            if index not in self._handles:
                partition = self._program.delegates[index]
                backend = self.backend(partition.backend)
                self._handles[index] = backend.init(partition, self._buffers)
            return self._handles[index]
