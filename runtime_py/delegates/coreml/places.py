"""Inputs, states and outputs of a method that is lowered for Core ML.

Core ML keeps float16 states whose initial content is zeros in its own memory. Every
other state is an input of the function, and its new content is an output whose name
ends in `_after`. A cursor that the program keeps as a state is such an input and
output; any other cursor is an int32 input [rows]. The function computes ends and token
positions from the cursor.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from kvc.runtime.delegates.coreml.calls import UPDATE
from kvc.runtime.delegates.lowering.builder import BOOL, HALF, INT, Builder, NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.function import Function
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField, CursorSlot, Graph, StateSlot, Value
from kvc.schema.model import Cursor, CursorKind, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType, evaluate

_P = Primitive


class Places:
    """The inputs, states and outputs of a function; extended during translation.

    Methods take and return names of the builder's tensors.

    Attributes:
        given: ids of the values that exist before the first instruction of the method.
        roots: the id of the state, by each value of the method's graph that is a state.
        exact: ids of Core ML's states that were assigned a value that is not float16.
    """

    def __init__(
        self,
        program: Program,
        method: int,
        sizes: Mapping[str, int],
        kept: frozenset[int],
        build: Builder,
        traits: DeviceTraits,
    ) -> None:
        self._program, self._method = program, program.methods[method]
        self._sizes, self._kept, self._build = sizes, kept, build
        self._dtypes = traits.dtypes
        self.exact: set[int] = set()
        self._writes = 0
        self._of_states: dict[int, str] = {}
        self._after: dict[int, str] = {}
        self._cursors: dict[int, str] = {}
        graph = self._method.graph
        self.roots = {
            number: value.storage.state
            for number, value in enumerate(graph.values)
            if isinstance(value.storage, StateSlot)
        }
        slots = [
            n for n, v in enumerate(graph.values) if isinstance(v.storage, CursorSlot)
        ]
        used = sorted({*self.roots.values(), *self._states_of_cursors(slots)})
        words = _words_of_states(program)
        self._names = {words[state] for state in used}
        self._inputs = {
            value: self._input(self._name(name), graph.values[value].type)
            for value, name in zip(graph.inputs, self._method.input_names, strict=True)
        }
        for state in used:
            self._add_state(state, words[state])
        self.given = [*graph.inputs, *self.roots, *slots]

    def value(self, value: int) -> str:
        """Return the tensor of a value that exists before the first instruction."""
        graph = self._method.graph
        if value in self._inputs:
            return self._as_value(self._inputs[value], graph.values[value].type)
        if value in self.roots:
            return self._content(self.roots[value])
        return self._field(graph.values[value])

    def write(self, state: int, made: str) -> str:
        """Assign the tensor `made` to a state; return the state's tensor afterwards."""
        build, name = self._build, self._of_states[state]
        if state not in self._kept:
            self._after[state] = build.cast(made, build.dtype(name))
            return made
        if build.dtype(made) != HALF:
            self.exact.add(state)
        given = name, build.cast(made, HALF)
        self._writes += 1  # equal assignments are different operations
        return build.operation(
            UPDATE, given, HALF, build.shape(name), number=self._writes
        )

    def refuse_writes(self, inner: Graph, value: int, state: int) -> None:
        """Check that a partition does not write to an input that is a slice of a state.

        Args:
            inner: the partition's graph.
            value: the id of the input in `inner`.
            state: the id of the state.

        Raises:
            NotTaken: the partition writes to the input.
        """
        for step in inner.instructions:
            writes = OPS[step.op].aliasing is not Aliasing.VIEW
            if writes and any(inner.root_of(each) == value for each in step.results):
                name = self._program.states[state].name
                raise NotTaken(f"a part of the state {name!r} is written")

    def function(self, name: str, made: Sequence[str]) -> Function:
        """Return the function; `made` has the tensors of the method's results.

        Raises:
            NotTaken: the function has no outputs.
        """
        words = (
            ["output"] if len(made) == 1 else [f"output{i}" for i in range(len(made))]
        )
        found = {self._name(w): each for w, each in zip(words, made, strict=True)}
        for state, tensor in sorted(self._after.items()):
            found[self._name(f"{self._of_states[state]}_after")] = tensor
        if not found:
            raise NotTaken("it has no outputs")
        kept = (word for n, word in self._of_states.items() if n in self._kept)
        return self._build.function(name, {word: word for word in kept}, found)

    def _input(self, word: str, kind: TensorType) -> str:
        if kind.dtype not in self._dtypes or kind.dtype is DType.INT8:
            raise NotTaken(f"an input {kind}")
        shape = kind.shape(self._sizes) or (1,)
        if 0 in shape:
            raise NotTaken(f"an input of {list(shape)} has no elements")
        dtype = INT if kind.dtype is DType.BOOL else self._dtypes[kind.dtype]
        return self._build.input(word, dtype, shape)

    def _as_value(self, name: str, kind: TensorType) -> str:
        return self._build.cast(name, BOOL) if kind.dtype is DType.BOOL else name

    def _add_state(self, state: int, word: str) -> None:
        told = self._program.states[state]
        if state not in self._kept:
            self._of_states[state] = self._input(word, told.type)
            return
        shape = told.type.shape(self._sizes) or (1,)
        self._of_states[state] = self._build.input(word, HALF, shape)

    def _content(self, state: int) -> str:
        name = self._of_states[state]
        return self._as_value(name, self._program.states[state].type)

    def _states_of_cursors(self, slots: Sequence[int]) -> set[int]:
        cursors = {self._slot(value).cursor for value in slots}
        found = {self._program.cursors[cursor].state for cursor in cursors}
        return {state for state in found if state is not None}

    def _slot(self, value: int) -> CursorSlot:
        slot = self._method.graph.values[value].storage
        assert isinstance(slot, CursorSlot)
        return slot

    def _field(self, value: Value) -> str:
        """Return a value that is a field of a cursor, in the value's shape."""
        slot, build = value.storage, self._build
        assert isinstance(slot, CursorSlot)
        shape = value.type.shape(self._sizes) or (1,)
        found = self._number(slot, shape)
        if build.shape(found) == (1,):
            return build.broadcast(found, shape)
        return build.reshape(found, shape)

    def _number(self, slot: CursorSlot, shape: Sequence[int]) -> str:
        """Return a field of a cursor, [1], [rows], or the token positions.

        `shape` is the shape of the value that is the field.
        """
        build = self._build
        match slot.field:
            case CursorField.START:
                return self._start(slot.cursor)
            case CursorField.END:
                lengths = self._lengths(slot.cursor)
                return build.binary(_P.ADD, self._start(slot.cursor), lengths)
            case CursorField.LENGTHS:
                return self._lengths(slot.cursor)
            case CursorField.PLACES:
                places = build.constant(np.arange(*shape, dtype=np.int32))
                return build.binary(_P.ADD, self._start(slot.cursor), places)

    def _start(self, number: int) -> str:
        if number not in self._cursors:
            self._cursors[number] = self._begin(number, self._program.cursors[number])
        return self._cursors[number]

    def _begin(self, number: int, cursor: Cursor) -> str:
        if cursor.kind is CursorKind.LENGTH:
            raise NotTaken("states that become longer")
        if cursor.state is not None:
            return self._flat(self._content(cursor.state))
        rows = 1 if cursor.rows is None else evaluate(cursor.rows, self._sizes)
        word = self._name(cursor.name or f"position{number}")
        return self._build.input(word, INT, (rows,))

    def _flat(self, name: str) -> str:
        return self._build.reshape(name, (prod(self._build.shape(name)),))

    def _lengths(self, number: int) -> str:
        """Return the number of real tokens in each batch row, [1] or [rows].

        Raises:
            NotTaken: loops decide how many tokens count.
        """
        advance = self._method.advance_of(number)
        if advance is None:
            return self._build.number(0, INT)
        if advance.lengths is not None:
            return self._flat(self._inputs[self._method.graph.inputs[advance.lengths]])
        if advance.tokens is None:
            raise NotTaken("loops decide how many tokens count")
        return self._build.number(evaluate(advance.tokens, self._sizes), INT)

    def _name(self, name: str) -> str:
        """Return `name` as a unique identifier, which the caller sees."""
        word = _new_word(name, self._names)
        self._names.add(word)
        return word


def _words_of_states(program: Program) -> Mapping[int, str]:
    """Return an identifier for each state by its id, the same in all functions."""
    taken, words = set[str](), dict[int, str]()
    for number, state in enumerate(program.states):
        words[number] = _new_word(state.name, taken)
        taken.add(words[number])
    return words


def _new_word(name: str, taken: Collection[str]) -> str:
    """Return `name` as an identifier that is not in `taken`.

    The identifier never looks like the names that `mil.py` makes, such as `c12ab` or
    `t3`.
    """
    word = re.sub(r"\W", "_", name, flags=re.ASCII) or "x"
    if word[0].isdigit() or re.fullmatch(r"[ctw][0-9a-f]+\w*", word):
        word = f"{word}_" if not word[0].isdigit() else f"x{word}"
        word = f"x_{word}" if re.fullmatch(r"[ctw][0-9a-f]+\w*", word) else word
    while word in taken:
        word += "_"
    return word
