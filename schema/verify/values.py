"""Check a graph's values: their types and storages.

In: a graph, and the constants and states that it can use. Out: nothing, or
`BadProgram`. `results.py` checks the storage of an instruction's results. `memory.py`
checks that a value's memory is not overwritten before the value is read.
"""

from collections.abc import Sequence
from typing import NoReturn

from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Constant, Graph, Scratch, StateSlot, Value
from kvc.schema.model import State, StateKind
from kvc.schema.types import TensorType, bounds, only_symbol
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.limits import SCRATCH_ALIGN, Reporter


@frozen
class Surroundings:
    """The data, states and sizes that a graph can use.

    Attributes:
        where: the graph's name in messages.
        constants: the type of each named data, by id.
        states: the program's states; empty for a block.
        sizes: the checker of the program's types.
    """

    where: str
    constants: Sequence[TensorType]
    states: Sequence[State]
    sizes: CheckedTypes


class ValueChecker:
    """Checker of the values of one graph."""

    def __init__(self, graph: Graph, around: Surroundings, report: Reporter) -> None:
        self.graph = graph
        self.around = around
        self.report = report
        self._taken: set[int] = set()  # states that a value holds

    def check(self) -> None:
        """Check all values of the graph.

        Raises:
            BadProgram, LimitExceeded: a value is wrong.
        """
        arena, around = self.graph.scratch_nbytes, self.around
        known: dict[int, int] = {}  # id of a type -> bytes
        for i, value in enumerate(self.graph.values):
            nbytes = known.get(id(value.type))
            if nbytes is None:
                nbytes = around.sizes.check(value.type, around.where)
                known[id(value.type)] = nbytes
            storage = value.storage
            if isinstance(storage, Scratch):
                offset = storage.offset
                if (
                    storage.nbytes != nbytes
                    or offset % SCRATCH_ALIGN
                    or not 0 <= offset <= arena - nbytes
                ):
                    self._fail_scratch(i, value, storage, nbytes)
            elif isinstance(storage, Alias):
                if not 0 <= storage.base < len(self.graph.values):
                    self.fail(i, f"shares memory with value {storage.base}")
            elif isinstance(storage, Constant):
                self._check_constant(i, value, storage.name)
            elif isinstance(storage, StateSlot):
                self._check_state(i, value, storage.state)

    def fail(self, value: int, what: str) -> NoReturn:
        """Raise `BadProgram` about a value."""
        self.report.fail(f"{self.around.where}, value {value}", what)

    def _fail_scratch(
        self, i: int, value: Value, storage: Scratch, nbytes: int
    ) -> NoReturn:
        if storage.nbytes != nbytes:
            what = f"{value.type} takes {nbytes} bytes, it has {storage.nbytes}"
        elif storage.offset % SCRATCH_ALIGN:
            what = f"offset {storage.offset} is no multiple of {SCRATCH_ALIGN}"
        else:
            arena = self.graph.scratch_nbytes
            what = f"{nbytes} bytes at {storage.offset} leave the arena of {arena}"
        self.fail(i, what)

    def _check_constant(self, i: int, value: Value, number: int) -> None:
        types = self.around.constants
        if not 0 <= number < len(types):
            self.fail(i, f"there is no named data {number}")
        if types[number] != value.type:
            self.fail(i, f"named data {number} is {types[number]}, not {value.type}")

    def _check_state(self, i: int, value: Value, number: int) -> None:
        states = self.around.states
        if number in self._taken:
            self.fail(i, f"state {number} has a value already")
        self._taken.add(number)
        if not 0 <= number < len(states):
            self.fail(i, f"there is no state {number}")
        state = states[number]
        expected = state.type
        if state.kind is StateKind.APPEND:
            expected = self._at_length(i, state, value.type)
        if expected != value.type:
            self.fail(i, f"state {number} is {state.type}, not {value.type}")

    def _at_length(self, i: int, state: State, kind: TensorType) -> TensorType:
        """Return the type of a state that grows, with the length that value `i` has."""
        dims, axis = state.type.dims, state.axis
        if axis is None or len(kind.dims) != len(dims):
            return state.type
        length = kind.dims[axis]
        if not (isinstance(length, int) or only_symbol(length) is not None):
            self.fail(i, f"its length {length} is neither a number nor a symbol")
        symbols = self.around.sizes.symbols
        (_, found), (_, greatest) = bounds(length, symbols), bounds(dims[axis], symbols)
        if found > greatest:
            self.fail(i, f"its length can be {found}, the state's only {greatest}")
        return TensorType(state.type.dtype, (*dims[:axis], length, *dims[axis + 1 :]))
