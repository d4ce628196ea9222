"""The run-time part of the backend `coreai`: Apple's Core AI, or reference kernels.

In: a block that `kvc.schema.backends.coreai` supports. Out: a handle that runs the
block as a function of Core AI for each set of sizes. Without the library, the handle
runs the block with the reference, in float32. States stay in the host's memory between
calls.
"""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.coreai.context import TARGET, Context, check_installed
from kvc.runtime.delegates.coreai.naming import name_functions, name_partition
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.function import Weight
from kvc.runtime.delegates.lowering.partition import Names, lower_partition, sizes_of
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.lowering.runs import Bound, convert_into
from kvc.runtime.delegates.operands import taken_block, where_of
from kvc.runtime.delegates.reference import ReferenceHandle
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
from kvc.schema.backends.coreai import PRIMITIVES, why_not
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, MissingLibrary, listing
from kvc.schema.model import Delegate as Partition
from kvc.schema.model import Program
from kvc.schema.ops import DELEGATE

# Pack a folder of files into bytes, for an export that is a folder.


_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the earliest date in a ZIP archive


def pack_folder(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive of a folder's files, given by their paths in the folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return made.getvalue()


# The backend `coreai`.


_DTYPES: Final = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.INT64: "int32",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}
# The traits of Core AI for each precision that a payload names.
TRAITS: Final = {
    payload: DeviceTraits(PRIMITIVES, _DTYPES, half)
    for payload, half in ((b"float32", False), (b"float16", True))
}


class CoreAI(Delegate):
    """Runs partitions by Core AI."""

    runs_on = "Core AI of Apple"
    exports_folder = True

    def __init__(self, options: Options) -> None:
        """Check all partitions, and find the library unless the reference is requested.

        Raises:
            BadProgram: a partition is not for this backend.
            MissingLibrary: the library is missing, and `options.reference` is False.
        """
        self._options = options
        for partition in options.program.delegates:
            if partition.backend == "coreai":
                _check(options, partition)
        found = library_unless(options.reference, _found, "coreai")
        self._context = Context() if found else None
        self._handles: dict[int, CoreAIHandle] = {}

    @staticmethod
    def check_library() -> None:
        """Check that the library is installed.

        Raises:
            MissingLibrary: the library is not installed.
        """
        check_installed()

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Return the handle of a checked partition; see `Delegate`."""
        program = self._options.program
        if self._context is None:
            return ReferenceHandle(program, partition, data)
        if not self._handles:
            self._make_all(data, self._context)
        return self._handles[program.delegates.index(partition)]

    def _make_all(self, data: Mapping[str, FreeableBuffer], context: Context) -> None:
        """Create the handles of all partitions; their functions share an asset."""
        for number, partition in enumerate(self._options.program.delegates):
            if partition.backend == "coreai":
                self._handles[number] = CoreAIHandle(
                    self._options, partition, data, context, self._handles
                )
        sizes = {number: handle.sizes for number, handle in self._handles.items()}
        for number, names in name_functions(self._options.program, sizes).items():
            self._handles[number].call_functions(names)

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the system that exported assets run on, or () without the library."""
        try:
            check_installed()
        except MissingLibrary:
            return ()
        return (TARGET,)

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return an asset, as a packed folder, with all functions of the given handles.

        See `Delegate.export`.
        """
        mine = [each for _, each in sorted(handles.items())]
        found = [each for each in mine if isinstance(each, CoreAIHandle)]
        functions = [plan.function for each in found for plan in each.all_plans()]
        context = Context()
        try:
            files = context.store(functions, partial(_weight_of, found))
        finally:
            context.close()
        raw = pack_folder(files)
        numbers = tuple(sorted(handles))
        remark = _remark(self._options.program)
        return Packing(
            f"coreai {target}", "", numbers, len(raw), lambda: raw, True, remark
        )

    def packed(self) -> Mapping[str, int]:
        """Return the number of bytes written to the subprocess, by weight name."""
        if self._context is None:
            return {}
        return self._context.packed(self._options.program.names)

    def close(self) -> None:
        """End the subprocess that has loaded the library."""
        if self._context is not None:
            self._context.close()


class CoreAIHandle(Handle):
    """A partition that runs on Core AI."""

    def __init__(
        self,
        options: Options,
        partition: Partition,
        data: Mapping[str, FreeableBuffer],
        context: Context,
        all_handles: Mapping[int, "CoreAIHandle"],
    ) -> None:
        program = options.program
        self._program, self._context, self._all = program, context, all_handles
        method = program.methods[partition.method]
        self._method, self._block = method.name, method.blocks[partition.block]
        self._where, self._path = where_of(program, partition), options.path
        self.names = partition.names
        self._traits = TRAITS[partition.payload]
        self._called = name_partition(program, program.delegates.index(partition))
        self._data, self._buffers = data, dict[int, FreeableBuffer]()
        self._plans: dict[tuple[tuple[str, int], ...], Plan] = {}
        self.sizes = sizes_of(self._block.graph, program.symbols) or ()
        self._functions: Sequence[str] = ()

    def call_functions(self, names: Sequence[str]) -> None:
        """Set the names of the partition's functions, one for each entry of `sizes`."""
        self._functions = names

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Build and bind the function for `sizes`; see `Handle.prepare`."""
        symbols = self.sizes[0] if self.sizes else ()
        plan = self.plan({name: sizes[name] for name in symbols})
        make = partial(self._context.call, plan, self._together, self._weight)
        call = workspace.own((self, plan.function.name), make)
        return Bound(
            call,
            self._method,
            self._block,
            sizes,
            on_host(inputs),
            on_host(outputs),
            workspace.arena,
            self._constant,
        ).run

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for one set of sizes: the size of each symbol, by name.

        Raises:
            BadProgram: Core AI does not support the sizes.
        """
        key = tuple(sizes.items())
        if key not in self._plans:
            name = self._functions[self.sizes.index(sizes)]
            called = Names(name, self._called.inputs, self._called.outputs)
            try:
                found = lower_partition(self._block.graph, sizes, called, self._traits)
            except NotTaken as error:
                raise _not_taken(self._path, self._where, error) from error
            self._plans[key] = found
        return self._plans[key]

    def all_plans(self) -> list[Plan]:
        """Return the partition's plans, one for each set of sizes."""
        return [self.plan(sizes) for sizes in self.sizes]

    def _together(self, most: int) -> Sequence[Plan] | None:
        """Return the plans of all partitions; None if there are more than `most`."""
        handles = self._all.values()
        if sum(len(each.sizes) for each in handles) > most:
            return None
        return [plan for each in handles for plan in each.all_plans()]

    def _constant(self, name: int) -> Array:
        """Return named data that the host reads, by id, and keep it in memory."""
        if name not in self._buffers:
            self._buffers[name] = self._data[self._program.names[name].name]
        return self._buffers[name].array()

    def _weight(self, weight: Weight) -> Array:
        return _weight_of([*self._all.values()], weight)

    def weight(self, weight: Weight) -> Array:
        """Return a weight's elements, in the dtype of the weight.

        Raises:
            BadProgram: the dtype cannot represent an element.
        """
        name = self._program.names[weight.data].name
        with self._data[name] as buffer:
            found = buffer.array()
            made = np.empty(found.shape, weight.dtype)
            try:
                convert_into(made, found)
            except ValueError as error:
                raise _not_taken(self._path, f"the constant {name!r}", error) from error
            return made

    def close(self) -> None:
        """Free the named data that the host has read."""
        for buffer in self._buffers.values():
            buffer.free()


