"""`MethodEntry`: the input types of a method, and the slots that its calls need.

In: a method of a verified program. Out: the sizes of a call, solved from its inputs and
from the lengths of growing states; then the tokens, slots and lengths that the call
needs in the session. Nothing here runs or writes anything.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvc.runtime.calls.inputs import (
    Inputs,
    InputSignature,
    RowLengthsInput,
    TokenInput,
)
from kvc.runtime.states.effects import Effects, find_effects
from kvc.runtime.states.kind import Demand, Kind, Writes
from kvc.runtime.states.owner import ALL_SLOTS, Group
from kvc.runtime.states.session_states import StateMemory
from kvc.runtime.states.table import find_writes
from kvc.schema.bounds import LOOKUPS, listed_vocabulary
from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.errors import NotEncoded, StateMismatch
from kvc.schema.frozen import frozen
from kvc.schema.graph import CursorSlot, Graph, Ref, StateSlot
from kvc.schema.model import Method, Program, State
from kvc.schema.ops import DELEGATE
from kvc.schema.types import (
    Dim,
    Symbol,
    TensorType,
    evaluate,
    settle_symbol,
    symbols_of,
)

_CHOICE = "aten::where.self"


@frozen
class MethodEntry:
    """A method, and the properties of the method that do not depend on a call.

    Attributes:
        id: the index of the method.
        method: the method as the file declares it.
        signature: the types of the method's inputs.
        reads_cursor: whether the method reads a field of a cursor.
        only_reads: whether a call never changes its session.
        cursor: the cursor that the method advances; if there are several, the cursor
            that advances by row lengths.
        tokens: the input of tokens, None if there is none.
        row_lengths: the input of row lengths, None if there is none.
        effects: the states and inputs that the method writes.
        writes: the state writes of each group of states.
        symbols: the program's symbols by name.
        slots: the growing states, grouped by the length that the method expects.
        growth: the states that the method extends, grouped by the new length and all
            lengths reached during the call.
        growing: the indices of inputs whose shapes follow growing lengths.
        steady: the indices of the other inputs.
        restarts: whether a call of the method resets the session first.
        needs: an encoder's cursor, which must not be at its first position, and the
            method that advances this cursor; None if every position is allowed.
    """

    id: int
    method: Method
    signature: InputSignature
    reads_cursor: bool
    only_reads: bool
    cursor: int
    tokens: TokenInput | None
    row_lengths: RowLengthsInput | None
    effects: Effects
    writes: tuple[Writes, ...]
    symbols: Mapping[str, Symbol]
    slots: tuple[tuple[Dim, tuple[int, ...]], ...]
    growth: tuple[tuple[Dim, tuple[Dim, ...], tuple[int, ...]], ...]
    growing: tuple[int, ...]
    steady: tuple[int, ...]
    restarts: bool
    needs: tuple[int, str] | None

    def check_encoded(self, inputs: Inputs, memory: StateMemory) -> None:
        """Check that the encoder's output, which the method reads, is present.

        Rows without tokens need no encoder output.

        Raises:
            NotEncoded: the encoder has not run.
        """
        if self.needs is None:
            return
        encoded: Sequence[int] = memory.position(self.needs[0])
        if inputs.rows is not None:
            encoded = inputs.rows.of(encoded)
        if all(encoded):
            return
        counts: Sequence[object] = [True] * len(encoded)
        if self.row_lengths is not None and not inputs.left_out:
            counts = inputs.arrays[self.row_lengths.leaf].tolist()
        rows = zip(encoded, counts, strict=False)  # their number is checked later
        if any(count and not there for there, count in rows):
            raise NotEncoded(method=self.method.name, encode=self.needs[1])

    def narrowest(self, memory: StateMemory) -> Kind | None:
        """Return the kind of state that allows the fewest tokens in a call, or None.

        Kinds whose cursor advances by a different token count are ignored.
        """
        alike = [
            advance.cursor
            for advance in self.method.advances
            if advance.tokens == self.method.advance
        ]
        whole = (w for w in self.writes if w.cursor in alike and not w.piecewise)
        kinds = [memory.kinds[writes.group] for writes in whole]
        limited = [kind for kind in kinds if kind.longest < ALL_SLOTS]
        return min(limited, key=lambda kind: kind.longest, default=None)

    def lengths(self, memory: StateMemory) -> tuple[int, ...]:
        """Return the present lengths of the growing states that the method reads."""
        lengths = memory.lengths
        return tuple([lengths[state] for _, states in self.slots for state in states])

    def solve(self, inputs: Inputs, memory: StateMemory | None) -> dict[str, int]:
        """Return the size of each symbol of a call.

        Raises:
            InputMismatch: the inputs do not have the declared shapes.
            StateMismatch: the lengths of growing states do not fit the method, or
                differ where the method expects equal lengths.
        """
        if memory is None:
            return self.signature.solve(inputs.shapes, {})
        known = dict(memory.sizes)
        if inputs.rows is not None:
            known = inputs.rows.sized(known)
        for dim, states in self.slots:
            settle_symbol(dim, memory.lengths[states[0]], known)
        sizes = self.signature.solve(inputs.shapes, known)
        for dim, states in self.slots:
            self._check_lengths(dim, states, sizes, memory)
        return sizes

    def demand(self, sizes: Mapping[str, int]) -> Demand:
        """Return the tokens, slots and lengths that a call of the given sizes needs."""
        added = {
            a.cursor: evaluate(a.tokens, sizes)
            for a in self.method.advances
            if a.tokens is not None
        }
        return Demand(
            added.pop(self.cursor, None),
            tuple([_extent(w, sizes) if w.extents != () else 0 for w in self.writes]),
            tuple(self._grown(sizes)),
            cursor=self.cursor,
            others=tuple(added.items()),
        )

    def _grown(self, sizes: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
        """Yield each extended state with its lengths, as in `Demand.lengths`."""
        for length_dim, reach_dims, states in self.growth:
            length = evaluate(length_dim, sizes)
            reach = max(evaluate(dim, sizes) for dim in reach_dims)
            for state in states:
                yield state, length, reach

    def _check_lengths(
        self,
        dim: Dim,
        states: Sequence[int],
        sizes: Mapping[str, int],
        memory: StateMemory,
    ) -> None:
        """Check that `states` have the length `dim`; the dim 0 allows any length."""
        expected, lengths = evaluate(dim, sizes), memory.lengths
        for state in states:
            if lengths[state] != expected and dim != 0:
                raise self._mismatch(memory, state, f"length {expected}")
        for name in symbols_of([dim]):
            symbol = self.symbols[name]
            if not symbol.takes(sizes[name]):
                wanted = f"length {dim} with {name} in {symbol.allowed}"
                raise self._mismatch(memory, states[0], wanted)

    def _mismatch(
        self, memory: StateMemory, state: int, expected: str
    ) -> StateMismatch:
        return StateMismatch(
            method=self.method.name,
            state=memory.states[state].name,
            expected=expected,
            found=f"length {memory.lengths[state]}",
        )


def make_entry(
    program: Program,
    index: int,
    symbols: Mapping[str, Symbol],
    groups: Sequence[Group],
) -> MethodEntry:
    """Return the entry of a method; `groups` are the program's states."""
    method = program.methods[index]
    values = method.graph.values
    reads_cursor = any(isinstance(value.storage, CursorSlot) for value in values)
    types = [values[i].type for i in method.graph.inputs]
    effects = find_effects(method, program.states)
    slots = _group_slots(method.graph, effects, program.states)
    followed = _lengths_of(method.graph, effects, slots)
    growing = tuple(i for i, k in enumerate(types) if followed & symbols_of(k.dims))
    return MethodEntry(
        id=index,
        method=method,
        signature=InputSignature(
            method.name,
            method.input_names,
            types,
            [kind.dtype.numpy for kind in types],
            symbols,
        ),
        reads_cursor=reads_cursor,
        only_reads=not (method.advances or method.writes or reads_cursor),
        cursor=_own_cursor(method),
        tokens=_find_tokens(program, index),
        row_lengths=find_row_lengths(method),
        effects=effects,
        writes=find_writes(method, effects.writes, groups),
        symbols=symbols,
        slots=slots,
        growth=_group_growth(effects),
        growing=growing,
        steady=tuple(i for i in range(len(types)) if i not in growing),
        restarts=method.role == "encode",
        needs=None if method.role == "encode" else _find_needs(program, method),
    )


