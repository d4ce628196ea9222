"""The run-time part of the backend `qnn`: Qualcomm's HTP, or reference kernels.

In: a block that `kvc.schema.backends.qnn` supports. Out: a handle that runs the block
as a graph of the device for each set of sizes. Without the library, the handle runs a
float16 block in float32 with the reference kernels. A block on integers then runs with
numpy, on the same integers as on the device. States stay in the host's memory.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.host_runs import PlanCall
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.operands import taken_block, where_of
from kvc.runtime.delegates.qnn.calls import Bound, rounded
from kvc.runtime.delegates.qnn.context import Context, Graph
from kvc.runtime.delegates.qnn.context_file import (
    BadContexts,
    Stored,
    read_contexts,
    write_contexts,
)
from kvc.runtime.delegates.qnn.evaluate import HostContext
from kvc.runtime.delegates.qnn.fixed_emitting import kind_of
from kvc.runtime.delegates.qnn.library import (
    ARCHITECTURES,
    LIBRARY,
    USUAL,
    check_installed,
    target_of,
)
from kvc.runtime.delegates.qnn.model_file import encode_model
from kvc.runtime.delegates.qnn.plan import Plan
from kvc.runtime.delegates.qnn.plan import Stored as Weight
from kvc.runtime.delegates.qnn.translation import translate
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.delegate import (
    Delegate,
    FoundDevice,
    Handle,
    Options,
    Packing,
    SoftwareDevice,
    Workspace,
    library_unless,
    on_host,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends import qnn, qnn_fixed
from kvc.schema.buckets import fixed_sizes
from kvc.schema.errors import BadProgram, DataFileMissing, MissingLibrary
from kvc.schema.model import Delegate as Partition


class Qnn(Delegate):
    """Runs partitions on the HTP."""

    runs_on = "the HTP of a Snapdragon"

    def __init__(self, options: Options) -> None:
        """Check all partitions, and find the library unless the reference is requested.

        Raises:
            BadProgram: a partition is not for this backend.
            MissingLibrary: the library is missing, and `options.reference` is False, or
                a device was requested.
        """
        self._options = options
        for number, partition in enumerate(options.program.delegates):
            if partition.backend == "qnn":
                _check(options, number)
        # A requested device is not replaced by the reference.
        asked = options.reference is None and options.device is not None
        find = partial(_find, options.device)
        found = library_unless(False if asked else options.reference, find, "qnn")
        self._context = None if found is None else Context(found)
        self._form = "" if found is None else f"qnn:{target_of(found)}"
        self._stored: dict[int, Mapping[str, Stored]] = {}

    @staticmethod
    def check_library() -> None:
        """Check that the library is installed.

        Raises:
            MissingLibrary: the library is not installed.
        """
        check_installed()

    @staticmethod
    def devices() -> Sequence[FoundDevice]:
        """Return an emulated device for each architecture; see `Delegate.devices`."""
        check_installed()
        return [
            FoundDevice(f"qnn:{target_of(each)}", f"{name}'s HTP, emulated", "", True)
            for each, name in ARCHITECTURES.items()
        ]

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Return the handle of a checked partition; see `Delegate`."""
        program = self._options.program
        if self._context is not None:
            found = self._contexts(partition, data)
            return QnnHandle(self._options, partition, data, self._context, found)
        if partition.payload:
            return QnnHandle(self._options, partition, data, HostContext(), {})
        return ReferenceHandle(program, partition, data)

    def _contexts(
        self, partition: Partition, data: Mapping[str, FreeableBuffer]
    ) -> Mapping[str, Stored]:
        """Return the bundle's prebuilt graphs for the requested device, by model name.

        Raises:
            BadProgram: the data of these graphs is damaged.
        """
        names = self._options.program.names
        mine = [n for n in partition.names if names[n].format == self._form]
        if self._options.device is None or not mine:
            return {}
        number = mine[0]
        if number not in self._stored:
            self._stored[number] = self._read_contexts(names[number].name, data)
        return self._stored[number]

    def _read_contexts(
        self, name: str, data: Mapping[str, FreeableBuffer]
    ) -> Mapping[str, Stored]:
        try:
            with data[name] as buffer:
                raw = buffer.array().tobytes()
        except DataFileMissing:
            return {}
        try:
            return read_contexts(raw, self._form.partition(":")[2])
        except BadContexts as error:
            what = f"these are no contexts to use: {error}"
            raise BadProgram(path=self._options.path, where=name, what=what) from error

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the names of all architectures; none if the library is missing."""
        try:
            check_installed()
        except MissingLibrary:
            return ()
        return [target_of(each) for each in ARCHITECTURES]

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return a file with the graphs of the given handles for a target.

        See `Delegate.export`.
        """
        architecture = {target_of(each): each for each in ARCHITECTURES}[target]
        context, graphs = Context(architecture), list[Stored]()
        try:
            for _, handle in sorted(handles.items()):
                if isinstance(handle, QnnHandle):
                    graphs += handle.stored(context)
        finally:
            context.close()
        raw = write_contexts(target, graphs)
        numbers = tuple(sorted(handles))
        return Packing(f"qnn {target}", "", numbers, len(raw), lambda: raw)

    def packed(self) -> Mapping[str, int]:
        """Return the number of bytes written to the subprocess, by weight name."""
        if self._context is None:
            return {}
        return self._context.packed(self._options.program.names)

    def close(self) -> None:
        """End the subprocess that has loaded the library."""
        if self._context is not None:
            self._context.close()


