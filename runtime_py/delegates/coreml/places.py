"""Inputs, states and outputs of a function of MIL.

Core ML keeps float16 states whose initial content is zeros in its own memory. Every
other state is an input of the function, and its new content is an output whose name
ends in `_after`. A cursor is such an input and output, if the program keeps it as a
state, or otherwise an int32 input. The function computes ends and token positions from
the cursor.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kvc.runtime.delegates.coreml.mil import Emitter, NotTaken, Number, Tensor, Var
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField, CursorSlot, Graph, StateSlot, Value
from kvc.schema.model import Cursor, CursorKind, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType, evaluate

_INPUTS = {
    DType.FLOAT32: "fp32",
    DType.FLOAT16: "fp16",
    DType.INT64: "int32",
    DType.INT32: "int32",
    DType.BOOL: "int32",
}


class Places:
    """The inputs, states and outputs of a function; extended during translation.

    Attributes:
        inputs, states: inputs and states in order.
        given: values of the method's graph that exist before its first instruction.
        roots: the id of the state, by each value of the method's graph that is a state.
        exact: ids of Core ML's states that were assigned a value that is not float16.
    """

    def __init__(
        self,
        program: Program,
        method: int,
        sizes: Mapping[str, int],
        kept: frozenset[int],
        emitter: Emitter,
    ) -> None:
        self._program, self._method = program, program.methods[method]
        self._sizes, self._kept, self._emitter = sizes, kept, emitter
        self.inputs: list[Var] = []
        self.states: list[Var] = []
        self.exact: set[int] = set()
        self._of_states: dict[int, Var] = {}
        self._after: dict[int, Tensor] = {}
        self._cursors: dict[int, Tensor] = {}
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

    def value(self, value: int) -> Tensor:
        """Return the tensor of a value that exists before the first instruction."""
        graph = self._method.graph
        if value in self._inputs:
            return self._as_value(self._inputs[value], graph.values[value].type)
        if value in self.roots:
            return self._content(self.roots[value])
        return self._field(graph.values[value])

    def write(self, state: int, made: Tensor) -> Tensor:
        """Assign a new content to a state, and return the state's tensor after it."""
        var = self._of_states[state]
        if state not in self._kept:
            self._after[state] = self._emitter.cast(made, var.dtype)
            return made
        if made.dtype != "fp16":
            self.exact.add(state)
        value = self._emitter.cast(made, "fp16")
        return self._emitter.act(
            "coreml_update_state", "fp16", made.shape, state=var, value=value
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

    def outputs(self, made: Sequence[Tensor]) -> tuple[Var, ...]:
        """Return the outputs of the function, in dtypes that MIL allows for outputs."""
        names = (
            ["output"] if len(made) == 1 else [f"output{i}" for i in range(len(made))]
        )
        found = [self._output(n, t) for n, t in zip(names, made, strict=True)]
        for state, tensor in sorted(self._after.items()):
            found.append(self._output(f"{self._of_states[state].name}_after", tensor))
        if not found:
            raise NotTaken("it has no outputs")
        return tuple(found)

    def _output(self, name: str, made: Tensor) -> Var:
        dtype = {"fp16": "fp32", "bool": "int32"}.get(made.dtype, made.dtype)
        own = self._name(name)
        if dtype == made.dtype:
            return self._emitter.act("identity", dtype, made.shape, own, x=made)
        return self._emitter.act("cast", dtype, made.shape, own, x=made, dtype=dtype)

    def _input(self, word: str, kind: TensorType) -> Var:
        if kind.dtype not in _INPUTS:
            raise NotTaken(f"an input {kind}")
        shape = kind.shape(self._sizes) or (1,)
        if 0 in shape:
            raise NotTaken(f"an input of {list(shape)} has no elements")
        var = Var(word, _INPUTS[kind.dtype], shape)
        self.inputs.append(var)
        return var

    def _as_value(self, var: Var, kind: TensorType) -> Tensor:
        return self._emitter.cast(var, "bool") if kind.dtype is DType.BOOL else var

    def _add_state(self, state: int, word: str) -> None:
        told = self._program.states[state]
        if state not in self._kept:
            self._of_states[state] = self._input(word, told.type)
            return
        var = Var(word, "fp16", told.type.shape(self._sizes) or (1,))
        self.states.append(var)
        self._of_states[state] = var

    def _content(self, state: int) -> Tensor:
        var = self._of_states[state]
        if state in self._kept:
            return self._emitter.call("read_state", "fp16", var.shape, input=var)
        return self._as_value(var, self._program.states[state].type)

    def _states_of_cursors(self, slots: Sequence[int]) -> set[int]:
        cursors = {self._slot(value).cursor for value in slots}
        found = {self._program.cursors[cursor].state for cursor in cursors}
        return {state for state in found if state is not None}

    def _slot(self, value: int) -> CursorSlot:
        slot = self._method.graph.values[value].storage
        assert isinstance(slot, CursorSlot)
        return slot

    def _field(self, value: Value) -> Tensor:
        """Return a value that is a field of a cursor, in the value's shape."""
        slot, emitter = value.storage, self._emitter
        assert isinstance(slot, CursorSlot)
        shape = value.type.shape(self._sizes) or (1,)
        found = self._number(slot, shape)
        if isinstance(found, Number):
            return emitter.numbers(np.full(shape, found.value), "int32")
        if found.shape == (1,):
            return emitter.spread(found, shape)
        return emitter.reshape(found, shape)

    def _number(self, slot: CursorSlot, shape: Sequence[int]) -> Tensor | Number:
        """Return a field of a cursor: one number for all rows, or one per row."""
        emitter = self._emitter
        match slot.field:
            case CursorField.START:
                return self._start(slot.cursor)
            case CursorField.END:
                lengths = self._lengths(slot.cursor)
                return emitter.pair("add", self._start(slot.cursor), lengths)
            case CursorField.LENGTHS:
                return self._lengths(slot.cursor)
            case CursorField.PLACES:
                numbers = emitter.numbers(np.arange(*shape), "int32")
                return emitter.pair("add", self._start(slot.cursor), numbers)

    def _start(self, number: int) -> Tensor:
        if number not in self._cursors:
            self._cursors[number] = self._begin(number, self._program.cursors[number])
        return self._cursors[number]

    def _begin(self, number: int, cursor: Cursor) -> Tensor:
        if cursor.kind is CursorKind.LENGTH:
            raise NotTaken("states that become longer")
        if cursor.state is not None:
            held = self._content(cursor.state)
            return self._emitter.reshape(held, (int(np.prod(held.shape)),))
        rows = 1 if cursor.rows is None else evaluate(cursor.rows, self._sizes)
        var = Var(self._name(cursor.name or f"position{number}"), "int32", (rows,))
        self.inputs.append(var)
        return var

    def _lengths(self, number: int) -> Tensor | Number:
        """Return the number of real tokens in each batch row."""
        advance = self._method.advance_of(number)
        if advance is None:
            return Number(0, "int32")
        if advance.lengths is not None:
            var = self._inputs[self._method.graph.inputs[advance.lengths]]
            return self._emitter.reshape(var, (int(np.prod(var.shape)),))
        if advance.tokens is None:
            raise NotTaken("loops decide how many tokens count")
        return Number(evaluate(advance.tokens, self._sizes), "int32")

    def _name(self, name: str) -> str:
        """Return a unique identifier for `name`, which the caller sees."""
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
