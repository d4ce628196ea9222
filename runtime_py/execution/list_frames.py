"""Frames made from bound lists, without a graph: each operand gets its address.

In: the bound lists of a program, the sizes of a call, memory. Out: a `ListFrame`, which
runs as a `Frame` does. All columns are evaluated as arrays, in a few hundred
microseconds. If a step fails, the method is bound from its graph, whose frame has the
same steps and knows which instruction each belongs to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from kvc.runtime.execution.executor import Frame, RunProgress
from kvc.runtime.execution.list_operands import (
    MOST_OWN,
    Ints,
    Rows,
    lies_in_order,
    rounded,
    spans,
    why_misplaced,
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
from kvc.schema.model import State
from kvc.schema.two_threads import share

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

    def __init__(
        self,
        path: str,
        bounds: Bounds,
        states: Sequence[State],
        library: Library,
        threads: int,
    ) -> None:
        """Take over lists whose kernels the library has; `path` is for messages."""
        self._path, self._states = path, states
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
        """Return the frame of a list; None if it is not for such memory.

        So it is if results lie elsewhere than in scratch memory, or if states have
        gaps, as some rows of a state whose rows do not lie one after the other.

        Args:
            one: a list whose bounds include the sizes.
            sizes: the size of each symbol.
            memory: the memory of the regions.
            last: as in `ListFrame`.
            from_graph: as in `ListFrame`.

        Raises:
            BadProgram: a step would leave its memory, or breaks its kernel's contract.
        """
        tables, columns = self.bounds.columns, one.columns
        ends = [*columns["inputs"].tolist(), *columns["outputs"].tolist()]
        if np.any(tables["operand_regions"][ends] != RegionKind.SCRATCH):
            return None
        pairs = zip(memory.states, self._states, strict=True)
        if not all(lies_in_order(held, state.layout) for held, state in pairs):
            return None
        try:
            values = evaluate_forms(tables, sizes)
        except OverflowError as error:
            raise self._wrong(one, str(error)) from error
        rows = self._rows(values)
        cursors, filled = self._own(one, values, rows)
        regions = self._regions(one, rows, memory, cursors, filled)
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
            [self._scratch(memory.scratch, rows, i) for i in columns["inputs"]],
            [self._scratch(memory.scratch, rows, i) for i in columns["outputs"]],
            list(zip(slots, cursors, strict=True)),
            last,
            from_graph,
        )

    def check_ends(
        self,
        one: BoundList,
        frame: ListFrame,
        types: Sequence[tuple[DType, tuple[int, ...]]],
    ) -> None:
        """Check dtypes and shapes of inputs, then outputs, of a frame of a list.

        Raises:
            BadProgram: one has others than its method's.
        """
        for array, (dtype, shape) in zip(
            (*frame.inputs, *frame.outputs), types, strict=True
        ):
            if array.dtype != dtype.numpy or array.shape != shape:
                raise self._wrong(one, "an input or output has another shape")

    def _wrong(self, one: BoundList, what: str) -> BadProgram:
        where = f"bound list {self.bounds.lists.index(one)}"
        return BadProgram(path=self._path, where=where, what=what)

    def _rows(self, values: Ints) -> Rows:
        """Return all operands as the library takes them; `data` has the offsets."""
        tables = self.bounds.columns
        absent = tables["operand_regions"] == RegionKind.ABSENT
        rows: Rows = np.zeros(len(absent), TENSOR)
        if np.all(absent):
            return rows
        # What an operand left out says of layout and offset is not checked.
        layouts = np.where(absent, 0, tables["operand_layouts"])
        there = self._there[layouts]
        rows["dtype"] = tables["layout_dtypes"][layouts]
        rows["rank"] = self._ranks[layouts]
        rows["dims"] = np.where(there, values[self._dims[layouts]], 0)
        rows["strides"] = np.where(there, values[self._strides[layouts]], 0)
        offsets = values[np.where(absent, 0, tables["operand_offsets"])]
        rows["data"] = offsets.view(np.uint64)
        rows[absent] = np.zeros((), TENSOR)
        return rows

    def _own(
        self, one: BoundList, values: Ints, rows: Rows
    ) -> tuple[list[Array], dict[int, Array]]:
        """Return the cursors of a list, and its filled regions by form."""
        tables = self.bounds.columns
        counts = values[one.columns["cursor_counts"]].tolist()
        if any(not 0 <= count <= MOST_OWN for count in counts):
            raise self._wrong(one, "a cursor has an impossible number of elements")
        used = _used(one)
        used = used[tables["operand_regions"][used] == RegionKind.FILLED]
        nbytes, offsets = spans(rows[used]), rows["data"][used].view(np.int64)
        most = MOST_OWN * 8
        if nbytes is None or np.any((offsets < 0) | (offsets > most) | (nbytes > most)):
            raise self._wrong(one, "an operand is too large")
        filled = dict[int, int]()
        ends = (offsets + nbytes + 7) // 8
        places = tables["operand_places"][used].tolist()
        for form, end in zip(places, ends.tolist(), strict=True):
            filled[form] = max(filled.get(form, 0), end)
        if sum(map(rounded, [*counts, *filled.values()])) > MOST_OWN:
            raise self._wrong(one, "its cursors take too much memory")
        return [np.zeros(count, np.int64) for count in counts], {
            form: np.full(count, values[form], np.int64)
            for form, count in filled.items()
        }

    def _regions(
        self,
        one: BoundList,
        rows: Rows,
        memory: ListMemory,
        cursors: Sequence[Array],
        filled: Mapping[int, Array],
    ) -> Mapping[RegionKind, Mapping[int, Array]]:
        """Return the regions of a list by kind and place; add their addresses to rows.

        Only states and scratch memory are writable.

        Raises:
            BadProgram: an operand lies outside of its region.
        """
        tables, used = self.bounds.columns, _used(one)
        kinds, places = tables["operand_regions"][used], tables["operand_places"][used]
        names = np.unique(places[kinds == RegionKind.CONSTANT]).tolist()
        _read_all(memory.constant, names)
        regions = {
            RegionKind.CONSTANT: {i: _read_only(memory.constant(i)) for i in names},
            RegionKind.STATE: dict(enumerate(memory.states)),
            RegionKind.SCRATCH: {0: memory.scratch.bytes[: one.scratch_nbytes]},
            RegionKind.CURSOR: {i: _read_only(held) for i, held in enumerate(cursors)},
            RegionKind.FILLED: {
                form: _read_only(full) for form, full in filled.items()
            },
        }
        for kind, arrays in regions.items():
            own = used[kinds == kind]
            lying = [arrays[place] for place in places[kinds == kind].tolist()]
            held = np.array([array.nbytes for array in lying], np.int64)
            wrong = why_misplaced(rows[own], rows["data"][own].view(np.int64), held)
            if wrong:
                raise self._wrong(one, wrong)
            rows["data"][own] += np.array(list(map(address_of, lying)), np.uint64)
        return regions

    def _scratch(self, scratch: Arena, rows: Rows, operand: int) -> Array:
        """Return the array of an operand in scratch memory."""
        row = rows[operand]
        dtype, rank = DType(int(row["dtype"])), int(row["rank"])
        strides = row["strides"][:rank] * dtype.itemsize
        offset = int(row["data"]) - scratch.address
        shape = tuple(row["dims"][:rank].tolist())
        memory = scratch.owner
        return np.ndarray(shape, dtype.numpy, memory, offset, tuple(strides.tolist()))


def _used(one: BoundList) -> npt.NDArray[np.generic]:
    """Return the operands of a list, each once."""
    own = [one.columns[name] for name in ("operands", "inputs", "outputs")]
    return np.unique(np.concatenate(own))


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
