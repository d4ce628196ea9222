"""Native runtimes: subgraphs that are ready to run, one per partition and context.

In: a subgraph, arrays at fixed addresses, sizes. Out: a function that runs it, with one
native call if nothing has changed since the last run. Runtimes of a context share the
memory for intermediate values; see `workspaces.py`.
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
from kvc.runtime.native import Failure, NativeCall, NativePartition, Question, Steps
from kvc.runtime.native import Library as NativeLibrary
from kvc.schema.errors import Closed, NativeCallFailed
from kvc.schema.frozen import frozen

# What the library's own operators took in the last run of a runtime, for reports.


_NAMES: Final = 1  # of `xnn_profile_info`
_TIMES: Final = 2


class Timings:
    """Asks the library, or lets the native loop do so where it knows the place.

    Attributes:
        question: that the loop asks after each run while somebody records; without an
            answer's place at first.
    """

    def __init__(self, library: Library, pointer: ctypes.c_void_p, what: str) -> None:
        """Ask nothing yet.

        Args:
            library: that runs.
            pointer: where the runtime's address stands, kept alive by the caller.
            what: the runtime is for, for messages.
        """
        self._library, self._what, self._pointer = library, what, pointer
        place = ctypes.addressof(pointer)
        self.question = Question(ask=library.ask, handle=place, what=_TIMES)
        self._names: Sequence[str] = ()
        self._times = np.empty(0, np.uint64)

    def forget(self) -> None:
        """Forget the operators: the runtime is another one from now on."""
        self.question.answer = None

    def of_last_run(self) -> tuple[Sequence[str], Array]:
        """Return the library's operators, and what each took in the last run.

        That is uint64 [operators], whole microseconds as the library counts them.

        Raises:
            NativeCallFailed: the library does not say.
        """
        if self.question.answer is None:
            self._ask_first()
        elif self.question.status:
            self._check(self.question.status)
        return self._names, self._times.copy()

    def _ask_first(self) -> None:
        texts = bytes(self._ask(_NAMES)).split(b"\0")[:-1]
        self._names = [text.decode(errors="backslashreplace") for text in texts]
        self._times = self._ask(_TIMES).view(np.uint64)
        self.question.nbytes = self._times.nbytes
        self.question.answer = address_of(self._times)

    def _ask(self, what: int) -> Array:
        """Return what the library says of its last run, as bytes."""
        ask, needed = (
            self._library.xnn.xnn_get_runtime_profiling_info,
            ctypes.c_size_t(),
        )
        place = ctypes.byref(needed)
        ask(self._pointer, what, 0, None, place)  # says how many bytes it takes
        answer = np.empty(needed.value, np.uint8)
        self._check(ask(self._pointer, what, answer.nbytes, address_of(answer), place))
        return answer

    def _check(self, status: int) -> None:
        self._library.check(status, f"{self._what}: xnn_get_runtime_profiling_info")


# Native runtimes: subgraphs that are ready to run, one per partition and context.


_Shapes = Sequence[tuple[int, ...]]


@frozen
class Kit:
    """What runtimes are made with.

    Attributes:
        weights: where packed weights are kept.
        workspace: of the context.
        pool: address of the threads, None for the calling one alone.
        what: the runtime is for, for messages.
        native: kvc's own library, whose loop calls the runtime; None where it is
            missing, and Python does.
        threads: how many compute.
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
        """Make none before it is needed.

        Args:
            kit: what it is made with.
            build: returns its subgraph, for some sizes at first.
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
        # What has been set up last: the shapes of all operands, and which call.
        self._shapes: _Shapes | None = None
        self._token: object = None
        self._timings = Timings(kit.weights.library, self._pointer, kit.what)

    def make(self, sizes: Mapping[str, int]) -> Subgraph:
        """Make the native runtime unless it is there; packs what nobody has packed.

        Returns what it was made of.

        Raises:
            Closed: the context has been closed.
            NativeCallFailed: the library refuses.
            KvcError: the data of a weight cannot be had.
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
        except BaseException:  # the library may have made it all the same
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
        """Return a function that computes the outputs from the inputs.

        What was prepared before can still be run; the two take turns.

        Raises:
            NativeCallFailed: the library refuses the partition or these sizes.
            OutOfMemory: it gets no memory for them.
            KvcError: the data of a weight cannot be had.
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
        """Return what runs in kvc's native loop, copies included."""
        kit = self._kit
        steps = Steps(native, kit.threads, kit.weights.library.lent(kit.pool))
        for to, source in externals.before:
            steps.add("aten::copy", [to, source], [], [])
        invoke = kit.weights.library.invoke
        steps.add_call(invoke, ctypes.addressof(self._pointer))
        steps.add_question(self._timings.question)
        for to, source in externals.after:
            steps.add("aten::copy", [to, source], [], [])

        def raises(failure: Failure) -> NoReturn:
            self._refuse(failure.facts[0])

        operators = self._timings.of_last_run
        partition = NativePartition(
            steps, raises, make_ready, "xnnpack", operators=operators
        )
        return NativeCall([partition])

    def _refuse(self, status: int) -> NoReturn:
        self._check(status, f"{self._kit.what}: xnn_invoke_runtime")
        raise AssertionError("the status is that of a failure")

    def close(self) -> None:
        """Delete it; doing so twice is safe."""
        self._closed = True
        self._kit.workspace.ready.discard(self._token)
        release(self._delete, self._pointer)

    def _set_up(self, call: "_Call") -> None:
        """Make a call the one that runs.

        Raises:
            NativeCallFailed, KvcError: as `make`; or the library refuses its sizes.
                Then all runtimes of the context have been deleted.
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


@frozen
class _Call:
    """Operands and their shapes as the library has them.

    Attributes:
        sizes: of the program's symbols.
        token: is the call, but does not keep its operands alive.
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