def _find_needs(program: Program, method: Method) -> tuple[int, str] | None:
    """Return (cursor, encoder) of the encoder states that a method reads, or None."""
    slots = (value.storage for value in method.graph.values)
    read = {program.states[s.state].cursor for s in slots if isinstance(s, StateSlot)}
    for encode in program.methods:
        moved = {advance.cursor for advance in encode.advances} & read
        if encode.role == "encode" and encode.adapts is None and moved:
            return min(moved), encode.name
    return None


def _extent(writes: Writes, sizes: Mapping[str, int]) -> int:
    """Return the greatest number of slots that a method writes from the position on."""
    if writes.extents is None:
        return ALL_SLOTS
    return max(evaluate(dim, sizes) for dim in writes.extents)


def _own_cursor(method: Method) -> int:
    """Return the cursor that a method advances, preferably one with row lengths."""
    advances = sorted(method.advances, key=lambda one: one.lengths is None)
    return advances[0].cursor if advances else 0


def _group_slots(
    graph: Graph, effects: Effects, states: Sequence[State]
) -> tuple[tuple[Dim, tuple[int, ...]], ...]:
    """Group the growing states by the length that the method's graph declares."""
    groups: dict[Dim, list[int]] = {}
    for value, state in effects.slots:
        axis = states[state].axis
        assert axis is not None
        groups.setdefault(graph.values[value].type.dims[axis], []).append(state)
    return tuple((dim, tuple(group)) for dim, group in groups.items())


