"""Check a program's cursors: windows, and the states that are written at cursors.

In: methods whose graphs and blocks have been checked. Out: nothing, or `BadProgram`.
Sessions rely on these rules for each batch row. A method writes a state with a cursor
along the state's slots, from the cursor on, by the number of tokens that the method
declares; all other slots stay unchanged. A ring with a window can be rewound, and a
failed call does not harm it, although its old slots are overwritten. The reason is that
no query reads the lost slots again: only `kvc::attention` reads the ring, after the
call has written to it; the queries are the last tokens written; the call skips no token
before them; and queries see no keys before the window.

`cursor_uses.py` checks how a method's code uses cursors.
"""

from collections.abc import Sequence

from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField, CursorSlot
from kvc.schema.model import (
    Advance,
    Cursor,
    CursorKind,
    Method,
    Program,
    StateKind,
)
from kvc.schema.types import TensorType, bounds, symbols_of
from kvc.schema.verify.cursor_uses import CursorUses
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.graphs import Operands
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.states import fixed_symbols


class CursorChecker:
    """Checks of all cursors of a program, method by method."""

    def __init__(self, program: Program, sizes: CheckedTypes, report: Reporter) -> None:
        """Check the declarations of cursors and states.

        Raises:
            BadProgram: a declaration is impossible.
        """
        self._program, self._sizes, self._report = program, sizes, report
        self._widest: dict[int, int] = {}
        for number, cursor in enumerate(program.cursors):
            self._check_cursor(cursor, number)
        for number, state in enumerate(program.states):
            if state.window is not None:
                where, require = f"state {state.name!r}", self._report.require
                ring = state.kind is StateKind.RING and state.cursor is not None
                require(ring, where, "a window of no ring at a cursor")
                assert state.axis is not None
                least = bounds(state.type.dims[state.axis], self._sizes.symbols)[0]
                what = f"a window of {state.window} in a ring of {least} slots"
                fits = state.window.size >= 1 and state.window.longest_call(least) >= 1
                require(fits, where, what)
                self._widest[number] = 0

    def _check_cursor(self, cursor: Cursor, number: int) -> None:
        where = f"cursor {number}"
        require, states = self._report.require, self._program.states
        if cursor.name:
            self._report.name(cursor.name, where)
        counted = cursor.kind is CursorKind.STATE
        require(counted == (cursor.state is not None), where, "kind and state")
        if cursor.state is not None:
            require(cursor.state < len(states), where, "no such state")
            state = states[cursor.state]
            fits = state.kind is StateKind.COUNTER and state.type.dtype is DType.INT64
            what = f"it is {state.kind.name} of {state.type}, not COUNTER of int64"
            require(fits, where, what)
            counts = state.cursor == number
            require(counts, where, f"its state counts as the cursor {state.cursor}")
        if cursor.kind is CursorKind.LENGTH:
            growing = any(state.kind is StateKind.APPEND for state in states)
            require(growing, where, "no state grows by appending")
        for name, dim in (("capacity", cursor.capacity), ("rows", cursor.rows)):
            if dim is not None:
                self._sizes.check_dim(dim, where)
                free = symbols_of([dim]) - fixed_symbols(self._program)
                what = f"its {name} {dim} has {sorted(free)}, which no state does"
                require(not free, where, what)
        if cursor.state is not None:
            dims, rows = states[cursor.state].type.dims, cursor.rows
            agree = dims in ((), (1,)) if rows is None else dims == (rows,)
            what = f"its state is {states[cursor.state].type}, its rows are {rows}"
            require(agree, where, what)

    def check(self, method: Method, operands: Sequence[Operands]) -> None:
        """Check how a method uses cursors, and states with cursors.

        Args:
            method: a method whose graph and blocks have been checked.
            operands: for the method's graph and each block, the operands of the
                instructions.

        Raises:
            BadProgram: the method's writes contradict the declarations of its states.
        """
        where = f"method {method.name!r}"
        for advance in method.advances:
            if advance.tokens is None:
                kind = self._program.cursors[advance.cursor].kind
                counted = kind is CursorKind.STATE and advance.lengths is None
                what = f"the advance of the cursor {advance.cursor} is unknown"
                self._report.require(counted, where, what)
            if advance.lengths is not None:
                self._check_lengths(method, advance, advance.lengths, where)
            states = self._program.states
            rings = {i for i in self._widest if states[i].cursor == advance.cursor}
            missed = sorted(rings - set(method.writes))
            what = f"it advances their cursor and does not write the rings {missed}"
            self._report.require(not missed, where, what)
        # Blocks may only be lent the values that a session fills in.
        for i, value in enumerate(method.graph.values):
            if isinstance(value.storage, CursorSlot):
                self._check_slot(
                    method, value.storage, value.type, f"{where}, value {i}"
                )
        for number, block in enumerate(method.blocks):
            own = any(isinstance(v.storage, CursorSlot) for v in block.graph.values)
            what = "a block has a cursor field of its own"
            self._report.require(not own, f"{where}, block {number}", what)
        CursorUses(method, operands, self._program, self._widest, self._report).check()

    def _check_slot(
        self, method: Method, slot: CursorSlot, kind: TensorType, where: str
    ) -> None:
        require, cursors = self._report.require, self._program.cursors
        require(slot.cursor < len(cursors), where, f"no cursor {slot.cursor}")
        rows = cursors[slot.cursor].rows
        what = f"{kind} is not the {slot.field.name} of a cursor"
        require(kind.dtype is DType.INT64 and len(kind.dims) <= 1, where, what)
        counted = slot.field in (CursorField.END, CursorField.LENGTHS)
        advance = method.advance_of(slot.cursor)
        told = not counted or (advance is not None and advance.tokens is not None)
        adds = "advances nothing" if advance is None else "advances by any number"
        what = f"the {slot.field.name} of a method that {adds}"
        require(told, where, what)
        placed = slot.field is CursorField.PLACES
        known = placed or rows is None or kind.dims in ((), (1,), (rows,))
        require(known, where, f"{kind} for {rows} rows")

    def _check_lengths(
        self, method: Method, advance: Advance, index: int, where: str
    ) -> None:
        """Check the input that says how many tokens of each row count."""
        require, inputs = self._report.require, method.graph.inputs
        require(index < len(inputs), where, f"no input {index} of row lengths")
        kind = method.graph.values[inputs[index]].type
        what = f"its row lengths {method.input_names[index]!r}, {kind}"
        whole = kind.dtype in (DType.INT64, DType.BOOL) and len(kind.dims) == 1
        require(whole, where, f"{what}, are not int64 or bool of rows")
        single = kind.dtype is not DType.BOOL or advance.tokens == 1
        require(single, where, f"{what}, are of {advance.tokens} tokens")
        rows = self._program.cursors[advance.cursor].rows
        agree = kind.dims == (1 if rows is None else rows,)
        require(agree, where, f"{what}, are not those of the cursor's rows {rows}")
        states = self._program.states
        grown = [
            i
            for i in method.writes
            if states[i].kind is StateKind.APPEND and states[i].cursor == advance.cursor
        ]
        what = f"the rows of the states {grown}, which are written at the cursor,"
        require(not grown, where, f"{what} have one length")

    def finish(self) -> None:
        """Check the windows of rings, once all methods have been checked.

        Raises:
            BadProgram: a window is wider or narrower than the widest window of the
                queries.
        """
        for number, widest in self._widest.items():
            state = self._program.states[number]
            what = f"a window of {state.window}, its queries see {widest}"
            where = f"state {state.name!r}"
            same = state.window is not None and widest == state.window.size
            self._report.require(same, where, what)
