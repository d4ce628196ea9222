"""Frames made from bound lists, without a graph: each operand gets its address.

In: the bound lists of a program, the sizes of a call, memory. Out: a `ListFrame`, which
runs as a `Frame` does. All columns are evaluated as arrays, in a few hundred
microseconds. If a step fails, the method is bound from its graph, whose frame has the
same steps and knows which instruction each belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kvc.runtime.execution.executor import Frame, RunProgress
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native import TENSOR, Failure, NativeCall, NativePartition, Steps
from kvc.runtime.native.library import Library
from kvc.schema.bounds import BoundList, Bounds, RegionKind, evaluate_forms
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import CursorField, CursorSlot
from kvc.schema.two_threads import share

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]  # of the dtype TENSOR
_MOST_AXES = 8


@frozen
class ListMemory:
    """The memory of a list's regions.

    Attributes:
        scratch: at least as many bytes as the list needs.
        constant: returns named data by id.
        states: the memory of each state.
    """

    scratch: Arena
    constant: Callable[[int], Array]
    states: Sequence[Array]


class _StepFailed(Exception):
    """A step has failed; the frame of the graph tells what this means."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.fault)
        self.failure = failure


class ListFrame:
    """A bound list at some sizes and in some memory; used as `Frame`.

    Attributes:
        inputs, outputs, cursors: as in `Frame`.
        call: the native call of all steps.
    """

    def __init__(
        self,
        call: NativeCall,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        cursors: Sequence[tuple[CursorSlot, Array]],
        last: int,
        from_graph: Callable[[], Frame],
    ) -> None:
        """Take over the parts of a frame.

        Args:
            call: the native call of all steps.
            inputs: as in `Frame`.
            outputs: as in `Frame`.
            cursors: as in `Frame`.
            last: the index of the last instruction of the method.
            from_graph: binds the graph of the method to the same sizes.
        """
        self.call, self._last, self._from_graph = call, last, from_graph
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.cursors = tuple(cursors)

    @property
    def functions(self) -> Sequence[object]:
        """Return the only function, the native call."""
        return (self.call,)

    def run(self, progress: RunProgress | None = None) -> None:
        """Run all steps; raises as `Frame.run`."""
        progress = progress or RunProgress()
        progress.place = self._last
        try:
            self.call()
            return
        except _StepFailed as failed:
            failure = failed.failure
        self._from_graph().raise_at(failure, progress)


