"""Find the cursors: the values that count tokens, and how methods advance them.

In: a program and its flat methods. Out: a `Counting` for each cursor. Three kinds of
values can be cursors, in this order of preference. First, an input that methods declare
as their position. Second, an integer state that gives the position at which caches are
written, or that advances by the tokens of a method with a role; every method that
writes the state must advance it by a size, or to the end of a loop that carries it.
Third, the common length of growing states.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.analysis.cursor_fields import (
    ONE_FOR_ALL,
    CursorAdvance,
    CursorView,
    input_of,
    row_lengths_of,
    start_of,
)
from kvc.compiler.analysis.flat import FlatMethod
from kvc.compiler.analysis.index_sums import Along
from kvc.compiler.analysis.updates import cache_writes, growth, one_length
from kvc.compiler.ir import Program, State, Value
from kvc.schema.dtypes import DType
from kvc.schema.errors import CompileError
from kvc.schema.model import Cursor, CursorKind
from kvc.schema.types import Dim, bounds, symbols_in, symbols_of

_INTEGERS = (DType.INT32, DType.INT64)


@dataclass(frozen=True, slots=True)
class Counting:
    """A cursor, and how methods advance it.

    Attributes:
        cursor: the cursor, as the file stores it.
        steps: method name -> the tokens that a call adds. Methods that add no tokens
            have no entry.
        states: names of the states that every method advances like the cursor. If the
            cursor is a common length, the names of the growing states.
    """

    cursor: Cursor
    steps: Mapping[str, CursorAdvance]
    states: frozenset[str]

    def view(self, method: FlatMethod, program: Program) -> CursorView:
        """Return the view of a method for the cursor."""
        start = start_of(method, self.cursor, program)
        step = self.steps.get(method.name, CursorAdvance(None))
        return CursorView(method, start, step, self.cursor.rows)


def find_countings(
    program: Program, methods: Sequence[FlatMethod]
) -> tuple[Counting, ...]:
    """Return all cursors; the first is the cursor that methods with a role advance.

    Args:
        program: the program of the methods.
        methods: the entries of the program. Methods that take the position of each
            token must have passed through `with_places`.

    Raises:
        CompileError: the tokens that a method adds are unknown, or prefill and decode
            add to different cursors.
    """
    return _Finder(program, methods).find()


def find_places(program: Program, methods: Sequence[FlatMethod]) -> frozenset[str]:
    """Return names of methods whose position input has one position for each token.

    All other methods have one position for each row. The input of a method that writes
    nothing is judged by the methods that write and have an input of the same name, or
    by its size.
    """
    found: dict[tuple[str, str], bool] = {}
    for method in sorted(methods, key=lambda m: not _writes(m)):
        start = input_of(method, method.position)
        if start is None or start.type.dims in ONE_FOR_ALL:
            continue
        told = {is_so for (at, _), is_so in found.items() if at == method.position}
        if _writes(method):
            is_places = not any(CursorView(method, start).writes())
        elif start.type.is_static and len(told) == 1:
            (is_places,) = told
        else:
            is_places = _looks_like_places(method, start, program)
        found[method.position, method.name] = is_places
    return frozenset(name for (_, name), is_so in found.items() if is_so)


def _writes(method: FlatMethod) -> bool:
    return bool(method.state_out or method.input_out)


def _looks_like_places(method: FlatMethod, start: Value, program: Program) -> bool:
    """Tell by its size whether a position input has a position for each token.

    Otherwise the input has a position for each row.
    """
    if not symbols_of(start.type.dims).isdisjoint(_fixed(program)):
        return False
    others = [value.type.dims for value in method.inputs if value.id != start.id]
    rows = {dims[0] for dims in others if dims}
    tokens = {dims[1] for dims in others if len(dims) > 1}
    return start.type.dims[0] not in rows - tokens


def _fixed(program: Program) -> set[str]:
    """Return the symbols whose sizes are fixed when a session is created."""
    return set(symbols_in(state.type for state in program.states))


class _Finder:
    """Finds the cursors of a program."""

    def __init__(self, program: Program, methods: Sequence[FlatMethod]) -> None:
        self._program, self._methods = program, methods
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        self._steps = {s.name: self._steps_of(s) for s in program.states}

    def find(self) -> tuple[Counting, ...]:
        declared = dict.fromkeys(m.position for m in self._methods if m.position)
        found = [self._by_input(name) for name in declared]
        for number, state in enumerate(self._program.states):
            if not any(state.name in counting.states for counting in found):
                found += self._by_state(state, number)
        return self._main_first([*found, *self._by_length(found)])

    def _main_first(self, found: Sequence[Counting]) -> tuple[Counting, ...]:
        """Sort cursors by how many methods with a role advance them, most first.

        Raises:
            CompileError: there are several cursors, and none is advanced by all methods
                with a role that advance a cursor.
        """
        roles = [method.name for method in _generating(self._methods)]
        told = [sum(name in one.steps for name in roles) for one in found]
        advancing = sum(any(name in one.steps for one in found) for name in roles)
        if len(found) > 1 and advancing and max(told) < advancing:
            apart = " and ".join(repr(one.cursor.name) for one in found)
            message = (
                f"methods with a role advance different positions, {apart}: one of "
                "them has to count the tokens of prefill and of decode"
            )
            raise CompileError(message=message)
        return tuple(sorted(found, key=lambda one: -told[found.index(one)]))

    def _by_input(self, name: str) -> Counting:
        cursor = Cursor(name, CursorKind.SESSION, None, None, None)
        by_row = {
            view.start.type.dims[0]
            for view in self._views(cursor)
            if view.start is not None
            and not view.places
            and view.start.type.dims not in ONE_FOR_ALL
        }
        fixed = _fixed(self._program)
        known = [rows for rows in by_row if symbols_of([rows]) <= fixed]
        cursor = replace(cursor, rows=min(known, key=str, default=None))
        views = list(self._views(cursor))
        one_each = any(view.places for view in views)
        steps = {
            view.method.name: self._step_at(view, one_each)
            for view in views
            if _writes(view.method)
        }
        return self._counting(cursor, steps)

    def _views(self, cursor: Cursor) -> Iterator[CursorView]:
        for method in self._methods:
            start = start_of(method, cursor, self._program)
            if start is not None:
                yield CursorView(method, start, rows=cursor.rows)

    def _step_at(self, view: CursorView, one_each: bool) -> CursorAdvance:
        """Return the tokens that a method adds to the position of the session.

        Args:
            view: the view of the method.
            one_each: whether some methods take a position for each token. A position of
                shape [1] then is the position of one token.

        Raises:
            CompileError: the number of tokens is unknown, or the method's writes differ
                in the number of tokens or in the row lengths.
        """
        assert view.start is not None
        method, dims = view.method, view.start.type.dims
        writes = list(view.writes())
        added = view.extents()
        if view.places or (one_each and dims == (1,)):
            added.add(dims[0])
        added = added or _token_counts(method)
        if len(added) != 1:
            raise _uncounted(method, added)
        lengths = {row_lengths_of(method, write.counted) for write in writes}
        if not any(write.counted for write in writes):
            return CursorAdvance(added.pop())
        told = [None if value is None else value.type.dims for value in lengths]
        if told != [(1 if view.rows is None else view.rows,)]:
            raise _ambiguous_row_lengths(method)
        return CursorAdvance(added.pop(), lengths.pop())

    def _by_state(self, state: State, number: int) -> Iterator[Counting]:
        if state.type.dtype is not DType.INT64 or not self._steps[state.name]:
            return
        dims = state.type.dims
        rows = None if dims in ONE_FOR_ALL else dims[0]
        cursor = Cursor(state.name, CursorKind.STATE, number, rows, None)
        views = {view.method.name: view for view in self._views(cursor)}
        steps = {
            name: self._with_tokens(views[name], step)
            for name, step in self._steps[state.name].items()
        }
        written = any(
            view.extents()
            or any(view.after_mark(write.index) for write in cache_writes(view.method))
            for view in views.values()
        )
        appending = _generating(self._methods)
        counted = {method.name: method.inputs[0].type.dims[1] for method in appending}
        told = {name: steps[name].tokens for name in steps if name in counted}
        if not written and (not counted or told != counted):
            return
        if all(self._is_told(views[n], steps[n], state) for n in steps):
            yield self._counting(cursor, steps)

    def _is_told(self, view: CursorView, step: CursorAdvance, state: State) -> bool:
        """Tell whether the number of added tokens, or the final position, is known."""
        if not step.totals:
            return step.tokens is not None
        (new,) = (value for value, n in view.method.state_out if n == state.name)
        return replace(view, step=step).ends_at(new, self._symbols)

    def _with_tokens(self, view: CursorView, step: CursorAdvance) -> CursorAdvance:
        """Return `step` with `least` set to the most tokens that a row can add."""
        if step.least is not None:
            return step
        method = view.method
        sizes = {
            write.count
            for write in view.writes()
            if row_lengths_of(method, write.counted) == step.lengths
        } or _token_counts(method)
        return replace(step, least=sizes.pop() if len(sizes) == 1 else None)

    def _steps_of(self, state: State) -> dict[str, CursorAdvance]:
        """Return method name -> the tokens that the method adds to a state.

        The mapping is empty if a method writes the state, but not by adding tokens.
        """
        if state.type.dtype not in _INTEGERS or len(state.type.dims) > 1:
            return {}
        steps: dict[str, CursorAdvance] = {}
        for method in self._methods:
            for value, name in method.state_out:
                if name == state.name:
                    step = self._added(method, value, state)
                    if step is None:
                        return {}
                    steps[method.name] = step
        return steps

    def _added(
        self, method: FlatMethod, new: Value, state: State
    ) -> CursorAdvance | None:
        """Return the tokens that a method adds to a state's old value to get `new`.

        The result is None if `new` is not the old value plus a number of tokens.
        """
        found = method.sums.of(new)
        olds = {value.id for value, name in method.state_in if name == state.name}
        added = [value for value in found.addends if value.id not in olds]
        if found.along is Along.COUNTING or len(found.addends) - len(added) != 1:
            return None
        if set(added) <= method.totals():
            leads_on = bounds(found.constant, self._symbols)[0] >= 0
            return (
                CursorAdvance(found.constant, None, tuple(added)) if leads_on else None
            )
        lengths = row_lengths_of(method, added[0]) if len(added) == 1 else None
        fits = lengths is not None and lengths.type.dims == state.type.dims
        return CursorAdvance(None, lengths) if fits and found.constant == 0 else None

    def _by_length(self, known: Sequence[Counting]) -> Iterator[Counting]:
        """Yield cursors for lengths of growing states that no other cursor counts."""
        groups: dict[object, list[State]] = {}
        for state in self._program.states:
            if state.grows is not None:
                steps = tuple(growth(method, state) for method in self._methods)
                groups.setdefault(steps, []).append(state)
        for growing in groups.values():
            counting = self._common_length(growing)
            told = [one.steps for one in known]
            if counting is not None and counting.steps not in told:
                yield counting

    def _common_length(self, growing: Sequence[State]) -> Counting | None:
        """Return the cursor that counts the common length of growing states.

        The result is None if a method can make their lengths differ or can shorten
        them, or if no method lengthens them.
        """
        steps: dict[str, CursorAdvance] = {}
        for method in self._methods:
            added = growth(method, growing[0])
            if added is None and not one_length(method, growing):
                return None
            if added is not None and bounds(added, self._symbols)[0] < 0:
                return None
            if added:
                steps[method.name] = CursorAdvance(added)
        lengths = [s.type.dims[s.grows] for s in growing if s.grows is not None]
        limit = min(size for size in lengths if isinstance(size, int))
        cursor = Cursor("", CursorKind.LENGTH, None, None, limit)
        names = frozenset(state.name for state in growing)
        return Counting(cursor, steps, names) if steps else None

    def _counting(self, cursor: Cursor, steps: Mapping[str, CursorAdvance]) -> Counting:
        """Return a cursor with its capacity and the states that advance with it."""
        slots = [
            write.slots
            for view in self._views(cursor)
            for write in view.writes()
            if write.mode == "linear"
        ]
        limit = min(slots, key=lambda dim: bounds(dim, self._symbols), default=None)
        told = {n: s if s.lengths is None else CursorAdvance(None, s.lengths)
                for n, s in steps.items()}  # fmt: skip
        alike = {name for name, own in self._steps.items() if own and own == told}
        for method in self._methods:
            _check_bool(method, steps.get(method.name, CursorAdvance(None)))
        return Counting(replace(cursor, capacity=limit), steps, frozenset(alike))


def _generating(methods: Sequence[FlatMethod]) -> list[FlatMethod]:
    """Return the methods whose roles append tokens."""
    return [method for method in methods if method.role not in ("", "encode")]


def _token_counts(method: FlatMethod) -> set[Dim]:
    """Return the sequence lengths of a method's token inputs, int64 [batch, seq]."""
    named = zip(method.input_names, method.inputs, strict=True)
    given = [v.type for name, v in named if name != method.position]
    tokens = [t for t in given if t.dtype is DType.INT64 and len(t.dims) == 2]
    return {kind.dims[1] for kind in tokens}


