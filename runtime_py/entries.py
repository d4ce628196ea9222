"""A method as it is called: what its inputs must be, and what each call asks for.

In: a method of a verified program. Out: the sizes of a call, solved from its inputs and
from the lengths of states that grow, and from them what the call will need of the
session: tokens, slots, lengths. Nothing here runs or writes anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.runtime.effects import Effects, find_effects
from kvc.runtime.inputs import Inputs
from kvc.runtime.positions import position_input
from kvc.runtime.sizes import Signature
from kvc.runtime.states import StateMemory
from kvc.runtime.tokens import TokenInput, find_tokens
from kvc.schema.errors import CacheOverflow, StateMismatch
from kvc.schema.model import Method, Position, PositionKind, Program
from kvc.schema.types import Affine, Dim, Symbol, evaluate

ALL_SLOTS = 1 << 62


@dataclass(frozen=True, slots=True)
class Demand:
    """What one call asks of its session, at the call's sizes.

    Attributes:
        advance: tokens that it adds to the position, None when it leaves it alone.
        extent: slots from the position on that it may write.
        lengths: of each state that grows: (state, length after the call, greatest
            length on the way).
    """

    advance: int | None
    extent: int
    lengths: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A method, and what is known of it before any call.

    Attributes:
        id: of the method.
        method: as the file declares it.
        passed: indices of the graph's inputs that the caller passes.
        signature: of these.
        position: index of the graph's input that the session fills, or None.
        tokens: the input of tokens, None where there is none.
        effects: what it writes.
    """

    id: int
    method: Method
    passed: tuple[int, ...]
    signature: Signature
    position: int | None
    tokens: TokenInput | None
    effects: Effects
    symbols: Mapping[str, Symbol]

    @property
    def only_reads(self) -> bool:
        """Tell whether a call leaves its session as it is, whatever happens."""
        quiet = self.method.advance is None and self.position is None
        return quiet and not self.method.writes

    def check_tokens(self, inputs: Inputs) -> None:
        """Check the tokens of a prefill or decode.

        Raises:
            InputMismatch: one is not in the vocabulary.
        """
        if self.tokens is not None and len(inputs.shapes[0]) == 2:
            self.tokens.check(inputs.arrays[0])

    def lengths(self, memory: StateMemory) -> tuple[int, ...]:
        """Return the lengths of the states that give this method sizes."""
        return tuple(memory.tip.lengths[state] for _, state in self.effects.slots)

    def solve(self, inputs: Inputs, memory: StateMemory | None) -> dict[str, int]:
        """Return the size of each symbol of a call.

        Raises:
            InputMismatch: the inputs do not have the declared shapes.
            StateMismatch: states that grow do not fit the method, or each other.
        """
        if memory is None:
            return self.signature.solve(inputs.shapes, {})
        sizes = self.signature.solve(inputs.shapes, self._settle(memory))
        for value, state in self.effects.slots:
            self._check_length(
                self._slot_dim(value, memory, state), sizes, memory, state
            )
        return sizes

    def demand(self, sizes: Mapping[str, int]) -> Demand:
        """Return what a call of these sizes asks for."""
        advance, effects = self.method.advance, self.effects
        extents = effects.extents
        reached = (ALL_SLOTS,) if extents is None else ()
        known = tuple(evaluate(dim, sizes) for dim in extents or ())
        lengths = tuple(
            (state, evaluate(g.length, sizes), max(evaluate(d, sizes) for d in g.reach))
            for state, g in effects.growth.items()
        )
        return Demand(
            None if advance is None else evaluate(advance, sizes),
            max(reached + known, default=0),
            lengths,
        )

    def _settle(self, memory: StateMemory) -> dict[str, int]:
        """Return the sizes that a session fixed, and those that its lengths give."""
        sizes = dict(memory.sizes)
        for value, state in self.effects.slots:
            dim = self._slot_dim(value, memory, state)
            terms = dim.terms if isinstance(dim, Affine) else ()
            unknown = [(name, c) for name, c in terms if name not in sizes]
            if len(unknown) == 1 and isinstance(dim, Affine):
                name, coefficient = unknown[0]
                known = sum(c * sizes[n] for n, c in terms if n != name)
                length = memory.tip.lengths[state]
                # A length that does not divide is told when the dim is evaluated.
                sizes[name] = (length - dim.constant - known) // coefficient
        return sizes

    def _slot_dim(self, value: int, memory: StateMemory, state: int) -> Dim:
        """Return the length that a value which is a growing state is declared with."""
        axis = memory.states[state].axis
        assert axis is not None
        return self.method.graph.values[value].type.dims[axis]

    def _check_length(
        self, dim: Dim, sizes: Mapping[str, int], memory: StateMemory, state: int
    ) -> None:
        """Check a state's length; a dim of 0 is one that the method does not read."""
        expected = evaluate(dim, sizes)
        if dim != 0 and expected != memory.tip.lengths[state]:
            raise self._mismatch(memory, state, f"length {expected}")
        for name, _ in dim.terms if isinstance(dim, Affine) else ():
            symbol = self.symbols[name]
            if not symbol.lower <= sizes[name] <= symbol.upper:
                bounds = f"{symbol.lower}..{symbol.upper}"
                wanted = f"length {dim} with {name} in {bounds}"
                raise self._mismatch(memory, state, wanted)

    def _mismatch(
        self, memory: StateMemory, state: int, expected: str
    ) -> StateMismatch:
        return StateMismatch(
            method=self.method.name,
            state=memory.states[state].name,
            expected=expected,
            found=f"length {memory.tip.lengths[state]}",
        )


def make_entry(program: Program, index: int, symbols: Mapping[str, Symbol]) -> Entry:
    """Return the entry of a method."""
    method = program.methods[index]
    position = position_input(method, program.position)
    passed = tuple(i for i in range(len(method.graph.inputs)) if i != position)
    return Entry(
        id=index,
        method=method,
        passed=passed,
        signature=Signature(
            method.name,
            [method.input_names[i] for i in passed],
            [method.graph.values[method.graph.inputs[i]].type for i in passed],
            symbols,
        ),
        position=position,
        tokens=find_tokens(method),
        effects=find_effects(method, program.states),
        symbols=symbols,
    )


def check_room(demand: Demand, starts: Sequence[int], memory: StateMemory) -> None:
    """Check that a call's tokens fit behind the position.

    Raises:
        CacheOverflow: they do not.
    """
    if demand.advance is None or memory.capacity is None:
        return
    last = memory.capacity - demand.advance
    for row, start in enumerate(starts):
        if start > last:
            raise CacheOverflow(
                row=row, start=start, count=demand.advance, capacity=memory.capacity
            )


def check_growth(
    demand: Demand, memory: StateMemory, position: Position | None
) -> None:
    """Check that states which grow have room.

    Raises:
        CacheOverflow: one has not.
    """
    counts = position is not None and position.kind is PositionKind.LENGTH
    for state, _, reach in demand.lengths:
        declared, length = memory.states[state], memory.tip.lengths[state]
        assert declared.axis is not None
        capacity = memory.arrays[state].shape[declared.axis]
        if memory.capacity is not None and (counts or declared.at_position):
            capacity = min(capacity, memory.capacity)
        if reach > capacity:
            raise CacheOverflow(
                row=0, start=length, count=max(reach - length, 0), capacity=capacity
            )
