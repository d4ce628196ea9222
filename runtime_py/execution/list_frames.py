"""Frames made from bound lists, without a graph: each operand gets its address.

In: the bound lists of a program, the sizes of a call, memory. Out: a `ListFrame`, which
runs as a `Frame` does. All columns are evaluated as arrays, in a few hundred
microseconds. If a step fails, the method is bound from its graph, whose frame has the
same steps and knows which instruction each belongs to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kvc.runtime.execution.executor import Frame, RunProgress
from kvc.runtime.execution.list_places import (
    PlaceError,
    array_at,
    check_declared,
    check_within,
    cursor_counts,
    filled_counts,
    spans,
)
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.native import TENSOR, Failure, NativeCall, NativePartition, Steps
from kvc.runtime.native.checks import find_breach
from kvc.runtime.native.library import Library
from kvc.schema.bounds import BoundList, Bounds, RegionKind, evaluate_forms
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen
from kvc.schema.graph import CursorField, CursorSlot
from kvc.schema.two_threads import share

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]  # of the dtype TENSOR
_MOST_AXES = 8
Declared = Sequence[tuple[DType, tuple[int, ...]]]


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

    def __init__(
        self, path: str, bounds: Bounds, library: Library, threads: int
    ) -> None:
        """Take over lists whose kernels the library has; `path` is for messages."""
        self._path = path
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
        declared: tuple[Declared, Declared],
    ) -> ListFrame:
        """Return the frame of a list.

        Args:
            one: a list whose bounds include the sizes.
            sizes: the size of each symbol.
            memory: the memory of the regions.
            last: as in `ListFrame`.
            from_graph: as in `ListFrame`.
            declared: the dtypes and shapes of the method's inputs, and of its outputs.

        Raises:
            BadProgram: a step would leave its memory, or breaks its kernel's contract,
                or an input or output has another shape.
        """
        try:
            return self._bind(one, sizes, memory, last, from_graph, declared)
        except (OverflowError, PlaceError) as error:
            raise self._wrong(one, str(error)) from error

    def _bind(
        self,
        one: BoundList,
        sizes: Ints,
        memory: ListMemory,
        last: int,
        from_graph: Callable[[], Frame],
        declared: tuple[Declared, Declared],
    ) -> ListFrame:
        tables, columns = self.bounds.columns, one.columns
        values = evaluate_forms(tables, sizes)
        counts = cursor_counts(values[columns["cursor_counts"]])
        cursors = [np.zeros(count, np.int64) for count in counts]
        rows = self._rows(values)
        for what, own in zip(("inputs", "outputs"), declared, strict=True):
            check_declared(rows[columns[what]], own, what)
        regions = self._regions(one, values, rows, memory, cursors)
        steps = Steps.of_columns(
            self._library,
            self._threads,
            self._kernels[columns["step_kernels"]],
            rows[columns["operands"]],
            values[columns["integers"]],
            _numbers(one, values),
            [columns.ints(f"{name}_ends") for name in ("operand", "integer", "number")],
        )
        held = [array for arrays in regions.values() for array in arrays.values()]
        breach = find_breach(steps, held)
        if breach is not None:
            raise self._wrong(one, f"step {breach.step}: {breach.told}")
        kept = [*regions[RegionKind.FILLED].values(), *cursors]
        partition = NativePartition(steps, _fail, kept=kept)
        slots = map(_slot_of, columns["cursor_fields"].tolist())
        return ListFrame(
            NativeCall([partition]),
            [self._array(regions, rows, i) for i in columns["inputs"].tolist()],
            [self._array(regions, rows, i) for i in columns["outputs"].tolist()],
            list(zip(slots, cursors, strict=True)),
            last,
            from_graph,
        )

    def _wrong(self, one: BoundList, what: str) -> BadProgram:
        where = f"bound list {self.bounds.lists.index(one)}"
        return BadProgram(path=self._path, where=where, what=what)

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

    def _regions(
        self,
        one: BoundList,
        values: Ints,
        rows: Rows,
        memory: ListMemory,
        cursors: Sequence[Array],
    ) -> Mapping[RegionKind, Mapping[int, Array]]:
        """Return the regions of a list by kind and place; add their addresses to rows.

        Only states and scratch memory are writable.
        """
        tables, columns = self.bounds.columns, one.columns
        own = [columns[name] for name in ("operands", "inputs", "outputs")]
        used = np.unique(np.concatenate(own))
        kinds = tables["operand_regions"][used]
        there = used[kinds != RegionKind.ABSENT]
        kinds, places = (
            tables["operand_regions"][there],
            tables["operand_places"][there],
        )
        nbytes = spans(rows[there])
        filled = filled_counts(
            rows[there], nbytes, kinds, places, [len(held) for held in cursors]
        )
        names = np.unique(places[kinds == RegionKind.CONSTANT]).tolist()
        _read_all(memory.constant, names)
        regions = {
            RegionKind.CONSTANT: {i: _read_only(memory.constant(i)) for i in names},
            RegionKind.STATE: dict(enumerate(memory.states)),
            RegionKind.SCRATCH: {0: memory.scratch.bytes[: one.scratch_nbytes]},
            RegionKind.CURSOR: {i: _read_only(held) for i, held in enumerate(cursors)},
            RegionKind.FILLED: {
                form: _read_only(np.full(count, values[form], np.int64))
                for form, count in filled.items()
            },
        }
        held = [
            regions[RegionKind(kind)][place]
            for kind, place in zip(kinds.tolist(), places.tolist(), strict=True)
        ]
        check_within(rows[there], nbytes, np.array([x.nbytes for x in held], np.int64))
        rows["data"][there] += np.array([address_of(x) for x in held], np.uint64)
        return regions

    def _array(
        self,
        regions: Mapping[RegionKind, Mapping[int, Array]],
        rows: Rows,
        operand: int,
    ) -> Array:
        """Return the array of an operand."""
        tables = self.bounds.columns
        kind = RegionKind(int(tables["operand_regions"][operand]))
        held = regions[kind][int(tables["operand_places"][operand])]
        return array_at(held, rows[operand])


def _fail(failure: Failure) -> NoReturn:
    raise _StepFailed(failure)


def _read_all(constant: Callable[[int], Array], names: Sequence[int]) -> None:
    """Read and check named data by two threads."""

    def read(todo: Iterator[int]) -> None:
        for name in todo:
            constant(name)

    share(iter(names), read)


def _read_only(array: Array) -> Array:
    found = array.view()
    found.flags.writeable = False
    return found


def _numbers(one: BoundList, values: Ints) -> npt.NDArray[np.float64]:
    numbers = one.columns["numbers"].astype(np.float64)
    numbers[one.columns["varied_numbers"]] = values[one.columns["varied_forms"]]
    return numbers


def _slot_of(field: int) -> CursorSlot:
    cursor, which = divmod(field, len(CursorField))
    return CursorSlot(cursor, CursorField(which))