def _check_bool(method: FlatMethod, step: CursorAdvance) -> None:
    """Check that a method with bool row lengths adds at most one token to each row.

    Raises:
        CompileError: the method adds more than one token.
    """
    given = step.lengths
    if given is None or given.type.dtype is not DType.BOOL or step.tokens == 1:
        return
    message = (
        f"method {method.name} counts {step.tokens} tokens of each row by the bool "
        f"input {method.input_names[method.inputs.index(given)]!r}, which can only say "
        "one or none; take an int64 [batch] of lengths"
    )
    raise CompileError(message=message)


def _uncounted(method: FlatMethod, added: set[Dim]) -> CompileError:
    """Return the error for a method that writes states but counts no tokens."""
    found = f"{' and '.join(map(str, added))} tokens" if added else "nothing"
    message = (
        f"method {method.name} is given the position as {method.position!r} and writes "
        "states, but the number of tokens by which it advances is unknown: its cache "
        f"writes and inputs give {found}. Write its caches at the position "
        "with index_copy_ or torch.ops.kvc.cache_update, take the places of all new "
        "tokens (int64 [seq]), or take tokens, int64 [batch, seq]"
    )
    return CompileError(message=message)


def _ambiguous_row_lengths(method: FlatMethod) -> CompileError:
    message = (
        f"method {method.name} writes caches at its position with counts, but not all "
        "of them with those of one input: pass the same counts to each "
        "torch.ops.kvc.cache_update, an input int64 [batch] or bool [batch] cast to "
        "int64, one for each position"
    )
    return CompileError(message=message)
