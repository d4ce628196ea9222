"""How far back rings are seen: what lets them forget, go back, and outlive a failure.

In: the proven program without blocks, what counts its tokens, its rings at the
position. Out: the window of each ring that has one. It has one when each method that
advances the position writes it, `kvc::attention` alone reads it, after that write and
with the call's tokens as queries, and all such readers have a window. Any other ring is
none the worse; its session only knows less of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvc.compiler.analysis.advances import counts_rows_as, row_lengths_input
from kvc.compiler.analysis.cursors import (
    Counting,
    are_places,
    position_values,
    says_same,
    start_of,
)
from kvc.compiler.analysis.updates import CACHE_UPDATE
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.passes.caches import ATTENTION
from kvc.compiler.passes.whole_views import axis_order
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, PERMUTING
from kvc.schema.types import Dim, bounds

_CACHES = ("k", "v", "k_scale", "v_scale")
_SLOTS = 2  # the axis of slots in what attention reads


@dataclass(frozen=True, slots=True)
class _Part:
    """A value that is a ring: its name, which axis each axis is, whether written."""

    state: str
    order: tuple[int, ...]
    written: bool


def find_windows(
    program: Program, counting: Counting, rings: Mapping[str, int]
) -> dict[str, int]:
    """Return ring -> how many positions a query may see, its own among them.

    Args:
        program: proven, without blocks.
        counting: its position, and by how much each method advances it.
        rings: those that every method writes at the position, and their axes of slots.
    """
    unfit: set[str] = set()
    widest: dict[str, int] = {}
    for method in program.methods:
        uses = _Uses(method, program, counting, rings)
        uses.run()
        unfit |= uses.unfit
        for state, width in uses.widths:
            widest[state] = max(widest.get(state, 1), width)
    symbols = {symbol.name: symbol for symbol in program.symbols}
    types = {state.name: state.type for state in program.states}
    return {
        state: width
        for state, width in widest.items()
        if state not in unfit
        and width <= bounds(types[state].dims[rings[state]], symbols)[0]
    }


class _Uses:
    """What one method does with rings.

    Attributes:
        unfit: rings that something reads which may see other slots than a window's.
        widths: (ring, how many positions a query sees) for each reader.
    """

    def __init__(
        self,
        method: Method,
        program: Program,
        counting: Counting,
        rings: Mapping[str, int],
    ) -> None:
        self.unfit: set[str] = set()
        self.widths: list[tuple[str, int]] = []
        self._method, self._rings = method, rings
        self._advance = counting.advances.get(method.name)
        self._row_lengths = counting.row_lengths.get(method.name)
        self._ends = _ends(method, program, counting)
        self._rows = _rows(method, program, counting)
        self._parts = {
            value.id: _Part(name, tuple(range(len(value.type.dims))), written=False)
            for value, name in method.state_in
            if name in rings
        }

    def run(self) -> None:
        """Look at all nodes, and at what leaves the method."""
        method = self._method
        if self._advance is not None:
            self.unfit |= self._rings.keys() - {name for _, name in method.state_out}
        for node in method.nodes:
            used = [v.id for v in node.inputs if v.id in self._parts]
            if used:
                self._use(node, used)
        handed = [*method.outputs, *(value for value, _ in method.input_out)]
        for value, name in method.state_out:
            part = self._parts.get(value.id)
            if part is None or part.state != name:
                handed.append(value)
                self.unfit |= {name} & self._rings.keys()
        self.unfit |= {self._parts[v.id].state for v in handed if v.id in self._parts}

    def _use(self, node: Node, used: Sequence[int]) -> None:
        part = self._parts[used[0]]
        result = node.outputs[0].id if node.outputs else -1
        if node.op == CACHE_UPDATE and used == [node.inputs[0].id]:
            written = _Part(part.state, part.order, written=True)
            self._parts[result] = written
            whole = part.order == tuple(range(len(part.order)))
            if not whole or not _rows_fit(self._rows, node.inputs[0].type.dims):
                self.unfit.add(part.state)
        elif node.op in PERMUTING:
            order = tuple(part.order[axis] for axis in axis_order(node))
            self._parts[result] = _Part(part.state, order, part.written)
        elif node.op == "aten::alias":
            self._parts[result] = part
        elif node.op == ATTENTION:
            self._read(node, used)
        else:
            self.unfit |= {self._parts[value].state for value in used}

    def _read(self, node: Node, used: Sequence[int]) -> None:
        """Note the width of an attention, or that it may see more than a window."""
        arguments = _by_name(node)
        left = arguments["window_left"]
        taken = [self._parts[i] for i in _ids(arguments[name] for name in _CACHES)
                 if i in self._parts]  # fmt: skip
        for part in taken:
            own = part.written and part.order[_SLOTS] == self._rings[part.state]
            if own and isinstance(left, int) and self._sees_window(arguments):
                self.widths.append((part.state, left + 1))
            else:
                self.unfit.add(part.state)
        if len(taken) < len(used):
            self.unfit |= {self._parts[value].state for value in used}

    def _sees_window(self, arguments: Mapping[str, Argument]) -> bool:
        """Tell whether an attention's queries are the tokens of the call."""
        q, end, row_lengths = (
            arguments[n] for n in ("q", "valid_length", "row_lengths")
        )
        assert isinstance(q, Value)
        assert isinstance(end, Value)
        tokens = q.type.dims[_SLOTS] == self._advance and end.id in self._ends
        given = row_lengths if isinstance(row_lengths, Value) else None
        alike = counts_rows_as(self._method, given, self._row_lengths)
        return tokens and alike and arguments["layout"] == "circular"


