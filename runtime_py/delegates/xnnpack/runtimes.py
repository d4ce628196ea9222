"""Runtimes: subgraphs that are ready to run, one for each payload in each context.

In: a subgraph, arrays at addresses that stay, sizes. Out: a function that runs it,
which makes one native call where nothing has changed since the last. Runtimes of a
context share the memory for what lies between nodes; one that asks for more moves it,
and has the library set up the others again, which reads none of their inputs.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvc.runtime.arrays import Array, copy_into
from kvc.runtime.delegates.xnnpack.apart import call_apart
from kvc.runtime.delegates.xnnpack.externals import Externals, place_externals
from kvc.runtime.delegates.xnnpack.functions import MAX_RANK
from kvc.runtime.delegates.xnnpack.library import Library
from kvc.runtime.delegates.xnnpack.subgraph import RUNTIME_FLAGS, Subgraph
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.schema.errors import Closed, NativeCallFailed

_Shapes = Sequence[tuple[int, ...]]


class NativeWorkspace:
    """Memory between nodes that the runtimes of one context share.

    It goes with the last of them.
    """

    def __init__(self, library: Library) -> None:
        """Make an empty one.

        Raises:
            NativeCallFailed: the library makes none.
        """
        self.pointer = ctypes.c_void_p()
        made = library.xnn.xnn_create_workspace(ctypes.byref(self.pointer))
        library.check(made, "xnn_create_workspace")
        release = library.xnn.xnn_release_workspace
        self._closer = weakref.finalize(self, release, self.pointer.value)
        self._closer.atexit = False

    def close(self) -> None:
        """Let go of it; doing so twice is safe."""
        self._closer()


@dataclass(frozen=True, slots=True)
class Kit:
    """What runtimes are made with.

    Attributes:
        weights: where packed weights are kept.
        workspace: of the context.
        pool: address of the threads, None for the calling one alone.
        what: the runtime is for, for messages.
    """

    weights: Weights
    workspace: NativeWorkspace
    pool: int | None
    what: str


class Runtime:
    """A payload in one execution context; one call at a time runs in it."""

    def __init__(self, kit: Kit, build: Callable[[], Subgraph]) -> None:
        """Build the subgraph and make a runtime of it; packs what nobody has packed.

        Raises:
            NativeCallFailed: the library refuses.
            KvcError: the data of a weight cannot be had.
        """
        library = kit.weights.library
        self._xnn = library.xnn
        self._check = library.check
        self._kit = kit
        self._pointer = ctypes.c_void_p()
        with kit.weights.packing() as cache:
            self._subgraph = build()
            try:
                self._create(cache)
            finally:
                self._subgraph.close()
            delete = library.xnn.xnn_delete_runtime
            self._closer = weakref.finalize(self, delete, self._pointer.value)
            self._closer.atexit = False
        # What has been set up last: the shapes of all operands, and which call.
        self._shapes: _Shapes | None = None
        self._ready: object = None

    def _create(self, cache: int) -> None:
        kit, create = self._kit, self._xnn.xnn_create_runtime_v4
        place = (kit.workspace.pointer, kit.pool)
        out = ctypes.byref(self._pointer)
        arguments = (self._subgraph.pointer, cache, *place, RUNTIME_FLAGS, out)
        status = call_apart(lambda: int(create(*arguments)))
        self._check(status, f"{kit.what}: xnn_create_runtime_v4")

    def prepare(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that computes the outputs from the inputs.

        What was prepared before can still be run; the two take turns.

        Raises:
            NativeCallFailed: the library refuses these sizes.
            OutOfMemory: it gets no memory for them.
        """
        call = _Call(
            place_externals(inputs, outputs),
            self._subgraph.external_shapes(sizes),
        )
        self._set_up(call)
        token, set_up, check = call.token, self._set_up, self._check
        invoke, pointer = self._xnn.xnn_invoke_runtime, self._pointer

        def run() -> None:
            if self._ready is not token:
                set_up(call)
            status = invoke(pointer)
            if status:
                check(status, f"{self._kit.what}: xnn_invoke_runtime")

        return _with_copies(run, call.externals)

    def close(self) -> None:
        """Delete it; doing so twice is safe."""
        self._ready = None
        self._closer()

    def _set_up(self, call: "_Call") -> None:
        """Make a call the one that runs."""
        if not self._closer.alive:
            raise Closed(kind="program")
        self._ready = None
        if call.shapes != self._shapes:
            self._shapes = None
            self._reshape(call)
            self._shapes = call.shapes
        values = call.externals.values
        status = self._xnn.xnn_setup_runtime_v2(self._pointer, len(values), values)
        self._check(status, f"{self._kit.what}: xnn_setup_runtime_v2")
        self._ready = call.token

    def _reshape(self, call: "_Call") -> None:
        what = self._kit.what
        for index in self._subgraph.inputs:
            shape = call.shapes[index]
            dims = (ctypes.c_size_t * len(shape))(*shape)
            status = self._xnn.xnn_reshape_external_value(
                self._pointer, index, len(shape), dims
            )
            self._check(status, f"{what}: xnn_reshape_external_value({index}, {shape})")
        status = self._xnn.xnn_reshape_runtime(self._pointer)
        self._check(status, f"{what}: xnn_reshape_runtime")
        self._check_externals(call)

    def _check_externals(self, call: "_Call") -> None:
        """Check that the library reads and writes no more than there is.

        Raises:
            NativeCallFailed: it would.
        """
        rank, dims = ctypes.c_size_t(), (ctypes.c_size_t * MAX_RANK)()
        for index, array in enumerate(call.externals.kept):
            status = self._xnn.xnn_get_external_value_shape(
                self._pointer, index, ctypes.byref(rank), dims
            )
            what = f"{self._kit.what}: operand {index}"
            self._check(status, what)
            found = tuple(dims[: rank.value])
            if math.prod(found) != array.size:
                reason = f"it has shape {found}, the program says {array.shape}"
                raise NativeCallFailed(library="XNNPACK", what=what, reason=reason)


@dataclass(frozen=True, slots=True)
class _Call:
    """Operands and their shapes as the library has them.

    Attributes:
        token: is the call, but does not keep its operands alive.
    """

    externals: Externals
    shapes: _Shapes
    token: object = field(default_factory=object)


def _with_copies(run: Callable[[], None], externals: Externals) -> Callable[[], None]:
    before, after = externals.before, externals.after
    if not before and not after:
        return run

    def run_with_copies() -> None:
        for to, source in before:
            copy_into(to, source)
        run()
        for to, source in after:
            copy_into(to, source)

    return run_with_copies