class ListBinder:
    """Binds the lists of one program; safe to use from many threads.

    Attributes:
        bounds: the lists.
    """

    def __init__(self, bounds: Bounds, library: Library, threads: int) -> None:
        """Take over lists whose kernels the library has."""
        self.bounds, self._library, self._threads = bounds, library, threads
        columns = bounds.columns
        ends = columns.ints("layout_ends")
        self._ranks = np.diff(ends, prepend=0)
        self._dims = np.zeros((len(ends), _MOST_AXES), np.int64)
        axes = np.arange(_MOST_AXES)
        self._there = axes < self._ranks[:, None]
        self._strides = self._dims.copy()
        self._dims[self._there] = columns["layout_dims"]
        self._strides[self._there] = columns["layout_strides"]
        numbers = [library.kernel(name) for name in bounds.kernels]
        self._kernels = np.array(numbers, np.int32)

    def bind(
        self,
        one: BoundList,
        sizes: Ints,
        memory: ListMemory,
        last: int,
        from_graph: Callable[[], Frame],
    ) -> ListFrame | None:
        """Return the frame of a list; None if its inputs or results are no scratch.

        Args:
            one: a list whose bounds include the sizes.
            sizes: the size of each symbol.
            memory: the memory of the regions.
            last: as in `ListFrame`.
            from_graph: as in `ListFrame`.
        """
        tables, columns = self.bounds.columns, one.columns
        ends = [*columns["inputs"].tolist(), *columns["outputs"].tolist()]
        if np.any(tables["operand_regions"][ends] != RegionKind.SCRATCH):
            return None
        values = evaluate_forms(tables, sizes)
        cursors = [
            np.zeros(values[form], np.int64) for form in columns["cursor_counts"]
        ]
        rows = self._rows(values)
        kept = self._place(one, values, rows, memory, cursors)
        steps = Steps.of_columns(
            self._library,
            self._threads,
            self._kernels[columns["step_kernels"]],
            rows[columns["operands"]],
            values[columns["integers"]],
            _numbers(one, values),
            [columns.ints(f"{name}_ends") for name in ("operand", "integer", "number")],
        )
        partition = NativePartition(steps, _fail, backend="cpu", kept=kept)
        slots = map(_slot_of, columns["cursor_fields"].tolist())
        return ListFrame(
            NativeCall([partition]),
            [self._scratch(memory.scratch, rows, i) for i in columns["inputs"]],
            [self._scratch(memory.scratch, rows, i) for i in columns["outputs"]],
            list(zip(slots, cursors, strict=True)),
            last,
            from_graph,
        )

    def _rows(self, values: Ints) -> Rows:
        """Return all operands as the library takes them; `data` has the offsets."""
        tables = self.bounds.columns
        layouts = tables["operand_layouts"]
        rows: Rows = np.zeros(len(layouts), TENSOR)
        if not len(layouts):
            return rows
        there = self._there[layouts]
        rows["dtype"] = tables["layout_dtypes"][layouts]
        rows["rank"] = self._ranks[layouts]
        rows["dims"] = np.where(there, values[self._dims[layouts]], 0)
        rows["strides"] = np.where(there, values[self._strides[layouts]], 0)
        rows["data"] = values[tables["operand_offsets"]]
        rows[tables["operand_regions"] == RegionKind.ABSENT] = np.zeros((), TENSOR)
        return rows

    def _place(
        self,
        one: BoundList,
        values: Ints,
        rows: Rows,
        memory: ListMemory,
        cursors: Sequence[Array],
    ) -> Sequence[Array]:
        """Add the addresses of regions to the offsets; return arrays to be kept."""
        tables = self.bounds.columns
        used = np.unique(one.columns["operands"])
        regions, places = tables["operand_regions"], tables["operand_places"]

        def of(kind: RegionKind) -> tuple[Ints, list[int]]:
            ids = used[regions[used] == kind]
            return ids.astype(np.int64), places[ids].tolist()

        constants, names = of(RegionKind.CONSTANT)
        _read_all(memory.constant, dict.fromkeys(names))
        data = rows["data"]
        data[constants] += _addresses(map(memory.constant, names))
        states, which = of(RegionKind.STATE)
        data[states] += _addresses(memory.states[i] for i in which)
        scratch, _ = of(RegionKind.SCRATCH)
        data[scratch] += np.uint64(memory.scratch.address)
        fields, which = of(RegionKind.CURSOR)
        data[fields] += _addresses(cursors[i] for i in which)
        filled, forms = of(RegionKind.FILLED)
        made = [
            np.full(_reach(rows[i]), values[form], np.int64)
            for i, form in zip(filled.tolist(), forms, strict=True)
        ]
        data[filled] += _addresses(made)
        for i in (*one.columns["inputs"], *one.columns["outputs"]):
            if i not in used:
                data[i] += np.uint64(memory.scratch.address)
        return [*made, *cursors]

    def _scratch(self, scratch: Arena, rows: Rows, operand: int) -> Array:
        """Return the array of an operand in scratch memory."""
        row = rows[operand]
        dtype, rank = DType(int(row["dtype"])), int(row["rank"])
        strides = row["strides"][:rank] * dtype.itemsize
        offset = int(row["data"]) - scratch.address
        shape = tuple(row["dims"][:rank].tolist())
        memory = scratch.owner
        return np.ndarray(shape, dtype.numpy, memory, offset, tuple(strides.tolist()))


def _fail(failure: Failure) -> NoReturn:
    raise _StepFailed(failure)


def _read_all(constant: Callable[[int], Array], names: Mapping[int, None]) -> None:
    """Read and check named data by two threads."""

    def read(todo: Iterator[int]) -> None:
        for name in todo:
            constant(name)

    share(iter(list(names)), read)


def _numbers(one: BoundList, values: Ints) -> npt.NDArray[np.float64]:
    numbers = one.columns["numbers"].astype(np.float64)
    numbers[one.columns["varied_numbers"]] = values[one.columns["varied_forms"]]
    return numbers


def _addresses(arrays: Iterable[Array]) -> npt.NDArray[np.uint64]:
    return np.array([address_of(one) for one in arrays], np.uint64)


def _reach(row: Any) -> int:  # noqa: ANN401  a row of the dtype TENSOR
    """Return how many elements lie from the first to the last of an operand."""
    rank = int(row["rank"])
    dims, strides = row["dims"][:rank], row["strides"][:rank]
    return int(np.sum((dims - 1) * strides)) + 1 if np.all(dims > 0) else 1


def _slot_of(field: int) -> CursorSlot:
    cursor, which = divmod(field, len(CursorField))
    return CursorSlot(cursor, CursorField(which))
