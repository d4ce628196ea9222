"""The delegate `coreml`: runs partitions on the host, and exports `.mlpackage`s.

kvc does not run Core ML itself, on any system. On the host, kvc's ordinary kernels run
a partition, on numbers that are rounded to float16 where Core ML uses float16. `export`
translates the methods to Core ML's language.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.coreml.functions import CannotExport, functions_of
from kvc.runtime.delegates.coreml.package import VERSION, package_of
from kvc.runtime.delegates.coreml.translation import computed_halves, stored_halves
from kvc.runtime.delegates.fixed_point import FixedPointHandle
from kvc.runtime.delegates.operands import refuse_payload, taken_block
from kvc.runtime.execution.delegate import (
    PYTORCH,
    Delegate,
    Handle,
    Options,
    Packing,
)
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.coreml import why_not
from kvc.schema.backends.grids import Floats
from kvc.schema.errors import ExportFailed
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Delegate as Partition
from kvc.schema.model import Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.torch_package import has_torch, missing_torch

TARGET: Final = f"ios18-coremltools{VERSION}"
UNVERIFIED: Final = (
    "numbers unverified on a device: Core ML runs on Apple's systems alone, and "
    "nothing of kvc has run there"
)


class CoreMl(Delegate):
    """The run-time part."""

    runs_on = "Apple's Core ML, its float16 computed on the host"
    needs = PYTORCH
    exports_folder = True

    def __init__(self, options: Options) -> None:
        self._program, self._path = options.program, options.path

    @staticmethod
    def check_library() -> None:
        """Check that PyTorch, whose kernels compute on the host, is installed.

        Raises:
            MissingPackage: PyTorch is not installed.
        """
        if not has_torch():
            raise missing_torch("Core ML's arithmetic on the host")

    @staticmethod
    def targets() -> Sequence[str]:
        """Return the only target, whose name contains the version of coremltools."""
        return (TARGET,)

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Check a partition, and return its handle.

        Raises:
            BadProgram: the backend does not support an operator, or the partition has a
                payload.
        """
        program = self._program
        taken_block(program, self._path, partition, why_not)
        refuse_payload(program, self._path, partition)
        return CoreMlHandle(program, partition, data)

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        """Return all methods as functions of one package, as a zip archive.

        Raises:
            MissingLibrary: coremltools is missing.
            ExportFailed: a method is incomplete, or cannot be expressed in Core ML.
        """
        held = {
            name: handle
            for _, handle in sorted(handles.items())
            if isinstance(handle, CoreMlHandle)
            for name in handle.names
        }
        try:
            functions = functions_of(self._program)
        except CannotExport as error:
            reason = f"{error.reason}; kvc dump --delegates lists what others run"
            raise ExportFailed(target=target, what=error.what, reason=reason) from error
        raw = package_of(functions, partial(_stored, held, target), target)
        numbers, key = tuple(sorted(handles)), f"coreml {target}"
        return Packing(key, "", numbers, len(raw), lambda: raw, True, UNVERIFIED)

    def packed(self) -> Mapping[str, int]:
        """Return {}: no packed data is kept."""
        return {}

    def close(self) -> None:
        """Do nothing: no resource is shared."""


def _stored(held: Mapping[int, "CoreMlHandle"], target: str, name: int) -> Array:
    """Return the array of the named data with id `name`.

    Raises:
        ExportFailed: only instructions outside of the partitions read the data.
    """
    if name not in held:
        reason = (
            f"constant {name} is read by an instruction outside of Core ML's partitions"
        )
        raise ExportFailed(target=target, what="the package", reason=reason)
    return held[name].stored(name)


class _Half:
    """Rounds numbers to float16, and returns them as float32."""

    def rounded(self, numbers: Floats) -> Floats:
        """Round to the nearest float16 numbers; 65520 and more become infinite."""
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).astype(np.float32)


_HALF = _Half()


class CoreMlHandle(FixedPointHandle):
    """A partition that runs on the host; each float16 result is rounded once."""

    def __init__(
        self, program: Program, partition: Partition, data: Mapping[str, FreeableBuffer]
    ) -> None:
        graph = program.methods[partition.method].blocks[partition.block].graph
        halves = dict.fromkeys(stored_halves(graph) - _kept_as_they_are(graph), _HALF)
        super().__init__(program, partition, data, halves, self._store)
        self.names = partition.names
        self._half_weights = _read_by_halves(graph)

    def stored(self, name: int) -> Array:
        """Return named data as the bundle has it."""
        return self._buffers[name].array()

    def _store(self, value: int, numbers: Array) -> Array:
        floats = cast(Floats, numbers)
        return _HALF.rounded(floats) if value in self._half_weights else numbers


def _kept_as_they_are(graph: Graph) -> frozenset[int]:
    """Return the states before and after a write of rows: they need no rounding.

    The written rows have been rounded already.
    """
    updated = {
        value
        for step in graph.instructions
        if OPS[step.op].aliasing is Aliasing.UPDATE
        for value in step.results
    }
    return frozenset(updated | {graph.root_of(value) for value in updated})


def _read_by_halves(graph: Graph) -> frozenset[int]:
    """Return the values that instructions with float16 results read."""
    halves = computed_halves(graph)
    return frozenset(
        item.value
        for step in graph.instructions
        if halves & {*step.results}
        for argument in step.arguments
        for item in (argument if isinstance(argument, tuple) else (argument,))
        if isinstance(item, Ref)
    )
