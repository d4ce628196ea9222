"""Native runtimes: subgraphs ready to run, one per partition and context.

In: a subgraph, arrays at fixed addresses, sizes. Out: a function that runs the
subgraph, with one native call if nothing has changed since the last run. The runtimes
of a context share the memory for intermediate values; see `workspaces.py`.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final, NoReturn

import numpy as np

from kvc.runtime.delegates.xnnpack.apart import call_apart
from kvc.runtime.delegates.xnnpack.externals import Externals, place_externals
from kvc.runtime.delegates.xnnpack.functions import MAX_RANK
from kvc.runtime.delegates.xnnpack.library import Library
from kvc.runtime.delegates.xnnpack.subgraph import RUNTIME_FLAGS, Subgraph
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.runtime.delegates.xnnpack.workspaces import NativeWorkspace, release
from kvc.runtime.memory.arrays import Array, address_of, copy_into
from kvc.runtime.native import (
    Failure,
    NativeCall,
    NativePartition,
    Question,
    Steps,
)
from kvc.runtime.native.library import Library as NativeLibrary
from kvc.schema.errors import Closed, NativeCallFailed
from kvc.schema.frozen import frozen

# Times of the library's own operators in the last run of a runtime, for reports.


_NAMES: Final = 1  # of `xnn_profile_info`
_TIMES: Final = 2


class Timings:
    """Reads operator times from the library, or lets the native loop read them.

    Attributes:
        question: the query that kvc's native loop makes after each run while calls are
            recorded. It has no memory for the answer until the operators are known.
    """

    def __init__(self, library: Library, pointer: ctypes.c_void_p, what: str) -> None:
        """Initialize without a query.

        Args:
            library: the library.
            pointer: memory with the runtime's address, kept alive by the caller.
            what: description of the runtime, for messages.
        """
        self._library, self._what, self._pointer = library, what, pointer
        place = ctypes.addressof(pointer)
        self.question = Question(ask=library.ask, handle=place, what=_TIMES)
        self._names: Sequence[str] = ()
        self._times = np.empty(0, np.uint64)

    def forget(self) -> None:
        """Forget the operators, since the runtime has been replaced."""
        self.question.answer = None

    def of_last_run(self) -> tuple[Sequence[str], Array]:
        """Return the names of the library's operators, and their times in the last run.

        Times are uint64 [operators], in whole microseconds.

        Raises:
            NativeCallFailed: the library refuses the query.
        """
        if self.question.answer is None:
            texts = bytes(self._ask(_NAMES)).split(b"\0")[:-1]
            self._names = [text.decode(errors="backslashreplace") for text in texts]
            self._times = self._ask(_TIMES).view(np.uint64)
            self.question.nbytes = self._times.nbytes
            self.question.answer = address_of(self._times)
        elif self.question.status:
            self._check(self.question.status)
        return self._names, self._times.copy()

    def _ask(self, what: int) -> Array:
        """Return the library's answer to a query about the last run, as bytes."""
        ask, needed = (
            self._library.xnn.xnn_get_runtime_profiling_info,
            ctypes.c_size_t(),
        )
        place = ctypes.byref(needed)
        ask(self._pointer, what, 0, None, place)  # queries the number of bytes
        answer = np.empty(needed.value, np.uint8)
        self._check(ask(self._pointer, what, answer.nbytes, address_of(answer), place))
        return answer

    def _check(self, status: int) -> None:
        self._library.check(status, f"{self._what}: xnn_get_runtime_profiling_info")


# Native runtimes.


_Shapes = Sequence[tuple[int, ...]]


@frozen
class Kit:
    """The resources of a runtime.

    Attributes:
        weights: the cache of packed weights.
        workspace: the workspace of the context.
        pool: address of the thread pool; None to compute in the calling thread alone.
        what: description of the runtime, for messages.
        native: kvc's own library, whose loop calls the runtime; None if it was not
            built, in which case Python calls the runtime.
        threads: the number of threads.
    """

    weights: Weights
    workspace: NativeWorkspace
    pool: int | None
    what: str
    native: NativeLibrary | None
    threads: int


