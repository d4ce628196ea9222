"""Cursors: what counts tokens, and by how much each method advances it.

In: the proven program. Out: a `Counting` for each. One is, in this order: an input
that methods declare as their position; an integer state that every method which writes
it advances by a size, and that says where caches are written or advances by the tokens
of a method with a role; the common length of the states that grow.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvc.compiler.analysis.advances import (
    Step,
    find_steps,
    row_lengths_input,
    token_counts,
)
from kvc.compiler.analysis.growth import growth, one_length
from kvc.compiler.analysis.updates import CacheWrite, cache_writes
from kvc.compiler.ir import Method, Node, Program, State, Value
from kvc.schema import model
from kvc.schema.dtypes import DType
from kvc.schema.errors import CompileError
from kvc.schema.types import Dim, Symbol, bounds, symbols_in, symbols_of

# Views and copies of a position that still say the same of each row.
SAME_PLACES = {
    "aten::view", "aten::expand", "aten::unsqueeze", "aten::squeeze.dims",
    "aten::alias", "aten::clone", "aten::reshape",
}  # fmt: skip


def says_same(node: Node) -> bool:
    """Tell whether a node's result says of each row what its first operand does."""
    single = all(size == 1 for size in node.inputs[0].type.dims)
    return node.op in SAME_PLACES and (node.op != "aten::expand" or single)


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts tokens.

    Attributes:
        position: as the file has it.
        advances: method -> tokens that it adds; methods that add none are left out.
        row_lengths: method -> index of the input that says how many of them count in
            each row; methods in which all do are left out.
        counters: names of the states that every method advances as the position.
        places: methods that take the position of each token, and not of each row.
        lengths: names of the states whose common length it is.
    """

    position: model.Cursor
    advances: Mapping[str, Dim] = field(default_factory=dict)
    row_lengths: Mapping[str, int] = field(default_factory=dict)
    counters: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()


def find_countings(program: Program) -> tuple[Counting, ...]:
    """Return all that counts tokens, first what the methods with a role advance.

    Raises:
        CompileError: a method does not say what it adds, or prefill and decode add to
            different cursors.
    """
    symbols = {s.name: s for s in program.symbols}
    declared = dict.fromkeys(m.position for m in program.methods if m.position)
    found = [_by_input(program, name, symbols) for name in declared]
    for state in program.states:
        if not any(state.name in counting.counters for counting in found):
            counting = _by_state(program, state, symbols)
            found += [] if counting is None else [counting]
    return _main_first(program, [*found, *_by_length(program, found, symbols)])


def _main_first(program: Program, found: Sequence[Counting]) -> tuple[Counting, ...]:
    """Put what most methods with a role advance first.

    Raises:
        CompileError: those that advance anything have none in common.
    """
    roles = [method.name for method in program.methods if method.role]
    told = [sum(name in one.advances for name in roles) for one in found]
    advancing = sum(any(name in one.advances for one in found) for name in roles)
    if len(found) > 1 and advancing and max(told) < advancing:
        apart = " and ".join(repr(one.position.name) for one in found)
        message = (
            f"methods with a role advance different positions, {apart}: one of them "
            "has to count the tokens of prefill and of decode"
        )
        raise CompileError(message=message)
    order = sorted(range(len(found)), key=lambda number: -told[number])
    return tuple(found[number] for number in order)


def position_values(method: Method, start: Value) -> set[int]:
    """Return the ids of the values that say the same as a position's old value.

    Of the places of all tokens the first says it, but not where rows have positions.
    """
    same = _same_values(method, start, firsts=False)
    return same if _is_by_row(method, start) else _same_values(method, start, True)


def _same_values(method: Method, start: Value, firsts: bool) -> set[int]:
    same = {start.id}
    for node in method.nodes:
        if not node.inputs or node.inputs[0].id not in same:
            continue
        if says_same(node) or (firsts and _is_first(node, start)):
            same.update(value.id for value in node.outputs)
    return same


def _is_by_row(method: Method, start: Value) -> bool:
    """Tell whether a method is given a position for each row, int64 [batch]."""
    same = _same_values(method, start, firsts=False)
    indices = [write.index for write in cache_writes(method)]
    return len(start.type.dims) == 1 and any(i and i.id in same for i in indices)


def _is_first(node: Node, start: Value) -> bool:
    """Tell whether a node picks the first of the positions that a session fills in."""
    if node.inputs[0].id != start.id or len(start.type.dims) != 1:
        return False
    match node.op, node.arguments:
        case "aten::select.int", (_, _, 0):
            return True
        case "aten::slice.Tensor", (_, _, 0 | None, 1, 1):
            return True
    return False


def start_of(method: Method, position: model.Cursor, program: Program) -> Value | None:
    """Return the value that is the position when a method starts, None without one."""
    if position.kind is model.CursorKind.SESSION:
        named = zip(method.input_names, method.inputs, strict=True)
        return next((v for name, v in named if name == position.name), None)
    if position.state is None:
        return None
    name = program.states[position.state].name
    return next((value for value, n in method.state_in if n == name), None)


def _by_input(program: Program, name: str, symbols: Mapping[str, Symbol]) -> Counting:
    position = model.Cursor(name, model.CursorKind.SESSION, None, None, None)
    advances: dict[str, Dim] = {}
    rows: dict[str, int] = {}
    starts = [start_of(method, position, program) for method in program.methods]
    pairs = list(zip(program.methods, starts, strict=True))
    # One place for each token, if that is so in any method.
    places = any(s is not None and are_places(m, s) for m, s in pairs)
    fixed = symbols_in(state.type for state in program.states)
    by_row = {
        _rows(s.type.dims) for m, s in pairs if s is not None and not are_places(m, s)
    } - {None}
    known = [rows for rows in by_row if rows and symbols_of([rows]) <= set(fixed)]
    position = replace(position, rows=min(known, key=str, default=None))
    for method, start in pairs:
        if start is None or not (method.state_out or method.input_out):
            continue
        counted = _row_lengths_of(method, start)
        if counted is not None:
            rows[method.name] = counted
        added = {w.count for w in _writes_at(method, start)}
        if are_places(method, start) or (places and start.type.dims == (1,)):
            added.add(start.type.dims[0])
        if not added:
            added = token_counts(method)
        if len(added) != 1:
            raise _uncounted(method, name, added)
        advances[method.name] = added.pop()
    found = _find_places(program, position, advances)
    counting = _with_limits(program, position, advances, rows, symbols)
    return replace(counting, places=found)


def _find_places(
    program: Program, position: model.Cursor, advances: Mapping[str, Dim]
) -> frozenset[str]:
    """Return the methods whose position is that of each token, and not of each row.

    What a method takes that writes nothing, those say that write.
    """
    found: dict[str, bool] = {}
    for method in sorted(program.methods, key=lambda m: m.name not in advances):
        start = start_of(method, position, program)
        if start is None or start.type.dims in ((), (1,)):
            continue
        if method.name in advances:
            found[method.name] = are_places(method, start)
        elif start.type.is_static and len(set(found.values())) == 1:
            (found[method.name],) = set(found.values())
        else:
            found[method.name] = _looks_like_places(method, start, program)
    return frozenset(name for name, places in found.items() if places)


def _looks_like_places(method: Method, start: Value, program: Program) -> bool:
    """Tell whether sizes say that a position is of tokens, not of rows."""
    fixed = symbols_in(state.type for state in program.states)
    if not symbols_of(start.type.dims).isdisjoint(fixed):
        return False
    others = [value.type.dims for value in method.inputs if value.id != start.id]
    rows = {dims[0] for dims in others if dims}
    tokens = {dims[1] for dims in others if len(dims) > 1}
    return start.type.dims[0] not in rows - tokens


def are_places(method: Method, start: Value) -> bool:
    """Tell whether a method is given the places of all its tokens, int64 [tokens]."""
    return start.type.dims not in ((), (1,)) and not _is_by_row(method, start)


def _rows(dims: tuple[Dim, ...]) -> Dim | None:
    """Return how many rows have positions of their own, None for one of all."""
    return dims[0] if dims and dims != (1,) else None


def _uncounted(method: Method, name: str, added: set[Dim]) -> CompileError:
    """Return the error for a method that writes states but counts no tokens."""
    found = f"{' and '.join(map(str, added))} tokens" if added else "nothing"
    message = (
        f"method {method.name} is given the position as {name!r} and writes states, "
        "but by how much it advances the position cannot be told: what it writes there "
        f"and its inputs say {found}. Write its caches at the position with "
        "index_copy_ or torch.ops.kvc.cache_update, take the places of all new tokens "
        "(int64 [seq]), or take tokens, int64 [batch, seq]"
    )
    return CompileError(message=message)


def _row_lengths_of(method: Method, start: Value) -> int | None:
    """Return the input that says how many tokens count, None where all do.

    Raises:
        CompileError: not all writes at the position count alike, or by an input.
    """
    counted = [write.counted for write in _writes_at(method, start)]
    if not any(counted):
        return None
    found = {row_lengths_input(method, value) for value in counted}
    inputs = [method.inputs[i] for i in found if i is not None]
    if len(found) != 1 or [value.type.dims for value in inputs] != [start.type.dims]:
        raise _ambiguous_row_lengths(method)
    return found.pop()


def _ambiguous_row_lengths(method: Method) -> CompileError:
    message = (
        f"method {method.name} writes caches at its position with counts, but not all "
        "of them with those of one input: pass the same counts to each "
        "torch.ops.kvc.cache_update, an input int64 [batch] or bool [batch] cast to "
        "int64, one for each position"
    )
    return CompileError(message=message)


def _by_state(
    program: Program, state: State, symbols: Mapping[str, Symbol]
) -> Counting | None:
    """Count by a state, if that is what it does."""
    steps = find_steps(program, state, symbols)
    advances = {name: _most(program, state, name, step) for name, step in steps.items()}
    if not steps or not _is_position(program, state, advances):
        return None
    known = {name: size for name, size in advances.items() if size is not None}
    if len(known) < len(advances):
        return None
    row_lengths = {
        n: step.row_lengths for n, step in steps.items() if step.row_lengths is not None
    }
    number = program.states.index(state)
    rows = _rows(state.type.dims)
    position = model.Cursor(state.name, model.CursorKind.STATE, number, rows, None)
    return _with_limits(program, position, known, row_lengths, symbols)


def _most(program: Program, state: State, name: str, step: Step) -> Dim | None:
    """Return the most that a method adds to a state; None where nothing says it."""
    if step.size is not None:
        return step.size
    (method,) = (m for m in program.methods if m.name == name)
    (start,) = (value for value, bound in method.state_in if bound == state.name)
    sizes = {
        write.count
        for write in _writes_at(method, start)
        if row_lengths_input(method, write.counted) == step.row_lengths
    }
    sizes = sizes or token_counts(method)
    return sizes.pop() if len(sizes) == 1 else None


def _by_length(
    program: Program, known: Sequence[Counting], symbols: Mapping[str, Symbol]
) -> Iterator[Counting]:
    """Count by states that grow alike, where nothing else counts what they hold."""
    groups: dict[object, list[State]] = {}
    for state in program.states:
        if state.grows is not None:
            steps = tuple(growth(method, state) for method in program.methods)
            groups.setdefault(steps, []).append(state)
    for growing in groups.values():
        counting = _common_length(program, growing, symbols)
        told = counting is not None and any(
            counting.advances == one.advances for one in known
        )
        if counting is not None and not told:
            yield counting


def _common_length(
    program: Program, growing: Sequence[State], symbols: Mapping[str, Symbol]
) -> Counting | None:
    """Count by the states that grow, if each method leaves them all of one length."""
    advances: dict[str, Dim] = {}
    for method in program.methods:
        step = growth(method, growing[0])
        if step is None and not one_length(method, growing):
            return None
        if step is not None and bounds(step, symbols)[0] < 0:
            return None
        if step:
            advances[method.name] = step
    if not advances:
        return None
    lengths = [s.type.dims[s.grows] for s in growing if s.grows is not None]
    limit = min(size for size in lengths if isinstance(size, int))
    position = model.Cursor("", model.CursorKind.LENGTH, None, None, limit)
    return Counting(position, advances, lengths=frozenset(s.name for s in growing))


def _with_limits(
    program: Program,
    position: model.Cursor,
    advances: Mapping[str, Dim],
    row_lengths: Mapping[str, int],
    symbols: Mapping[str, Symbol],
) -> Counting:
    """Return the counting with its capacity, and with all states that count alike."""
    slots = []
    for method in program.methods:
        start = start_of(method, position, program)
        if start is not None:
            slots += [w.slots for w in _writes_at(method, start) if w.mode == "linear"]
    limited = replace(position, capacity=_least(slots, symbols))
    told = {
        name: Step(None, row_lengths[name]) if name in row_lengths else Step(size)
        for name, size in advances.items()
    }
    counters = {
        state.name
        for state in program.states
        if (steps := find_steps(program, state, symbols)) and steps == told
    }
    _check_bools(program, advances, row_lengths)
    return Counting(limited, advances, row_lengths, frozenset(counters))


def _check_bools(
    program: Program, advances: Mapping[str, Dim], row_lengths: Mapping[str, int]
) -> None:
    """Check that where rows take part or not, they do so with one token.

    Raises:
        CompileError: a method counts more than one token by a bool.
    """
    for method in program.methods:
        index = row_lengths.get(method.name)
        if index is None or method.inputs[index].type.dtype is not DType.BOOL:
            continue
        if advances[method.name] != 1:
            message = (
                f"method {method.name} counts {advances[method.name]} tokens of each "
                f"row by the bool input {method.input_names[index]!r}, which can only "
                "say one or none; take an int64 [batch] of lengths"
            )
            raise CompileError(message=message)


def _writes_at(method: Method, start: Value) -> Iterator[CacheWrite]:
    """Yield the cache writes that begin at the position."""
    same = position_values(method, start)
    for write in cache_writes(method):
        if write.index is not None and write.index.id in same:
            yield write


def _least(sizes: list[Dim], symbols: Mapping[str, Symbol]) -> Dim | None:
    """Return the least of several sizes, by their bounds where they depend on more."""
    if not sizes:
        return None
    return min(sizes, key=lambda size: bounds(size, symbols))


def _is_position(
    program: Program, state: State, steps: Mapping[str, Dim | None]
) -> bool:
    """Tell whether a state that counts says where to write, or counts tokens."""
    if state.type.dtype is not DType.INT64:
        return False
    number = program.states.index(state)
    position = model.Cursor(state.name, model.CursorKind.STATE, number, None, None)
    for method in program.methods:
        start = start_of(method, position, program)
        if start is not None and any(_writes_at(method, start)):
            return True
    counted = {m.name: m.inputs[0].type.dims[1] for m in program.methods if m.role}
    told = {name: step for name, step in steps.items() if name in counted}
    return bool(counted) and told == counted
