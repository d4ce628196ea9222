"""What kind of state each is, and which one counts the tokens.

In: the final program. Out: `schema.State`s and the program's `Position`. A state is
LINEAR or RING when every write to it is a `cache_update` of that mode on one axis,
otherwise PLAIN. The position is the one integer state that every method which writes
it advances by a positive size, and that says where a cache is written.
"""

from collections.abc import Iterator, Mapping

from kvc.compiler.ir import Method, Node, Program, State, Value, bound_to
from kvc.compiler.memory.aliasing import analyse
from kvc.schema import model
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, bounds

_UPDATE = "kvc::cache_update"
_KINDS = {"linear": model.StateKind.LINEAR, "circular": model.StateKind.RING}


def describe_states(
    program: Program, name_ids: Mapping[str, int]
) -> tuple[model.State, ...]:
    """Return the states as the file has them; `name_ids` numbers named data."""
    writes = list(_writes(program))
    return tuple(_describe(state, writes, name_ids) for state in program.states)


def _describe(
    state: State, writes: list[tuple[str, Node]], name_ids: Mapping[str, int]
) -> model.State:
    manners = {
        _manner(node, len(state.type.dims))
        for name, node in writes
        if name == state.name
    }
    kind, axis = manners.pop() if len(manners) == 1 else (model.StateKind.PLAIN, None)
    return model.State(
        name=state.name,
        type=state.type,
        kind=kind,
        axis=axis,
        layout=tuple(range(len(state.type.dims))),
        initial=None if state.initial is None else name_ids[state.initial],
        reset=model.ResetRule.INITIAL,
    )


def _manner(node: Node, rank: int) -> tuple[model.StateKind, int | None]:
    """Return how a node writes a state: the kind that fits, and its axis."""
    if node.op != _UPDATE:
        return model.StateKind.PLAIN, None
    axis, mode = node.arguments[3], node.arguments[4]
    assert isinstance(axis, int)
    assert isinstance(mode, str)
    return _KINDS[mode], axis % rank


def _writes(program: Program) -> Iterator[tuple[str, Node]]:
    """Yield (state, node) for every node that updates a state."""
    for method in program.methods:
        yield from _writes_of(method)


def _writes_of(method: Method) -> Iterator[tuple[str, Node]]:
    by_value = {v.id: node for node in method.nodes for v in node.outputs}
    for update in analyse(method).updates:
        yield update.state, by_value[update.value]


def find_position(program: Program) -> model.Position | None:
    """Return the program's position, None when no state is proven to be it."""
    symbols = {s.name: s for s in program.symbols}
    indices = {name for method in program.methods for name in _index_states(method)}
    for number, state in enumerate(program.states):
        if state.name in indices and _counts(program, state, symbols):
            return model.Position(
                model.PositionKind.STATE, number, "", _capacity(program, state.name)
            )
    return None


def _old_values(method: Method) -> dict[int, str]:
    """Return value id -> state for the states' old contents and clones of them."""
    states = bound_to(method.state_in)
    for node in method.nodes:
        if node.op == "aten::clone" and node.inputs[0].id in states:
            states[node.outputs[0].id] = states[node.inputs[0].id]
    return states


def _index_states(method: Method) -> Iterator[str]:
    """Yield the states that say where a cache is written."""
    states = _old_values(method)
    for node in method.nodes:
        index = node.arguments[2] if node.op == _UPDATE else None
        if isinstance(index, Value) and index.id in states:
            yield states[index.id]


def _counts(program: Program, state: State, symbols: Mapping[str, Symbol]) -> bool:
    """Tell whether every method that writes the state adds a positive size to it."""
    if state.type.dtype is not DType.INT64:
        return False
    advances = [
        _advance(method, value, state.name)
        for method in program.methods
        for value, name in method.state_out
        if name == state.name
    ]
    lows = [bounds(step, symbols)[0] for step in advances if step is not None]
    return bool(advances) and len(lows) == len(advances) and min(lows) > 0


def _advance(method: Method, new: Value, state: str) -> int | Affine | None:
    """Return what a method adds to a state, None when it does anything else."""
    states = _old_values(method)
    by_value = {v.id: node for node in method.nodes for v in node.outputs}
    node = by_value.get(new.id)
    if node is not None and node.op == "aten::copy":
        moved = node.arguments[1]
        assert isinstance(moved, Value)
        node = by_value.get(moved.id)
    if node is None or node.op != "aten::add.Scalar":
        return None
    old, step, alpha = node.arguments
    if not isinstance(old, Value) or states.get(old.id) != state or alpha != 1:
        return None
    return step if isinstance(step, int | Affine) else None


def _capacity(program: Program, position: str) -> int | None:
    """Return the fewest slots of the caches that are written linearly at a state."""
    slots = (
        size for method in program.methods for size in _linear_slots(method, position)
    )
    return min(slots, default=None)


def _linear_slots(method: Method, position: str) -> Iterator[int]:
    """Yield the slots of each cache that a method writes linearly at a state.

    A cache with another index fills up by that index, whatever the position is.
    """
    states = _old_values(method)
    for _, node in _writes_of(method):
        if node.op != _UPDATE or node.arguments[4] != "linear":
            continue
        index, axis = node.arguments[2], node.arguments[3]
        assert isinstance(axis, int)
        size = node.inputs[0].type.dims[axis]
        at_position = isinstance(index, Value) and states.get(index.id) == position
        if at_position and isinstance(size, int):
            yield size