def _rows_fit(rows: Sequence[Dim] | None, ring: Sequence[Dim]) -> bool:
    """Tell whether each row of a ring is at the position of the row of its number.

    `rows` are the dims of the position, None where it is the same in all rows.
    """
    return rows is None or tuple(rows) in ((), (1,), tuple(ring[:1]))


def _ids(arguments: Iterator[Argument]) -> list[int]:
    return [argument.id for argument in arguments if isinstance(argument, Value)]


def _by_name(node: Node) -> dict[str, Argument]:
    names = [parameter.name for parameter in OPS[node.op].params]
    return dict(zip(names, node.arguments, strict=True))


def _ends(method: Method, program: Program, counting: Counting) -> set[int]:
    """Return the ids of the values that are the position as the method ends."""
    advance = counting.advances.get(method.name)
    if advance is None:
        return set()
    start = start_of(method, counting.position, program)
    if start is None:
        return set()
    firsts, lasts = _firsts_and_lasts(method, start, advance)
    row_lengths = counting.row_lengths.get(method.name)
    ends: set[int] = set()
    for node in method.nodes:
        first = node.inputs[0].id if node.inputs else None
        if node.op == "aten::copy":
            first = node.inputs[1].id
        step = advance if first in firsts else 1 if first in lasts else None
        same = node.op == "aten::copy" or bool(node.inputs and says_same(node))
        same = same and node.outputs[0].type.dtype is DType.INT64
        added = step is not None and _adds(node, step)
        if row_lengths is not None:
            added = _adds_row_lengths(method, node, firsts, row_lengths)
        if (first in ends and same) or added:
            ends.update(value.id for value in node.outputs)
    return ends


def _rows(
    method: Method, program: Program, counting: Counting
) -> tuple[Dim, ...] | None:
    """Return the dims of a method's position, None where it is of tokens."""
    start = start_of(method, counting.position, program)
    return None if start is None or are_places(method, start) else start.type.dims


def _firsts_and_lasts(
    method: Method, start: Value, advance: Dim
) -> tuple[set[int], set[int]]:
    """Return the ids of values that are the place of the first token, of the last."""
    firsts = position_values(method, start)
    if start.type.dims != (advance,) or start.type.dims == (1,):
        return firsts, set()
    # It may be the places of all tokens, of which only a single one says anything.
    made = [value for node in method.nodes for value in node.outputs]
    single = {value.id for value in made if value.type.dims in ((), (1,))}
    lasts = (n.outputs[0].id for n in method.nodes if _is_last(n, start))
    return firsts & single, set(lasts) & single


def _is_last(node: Node, start: Value) -> bool:
    """Tell whether a node picks the last of the places of all tokens."""
    if node.op not in ("aten::select.int", "aten::slice.Tensor"):
        return False
    return node.inputs[0].id == start.id and node.arguments[2] == -1


def _adds_row_lengths(
    method: Method, node: Node, firsts: set[int], row_lengths: int
) -> bool:
    """Tell whether a node adds what counts of each row to where it begins."""
    if node.op != "aten::add.Tensor" or node.arguments[2] != 1:
        return False
    one, other = node.inputs
    if one.id not in firsts:
        one, other = other, one
    return one.id in firsts and row_lengths_input(method, other) == row_lengths


def _adds(node: Node, step: Dim) -> bool:
    return node.op == "aten::add.Scalar" and node.arguments[1:] == (step, 1)