class Runtime:
    """A partition in one execution context; one call at a time runs in it."""

    def __init__(
        self, kit: Kit, build: Callable[[Mapping[str, int]], Subgraph]
    ) -> None:
        """Initialize without a native runtime.

        Args:
            kit: the resources of the runtime.
            build: returns the runtime's subgraph, given sizes for its initial shapes.
        """
        self._xnn = kit.weights.library.xnn
        self._check = kit.weights.library.check
        self._kit = kit
        self._build = build
        self._subgraph: Subgraph | None = None
        self._pointer = ctypes.c_void_p()
        self._delete = self._xnn.xnn_delete_runtime
        kit.workspace.users.append(self._pointer)
        end = weakref.finalize(self, release, self._delete, self._pointer)
        end.atexit = False
        self._closed = False
        # The last set-up: the shapes of all operands, and the token of the call.
        self._shapes: _Shapes | None = None
        self._token: object = None
        self._timings = Timings(kit.weights.library, self._pointer, kit.what)

    def make(self, sizes: Mapping[str, int]) -> Subgraph:
        """Create the native runtime unless it exists, and return its subgraph.

        Weights that are not packed yet are packed.

        Raises:
            Closed: the context has been closed.
            NativeCallFailed: the library refuses the subgraph.
            KvcError: the data of a weight cannot be read.
        """
        if self._closed:
            raise Closed(kind="program")
        self._kit.workspace.mend()
        if self._subgraph is not None and self._pointer.value is not None:
            return self._subgraph
        self._shapes = None
        self._timings.forget()
        try:
            with self._kit.weights.packing() as cache:
                made = self._subgraph = self._build(sizes)
                try:
                    self._create(made, cache)
                finally:
                    made.close()
        except BaseException:  # the library may have created it nevertheless
            release(self._delete, self._pointer)
            raise
        return made

    def _create(self, subgraph: Subgraph, cache: int) -> None:
        kit, create = self._kit, self._xnn.xnn_create_runtime_v4
        place = (kit.workspace.pointer(), kit.pool)
        out = ctypes.byref(self._pointer)
        arguments = (subgraph.pointer, cache, *place, RUNTIME_FLAGS, out)
        with kit.weights.reading_ahead():
            status = call_apart(lambda: int(create(*arguments)))
        self._check(status, f"{kit.what}: xnn_create_runtime_v4")

    def prepare(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Return a function that computes `outputs` from `inputs` at the given sizes.

        Functions that earlier calls of `prepare` returned can still be run, in any
        order.

        Raises:
            NativeCallFailed: the library refuses the partition or these sizes.
            OutOfMemory: the library cannot allocate memory for these sizes.
            KvcError: the data of a weight cannot be read.
        """
        shapes = self.make(sizes).external_shapes(sizes)
        call = _Call(place_externals(inputs, outputs), shapes, sizes)
        self._set_up(call)
        token, set_up = call.token, self._set_up
        ready = self._kit.workspace.ready

        def make_ready() -> None:
            if token not in ready:
                set_up(call)

        if self._kit.native is not None and call.externals.aligned:
            return self._native_call(self._kit.native, call.externals, make_ready)
        invoke, pointer = self._xnn.xnn_invoke_runtime, self._pointer

        def run() -> None:
            make_ready()
            status = invoke(pointer)
            if status:
                self._refuse(status)

        return _with_copies(run, call.externals)

    def _native_call(
        self,
        native: NativeLibrary,
        externals: Externals,
        make_ready: Callable[[], None],
    ) -> NativeCall:
        """Return a native call that copies inputs, runs, and copies outputs."""
        kit = self._kit
        steps = Steps(native, kit.threads, kit.weights.library.lent(kit.pool))
        for to, source in externals.before:
            steps.add("aten::copy", [to, source], [], [])
        steps.add_call(kit.weights.library.invoke, ctypes.addressof(self._pointer))
        steps.add_question(self._timings.question)
        for to, source in externals.after:
            steps.add("aten::copy", [to, source], [], [])

        def raises(failure: Failure) -> NoReturn:
            self._refuse(failure.facts[0])

        operators = self._timings.of_last_run
        partition = NativePartition(
            steps,
            raises,
            make_ready,
            "xnnpack",
            externals.kept,
            operators=operators,
        )
        return NativeCall([partition])

    def _refuse(self, status: int) -> NoReturn:
        self._check(status, f"{self._kit.what}: xnn_invoke_runtime")
        raise AssertionError("the status is that of a failure")

    def close(self) -> None:
        """Delete the runtime; a second call does nothing."""
        self._closed = True
        self._kit.workspace.ready.discard(self._token)
        release(self._delete, self._pointer)

    def _set_up(self, call: "_Call") -> None:
        """Set the native runtime up for the shapes and addresses of a call.

        Raises:
            NativeCallFailed, KvcError: as for `make`. NativeCallFailed is raised, too,
                if the library refuses the call's sizes; then all runtimes of the
                context have been deleted.
        """
        subgraph, between = self.make(call.sizes), self._kit.workspace
        ready = between.begin()
        try:
            if call.shapes != self._shapes:
                self._shapes = None
                self._reshape(subgraph, call)
                self._shapes = call.shapes
            values = call.externals.values
            status = self._xnn.xnn_setup_runtime_v2(self._pointer, len(values), values)
            self._check(status, f"{self._kit.what}: xnn_setup_runtime_v2")
        except BaseException:
            between.mend()
            raise
        ready.discard(self._token)
        self._token = call.token
        ready.add(call.token)
        between.end(ready)

    def _reshape(self, subgraph: Subgraph, call: "_Call") -> None:
        what = self._kit.what
        for index in subgraph.inputs:
            shape = call.shapes[index]
            dims = (ctypes.c_size_t * len(shape))(*shape)
            status = self._xnn.xnn_reshape_external_value(
                self._pointer, index, len(shape), dims
            )
            self._check(status, f"{what}: xnn_reshape_external_value({index}, {shape})")
        status = self._xnn.xnn_reshape_runtime(self._pointer)
        self._check(status, f"{what}: xnn_reshape_runtime")
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


@frozen
class _Call:
    """The inputs and outputs of a call, with their shapes for the library.

    Attributes:
        sizes: the sizes of the program's symbols.
        token: an object that identifies the call without keeping its arrays alive.
    """

    externals: Externals
    shapes: _Shapes
    sizes: Mapping[str, int]
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