class QnnHandle(Handle):
    """A partition that runs on the device."""

    def __init__(
        self,
        options: Options,
        partition: Partition,
        data: Mapping[str, FreeableBuffer],
        context: Context | HostContext,
        found: Mapping[str, Stored],
    ) -> None:
        program = options.program
        self._program, self._found = program, found
        self._number = program.delegates.index(partition)
        method = program.methods[partition.method]
        self._method, self._block = method.name, method.blocks[partition.block]
        self._where = where_of(program, partition)
        self._path, self._context = options.path, context
        self._grids = _grids_of(options, partition)
        self._buffers = {i: data[program.names[i].name] for i in partition.names}
        self._plans: dict[tuple[tuple[str, int], ...], Plan] = {}
        types = (value.type for value in self._block.graph.values)
        self.sizes = fixed_sizes(program.symbols, types) or ()
        self._symbols = tuple(self.sizes[0]) if self.sizes else ()

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Build and bind the graph for `sizes`; see `Handle.prepare`."""
        plan = self.plan({name: sizes[name] for name in self._symbols})
        found = self._graph(plan)

        def make() -> PlanCall[Plan]:
            return self._context.call(plan, self.weight, found)

        call = workspace.own((self, plan.model.name), make)
        return Bound(
            call,
            self._method,
            self._block,
            sizes,
            on_host(inputs),
            on_host(outputs),
            workspace.arena,
            lambda name: self._buffers[name].array(),
        ).run

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for one set of sizes: the size of each symbol, by name.

        Raises:
            BadProgram: the device does not support the sizes.
        """
        key = tuple(sorted(sizes.items()))
        if key not in self._plans:
            named = "_".join(str(size) for _, size in key)
            name = f"p{self._number}_{named}" if named else f"p{self._number}"
            try:
                graph, grids = self._block.graph, self._grids
                self._plans[key] = translate(graph, sizes, name, grids)
            except NotTaken as error:
                what = f"the backend qnn does not take it: {error}"
                raise BadProgram(
                    path=self._path, where=self._where, what=what
                ) from error
        return self._plans[key]

    def _graph(self, plan: Plan) -> Graph | None:
        """Return a plan's prebuilt graph from the bundle; None if the bundle has none.

        Raises:
            BadProgram: the graph was built from a model that is not the plan's.
        """
        found = self._found.get(plan.model.name)
        if found is None:
            return None
        if found.digest != self._digest(plan):
            what = f"the context {plan.model.name} was made of another model"
            raise BadProgram(path=self._path, where=self._where, what=what)
        return found.graph, found.content

    def _digest(self, plan: Plan) -> str:
        """Return the digest of a plan's model and weights."""
        found = sha256(encode_model(plan.model))
        for weight in plan.stored:
            blob = self._program.names[weight.data].blob
            found.update(self._program.blobs[blob].digest)
        return found.hexdigest()

    def stored(self, context: Context) -> Iterator[Stored]:
        """Yield the graphs of all sizes, each in a separate context.

        Raises:
            NativeCallFailed, WorkerLost: the library fails to build a graph.
        """
        for sizes in self.sizes:
            plan = self.plan(sizes)
            name, content = context.store(plan, self.weight)
            yield Stored(plan.model.name, self._digest(plan), name, content)

    def weight(self, stored: Weight) -> Array:
        """Return a weight's elements as the device stores them.

        They are rounded to the weight's grid or to float16, or unchanged.
        """
        found = self._buffers[stored.data].array()
        turned = found.T if stored.transposed else found
        if stored.is_exact:
            return turned
        if stored.grid is None:
            return rounded(turned)
        whole = stored.grid.integers(turned.astype(np.float32))
        return whole.astype(kind_of(stored.grid))

    def close(self) -> None:
        """Free the named data that the host has read."""
        for buffer in self._buffers.values():
            buffer.free()


def _check(options: Options, number: int) -> None:
    """Check that a partition is for this backend.

    Raises:
        BadProgram: the partition is not for this backend.
    """
    program, partition = options.program, options.program.delegates[number]
    where = where_of(program, partition)
    grids = _grids_of(options, partition)
    taken = qnn.why_not if grids is None else qnn_fixed.why_not
    graph = taken_block(program, options.path, partition, taken).graph
    sizes = fixed_sizes(program.symbols, [value.type for value in graph.values])
    if sizes is None:
        what = "qnn runs fixed shapes, and a size has no buckets"
        raise BadProgram(path=options.path, where=where, what=what)
    try:
        translate(graph, sizes[0], "", grids)
    except NotTaken as error:
        what = f"the backend qnn does not take it: {error}"
        raise BadProgram(path=options.path, where=where, what=what) from error


def _grids_of(options: Options, partition: Partition) -> qnn_fixed.Grids | None:
    """Return the grids of a partition, None for float16.

    Raises:
        BadProgram: the payload has no grids that the device supports.
    """
    if not partition.payload:
        return None
    program = options.program
    graph = program.methods[partition.method].blocks[partition.block].graph
    where = where_of(program, partition)
    return qnn_fixed.read_payload(partition.payload, graph, options.path, where)


def _find(device: int | None) -> int:
    """Return the architecture to build for, given the index of a device or None.

    Raises:
        MissingLibrary: the library is not installed.
    """
    check_installed()
    if device is not None:
        return tuple(ARCHITECTURES)[device]
    if not _told:
        _told.append(USUAL)
        target = f"qnn:{target_of(USUAL)}"
        text = (
            f"{LIBRARY} is an emulator here, which is slow; "
            f"name it with load(..., device='{target}') or --device {target}, and this "
            "is not said"
        )
        warnings.warn(text, SoftwareDevice, stacklevel=2)
    return USUAL


_told: list[int] = []
