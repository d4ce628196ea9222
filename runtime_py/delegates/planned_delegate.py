"""Delegates whose library runs, in a subprocess, partitions of fixed shapes.

In: the partitions of a program. Out: a handle for each partition. The handle has a plan
for each set of sizes, and runs calls of the plan. Without the library, the reference
runs the partition. Subclasses define how a partition becomes a plan, and how plans are
called and exported. States stay in the host's memory between calls.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.host_runs import HostRun, PlanCall
from kvc.runtime.delegates.library_package import LibraryPackage
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.lowering.partition import sizes_of
from kvc.runtime.delegates.operands import taken_block, where_of
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.subprocess_calls import ApartContext, OfData
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Packing,
    Workspace,
    library_unless,
    on_host,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.operands import WhyNot
from kvc.schema.errors import BadProgram, MissingLibrary
from kvc.schema.graph import Graph
from kvc.schema.model import Delegate as Partition

Sizes = Mapping[str, int]  # the size of each symbol, by name
PlanT = TypeVar("PlanT")
WeightT = TypeVar("WeightT", bound=OfData)
ContextT = TypeVar("ContextT", bound=ApartContext[Any, Any, Any])
# Returns the plan of a graph at some sizes, given a name for the plan.
Translate = Callable[[Graph, Sizes, str], PlanT]


class PlannedDelegate(Delegate, ABC, Generic[PlanT, WeightT, ContextT]):
    """Runs partitions by plans.

    Attributes:
        backend: name of the backend.
        package: the library.
        all_targets: the targets that the library can export for.
        run: the class that binds a call of a plan to arrays.
    """

    backend: ClassVar[str]
    package: ClassVar[LibraryPackage]
    all_targets: ClassVar[Sequence[str]]
    run: ClassVar[type[HostRun[Any]]]

    def __init__(self, options: Options) -> None:
        """Check all partitions, and find the library unless the reference is requested.

        Raises:
            BadProgram: the library does not take a partition of this backend.
            MissingLibrary: the library is missing, and `options.reference` is False, or
                is None while a device is requested.
        """
        self._options, self._program = options, options.program
        self._data: Mapping[str, FreeableBuffer] = {}
        self._buffers: dict[int, FreeableBuffer] = {}
        self._handles = {
            number: PlannedHandle(self, options, partition)
            for number, partition in enumerate(self._program.delegates)
            if partition.backend == self.backend
        }
        sizes = {number: handle.sizes for number, handle in self._handles.items()}
        for number, names in self._names(sizes).items():
            self._handles[number].names = names
            self._handles[number].plan(sizes[number][0])
        # A requested device is not replaced by the reference.
        asked = options.reference is None and options.device is not None
        reference = False if asked else options.reference
        self._context = library_unless(reference, self._found, self.backend)

    @classmethod
    def check_library(cls) -> None:
        """Check that the library is installed.

        Raises:
            MissingLibrary: the library is not installed.
        """
        cls.package.check()

    @classmethod
    def targets(cls) -> Sequence[str]:
        """Return the names of all targets; no name if the library is missing."""
        try:
            cls.package.check()
        except MissingLibrary:
            return ()
        return cls.all_targets

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Return the handle of a checked partition; see `Delegate`."""
        self._data = data
        if self._context is None and not self._runs_here(partition):
            return ReferenceHandle(self._program, partition, data)
        return self._handles[self._program.delegates.index(partition)]

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return a file with the plans of all partitions; see `Delegate.export`."""
        with contextlib.closing(self._context_of(target)) as context:
            raw = self._exported(target, context)
        numbers, key = tuple(sorted(handles)), f"{self.backend} {target}"
        return Packing(key, "", numbers, len(raw), lambda: raw, self.exports_folder)

    def packed(self) -> Mapping[str, int]:
        """Return the number of bytes written for the subprocess, by weight name."""
        if self._context is None:
            return {}
        return self._context.packed(self._program.names)

    def close(self) -> None:
        """Free the data that the host has read, and end the library's subprocess."""
        for buffer in self._buffers.values():
            buffer.free()
        if self._context is not None:
            self._context.close()

    def constant(self, name: int) -> Array:
        """Return named data that the host reads, by id; the data stay in memory."""
        if name not in self._buffers:
            self._buffers[name] = self._data[self._program.names[name].name]
        return self._buffers[name].array()

    def weight(self, weight: WeightT) -> Array:
        """Return a weight's elements as the library stores the weight.

        Raises:
            BadProgram: the library's dtype cannot represent an element.
        """
        if self._context is None:  # calls on the host read the weights again and again
            return self._stored(weight, self.constant(weight.data))
        with self._data[self._program.names[weight.data].name] as buffer:
            return self._stored(weight, buffer.array())

    def plans(self) -> list[PlanT]:
        """Return the plans of all partitions at all their sizes."""
        return [h.plan(sizes) for h in self._handles.values() for sizes in h.sizes]

    def wrong(self, where: str, what: str) -> BadProgram:
        """Return the error that the part `where` of the bundle is wrong, for `what`."""
        return BadProgram(path=self._options.path, where=where, what=what)

    def _found(self) -> ContextT:
        """Check that the library is installed, and return a context for all calls.

        Raises:
            MissingLibrary: the library is not installed.
        """
        self.package.check()
        device = self._options.device
        target = self._usual() if device is None else self.all_targets[device]
        return self._context_of(target)

    def _usual(self) -> str:
        """Return the target of the device to run on if none was requested."""
        return self.all_targets[0]

    def _runs_here(self, partition: Partition) -> bool:
        """Tell whether `call` can run a partition without the library."""
        return False

    @abstractmethod
    def translator(self, partition: Partition) -> tuple[WhyNot, Translate[PlanT]]:
        """Return the library's support list, and a function that makes plans.

        Raises:
            BadProgram: the partition's payload is wrong.
        """

    @abstractmethod
    def call(self, partition: Partition, plan: PlanT) -> PlanCall[Any]:
        """Return a call of a plan, bound to new memory."""

    @abstractmethod
    def _context_of(self, target: str) -> ContextT:
        """Return a new context that builds plans for a target."""

    @abstractmethod
    def _names(
        self, sizes: Mapping[int, Sequence[Sizes]]
    ) -> Mapping[int, Sequence[str]]:
        """Return the names of the plans of each partition, by the partition's index.

        `sizes` has the sets of sizes of each partition, by the partition's index. The
        result has a name for each set, in the same order.
        """

    @abstractmethod
    def _stored(self, weight: WeightT, array: Array) -> Array:
        """Return `array`, the named data of a weight, as the library stores the weight.

        Raises:
            BadProgram: the library's dtype cannot represent an element.
        """

    @abstractmethod
    def _exported(self, target: str, context: ContextT) -> bytes:
        """Return the file of a target; `context` is what `_context_of` returns."""