def _remark(program: Program) -> str:
    """Return a remark on methods that are only partly in an asset, or ""."""
    mine = {each.method for each in program.delegates if each.backend == "coreai"}
    parts = [
        method.name
        for number, method in enumerate(program.methods)
        if number not in mine
        or [step.op for step in method.graph.instructions] != [DELEGATE]
    ]
    if not parts:
        return ""
    return (
        f"the asset has not all of: {listing(parts)}; "
        "kvc dump --delegates lists what others run"
    )


def _weight_of(handles: Sequence[CoreAIHandle], weight: Weight) -> Array:
    """Return a weight's elements, read by the handle of a partition with the weight."""
    owner = next(each for each in handles if weight.data in each.names)
    return owner.weight(weight)


def _check(options: Options, partition: Partition) -> None:
    """Check that a partition is for this backend.

    Raises:
        BadProgram: the partition is not for this backend.
    """
    program = options.program
    where = where_of(program, partition)
    if partition.payload not in TRAITS:
        what = f"a payload of {len(partition.payload)} bytes that is no precision"
        raise BadProgram(path=options.path, where=where, what=what)
    graph = taken_block(program, options.path, partition, why_not).graph
    sizes = sizes_of(graph, program.symbols)
    if sizes is None:
        what = "coreai runs fixed shapes, and a size has no buckets"
        raise BadProgram(path=options.path, where=where, what=what)
    called = name_partition(program, program.delegates.index(partition))
    try:
        lower_partition(graph, sizes[0], called, TRAITS[partition.payload])
    except NotTaken as error:
        raise _not_taken(options.path, where, error) from error


def _not_taken(path: str, where: str, error: Exception) -> BadProgram:
    what = f"the backend coreai does not take it: {error}"
    return BadProgram(path=path, where=where, what=what)


def _found() -> bool:
    """Check that the library is installed, and return True.

    Raises:
        MissingLibrary: the library is not installed.
    """
    check_installed()
    return True