def _group_growth(
    effects: Effects,
) -> tuple[tuple[Dim, tuple[Dim, ...], tuple[int, ...]], ...]:
    """Group the states that a method extends, by their new lengths."""
    groups: dict[tuple[Dim, tuple[Dim, ...]], list[int]] = {}
    for state, growth in effects.growth.items():
        groups.setdefault((growth.length, growth.reach), []).append(state)
    return tuple((*lengths, tuple(group)) for lengths, group in groups.items())


def _lengths_of(
    graph: Graph, effects: Effects, slots: Sequence[tuple[Dim, tuple[int, ...]]]
) -> set[str]:
    """Return the symbols in the lengths that growing values have before the call."""
    dims = [dim for dim, _ in slots]
    for borrowed in effects.borrowed:
        if borrowed.growth is not None:
            declared = graph.values[borrowed.value].type.dims
            dims.append(declared[borrowed.growth.axis])
    return set(symbols_of(dims))


def find_row_lengths(method: Method) -> RowLengthsInput | None:
    """Return a method's input that holds row lengths, None without such an input."""
    leaf = next((a.lengths for a in method.advances if a.lengths is not None), None)
    if leaf is None:
        return None
    types = [method.graph.values[i].type for i in method.graph.inputs]
    (rows,) = types[leaf].dims
    name = method.input_names[leaf]
    return RowLengthsInput(
        method.name, name, leaf, types[leaf], _beside(types, leaf, rows)
    )


def _beside(
    types: Sequence[TensorType], leaf: int, rows: Dim
) -> tuple[int, int] | None:
    """Return (input, axis) of an axis of size `rows`, not of input `leaf`; or None."""
    for i, kind in enumerate(types):
        for axis, dim in enumerate(kind.dims):
            if i != leaf and dim == rows:
                return i, axis
    return None


def _find_tokens(program: Program, index: int) -> TokenInput | None:
    """Return the input of tokens, None for a method without one.

    The blocks of a method with a bound list are not read.
    """
    method, bounds = program.methods[index], program.bounds
    graph = method.graph
    if not method.role or not graph.inputs:
        return None
    kind = graph.values[graph.inputs[0]].type
    if kind.dtype is not DType.INT64 or len(kind.dims) != 2:
        return None
    vocabulary = None
    if bounds is not None:
        vocabulary = listed_vocabulary(bounds, index)
    if vocabulary is None:
        vocabulary = vocabulary_of(method, graph.inputs[0])
    return TokenInput(method.name, method.input_names[0], vocabulary)


def vocabulary_of(method: Method, tokens: int) -> int | None:
    """Return the row count of the first embedding table that is indexed by tokens.

    Returns None if no instruction indexes a table by the tokens.
    """
    return _vocabulary(method, method.graph, tokens)


def _vocabulary(method: Method, graph: Graph, tokens: int) -> int | None:
    """Return the row count of the first table of a graph that `tokens` index."""
    found = _tokens_and_filled(graph, tokens)
    for call in graph.instructions:
        if call.op == DELEGATE:
            control = read_control(call.op, call.arguments)
            inside = method.blocks[control.blocks[0]].graph
            for operand, own in zip(control.operands, inside.inputs, strict=True):
                if isinstance(operand, Ref) and graph.root_of(operand.value) in found:
                    known = _vocabulary(method, inside, own)
                    if known is not None:
                        return known
        if call.op not in LOOKUPS:
            continue
        table, indices = call.arguments[0], call.arguments[-1]
        if not isinstance(table, Ref) or not isinstance(indices, Ref):
            continue
        rows = graph.values[table.value].type.dims[0]
        if graph.root_of(indices.value) in found and isinstance(rows, int):
            return rows
    return None


def _tokens_and_filled(graph: Graph, tokens: int) -> set[int]:
    """Return the ids of the token input, and of its copies with padding replaced."""
    found = {tokens}
    for call in graph.instructions:
        if call.op != _CHOICE:
            continue
        operands = call.arguments[1:]
        roots = {graph.root_of(ref.value) for ref in operands if isinstance(ref, Ref)}
        if roots & found:
            found.update(map(graph.root_of, call.results))
    return found