class PlannedHandle(Handle, Generic[PlanT]):
    """A partition that a library runs by plans.

    Attributes:
        sizes: all sets of sizes of the partition's symbols.
        names: for each set of sizes, the name of the plan.
    """

    def __init__(
        self,
        delegate: PlannedDelegate[PlanT, Any, Any],
        options: Options,
        partition: Partition,
    ) -> None:
        """Check that the library takes a partition's operators and sizes.

        Raises:
            BadProgram: the library does not take an operator, or a size has no buckets.
        """
        self._delegate, self._partition = delegate, partition
        program, self._where = options.program, where_of(options.program, partition)
        self._method = program.methods[partition.method].name
        why_not, self._translate = delegate.translator(partition)
        self._block = taken_block(program, options.path, partition, why_not)
        sizes = sizes_of(self._block.graph, program.symbols)
        if sizes is None:
            what = f"{delegate.backend} runs fixed shapes, and a size has no buckets"
            raise delegate.wrong(self._where, what)
        self.sizes = sizes
        self.names: Sequence[str] = ()
        self._plans: dict[int, PlanT] = {}

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Build and bind the plan for `sizes`; see `Handle.prepare`."""
        plan = self.plan(sizes)
        make = partial(self._delegate.call, self._partition, plan)
        return self._delegate.run(
            workspace.own((self, id(plan)), make),
            self._method,
            self._block,
            sizes,
            on_host(inputs),
            on_host(outputs),
            workspace.arena,
            self._delegate.constant,
        ).run

    def plan(self, sizes: Sizes) -> PlanT:
        """Return the plan for one set of sizes.

        Raises:
            BadProgram: the library does not support the partition at these sizes.
        """
        at = self.sizes.index({name: sizes[name] for name in self.sizes[0]})
        if at not in self._plans:
            try:
                plan = self._translate(
                    self._block.graph, self.sizes[at], self.names[at]
                )
            except NotTaken as error:
                what = f"the backend {self._delegate.backend} does not take it: {error}"
                raise self._delegate.wrong(self._where, what) from error
            self._plans.setdefault(at, plan)
        return self._plans[at]

    def close(self) -> None:
        """Do nothing: the resources belong to the delegate and to workspaces."""
