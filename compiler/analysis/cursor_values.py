"""Cursor values in place of index arithmetic: where a call begins, ends, and between.

In: a program whose cursor has been found. Out: the same program, in which cache
operators take the cursor's start, end and row lengths themselves, and the input that
was the position is gone: what else reads it reads the cursor. Blocks are lent what they
use. Arithmetic that is proven to say the same, by a closed set of forms, is replaced;
all other arithmetic stays what it is. Each replacement is evaluated before and after
(`evaluate.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvc.compiler.analysis.cursors import says_same, start_of
from kvc.compiler.analysis.evaluate import Known, Within, check_equal
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.arguments import named, with_named
from kvc.compiler.ir.control import arguments_of, blocks_by_number, control_of, entries
from kvc.schema.dtypes import DType
from kvc.schema.model import CursorKind, CursorPart, CursorSlot
from kvc.schema.types import Dim, TensorType

Part = CursorPart
_LAST = "the place of the last token"
_Meaning = CursorPart | str
_Wanted = tuple[CursorPart, TensorType]
# The operands of cache operators that can be parts of a cursor.
_OPERANDS: Mapping[str, Mapping[str, CursorPart]] = {
    "kvc::cache_update": {"write_indices": Part.START, "row_lengths": Part.LENGTHS},
    "kvc::attention": {"valid_length": Part.END, "row_lengths": Part.LENGTHS},
}


def use_cursor(program: Program, cursor: int, places: frozenset[str]) -> Program:
    """Return the program whose cache operators take parts of a cursor.

    Args:
        program: with its cursors.
        cursor: id of the cursor.
        places: names of the methods that take the position of each token.

    Raises:
        PassFailed: a replacement does not say the same: a bug.
    """
    blocks = blocks_by_number(program)
    done: dict[str, Method] = {}
    for method in entries(program):
        token_places = method.name in places
        _Rewriter(program, cursor, method, blocks, done, token_places).run()
    return replace(program, methods=tuple(done[m.name] for m in program.methods))


@dataclass(slots=True)
class _Lent:
    """What a method or block is given of the cursor: a value for each part and type."""

    method: Method
    count: int
    values: dict[_Wanted, Value] = field(default_factory=dict)

    def value(self, wanted: _Wanted) -> Value:
        if wanted not in self.values:
            self.values[wanted] = Value(self.count, wanted[1])
            self.count += 1
        return self.values[wanted]


class _Rewriter:
    """One entry while its index arithmetic is replaced, with the blocks it runs."""

    def __init__(
        self,
        program: Program,
        cursor: int,
        method: Method,
        blocks: Mapping[int, Method],
        done: dict[str, Method],
        places: bool,
    ) -> None:
        self._program, self._entry, self._blocks = program, method, blocks
        self._done, self._cursor = done, cursor
        start = start_of(method, program.cursors[cursor], program)
        named_inputs = zip(method.input_names, method.inputs, strict=True)
        own = (one for one in method.advances if one[0] == cursor)
        _, tokens, counted = next(own, (cursor, None, ""))
        lengths = dict(named_inputs).get(counted)
        apart = program.cursors[cursor].rows is not None
        self._known = Known(start, places, lengths, tokens, apart)

    def run(self) -> None:
        """Replace operands in the entry and in the blocks that it runs."""
        method, start = self._entry, self._known.start
        known: dict[int, _Meaning] = {}
        given: dict[_Wanted, Value] = {}
        if start is not None:
            part = Part.PLACES if self._known.places else Part.START
            known[start.id] = part
            if self._program.cursors[self._cursor].kind is CursorKind.SESSION:
                given[part, start.type] = start
        if self._known.lengths is not None:
            known[self._known.lengths.id] = Part.LENGTHS
        lent = self._rewrite(Within(method), known, given)
        slots = tuple(
            (value, CursorSlot(self._cursor, part))
            for (part, _), value in lent.values.items()
        )
        changed = replace(lent.method, cursor_in=method.cursor_in + slots)
        for value in given.values():
            changed = _without_input(changed, value)
        self._done[method.name] = changed

    def _rewrite(
        self,
        within: Within,
        known: dict[int, _Meaning],
        given: Mapping[_Wanted, Value] | None = None,
    ) -> _Lent:
        """Replace operands in a method or block, whose values `known` are told."""
        method = within.method
        lent, nodes = _Lent(method, method.next_id(), dict(given or {})), list[Node]()
        for node in method.nodes:
            if control_of(node) is not None:
                node = self._through(node, within, known, lent)
            else:
                node = self._with_parts(node, within, known, lent)
                meaning = self._meaning(node, known)
                if meaning is not None:
                    known.update((value.id, meaning) for value in node.outputs)
            nodes.append(node)
        lent.method = replace(method, nodes=tuple(nodes))
        self._done[method.name] = lent.method
        return lent

    def _with_parts(
        self, node: Node, within: Within, known: Mapping[int, _Meaning], lent: _Lent
    ) -> Node:
        """Return a node that takes parts of the cursor where it took what says so."""
        changes: dict[str, Argument] = {}
        arguments = named(node) if node.op in _OPERANDS else {}
        for name, part in _OPERANDS.get(node.op, {}).items():
            given = arguments[name]
            if isinstance(given, Value) and known.get(given.id) is part:
                check_equal(given, part, within, self._known, self._program.symbols)
                changes[name] = lent.value((part, given.type))
        return with_named(node, changes) if changes else node

    def _through(
        self, node: Node, within: Within, known: Mapping[int, _Meaning], lent: _Lent
    ) -> Node:
        """Replace operands in the blocks of a node, and pass them what they need."""
        control = control_of(node)
        assert control is not None
        inside: list[_Lent] = []
        for number in control.blocks:
            block = self._blocks[number]
            passed = zip(control.operands, block.inputs, strict=True)
            told = {
                own.id: known[operand.id]
                for i, (operand, own) in enumerate(passed)
                if i >= control.fixed and operand.id in known
            }
            inside.append(self._rewrite(Within(block, within, node), told))
        wanted = list(dict.fromkeys(w for one in inside for w in one.values))
        for one in inside:
            added = tuple(one.value(w) for w in wanted)
            labels = tuple(f"%{value.id}" for value in added)
            self._done[one.method.name] = replace(
                one.method,
                inputs=(*one.method.inputs, *added),
                input_names=(*one.method.input_names, *labels),
            )
        operands = (*control.operands, *(lent.value(w) for w in wanted))
        return replace(
            node, arguments=arguments_of(replace(control, operands=operands))
        )

    def _meaning(self, node: Node, known: Mapping[int, _Meaning]) -> _Meaning | None:
        """Return what the result of a node says of the cursor, None for all else."""
        if len(node.outputs) != 1 or node.outputs[0].type.dtype is not DType.INT64:
            return None
        told = [known.get(value.id) for value in node.inputs]
        result = node.outputs[0].type
        match node.op, node.arguments, told:
            case "aten::copy", _, [_, Part.START | Part.END | Part.LENGTHS as same]:
                return same
            case "aten::_to_copy", _, [Part.LENGTHS as same]:
                return same
            case _, _, [Part.START | Part.END | Part.LENGTHS as same]:
                if says_same(node):
                    return same
            case "aten::add.Tensor", (_, _, 1), (
                [Part.START, Part.LENGTHS] | [Part.LENGTHS, Part.START]
            ):
                return Part.END
        picked = _picked(node, told, result)
        return self._added(node, told) if picked is None else picked

    def _added(self, node: Node, told: list[_Meaning | None]) -> _Meaning | None:
        if node.op != "aten::add.Scalar" or node.arguments[2] != 1:
            return None
        by: Mapping[_Meaning | None, Dim | None] = {
            Part.START: self._known.advance if self._known.lengths is None else None,
            _LAST: None if self._known.advance is None else 1,
        }
        step = by.get(told[0])
        return Part.END if step is not None and node.arguments[1] == step else None


def _picked(
    node: Node, told: list[_Meaning | None], result: TensorType
) -> _Meaning | None:
    """Return what the one that is taken of all places, or of one position, is."""
    if len(told) != 1 or told[0] is None or result.dims not in ((), (1,)):
        return None
    if told[0] == _LAST:
        return _LAST if says_same(node) else None
    if told[0] is Part.START:
        single = node.inputs[0].type.dims == (1,)
        return Part.START if single and node.op == "aten::select.int" else None
    if told[0] is not Part.PLACES:
        return None
    ends: Mapping[object, _Meaning] = {0: Part.START, None: Part.START, -1: _LAST}
    picks = node.op in ("aten::select.int", "aten::slice.Tensor")
    return ends.get(node.arguments[2]) if picks else None


def _without_input(method: Method, value: Value) -> Method:
    """Return a method that takes one input less."""
    pairs = zip(method.inputs, method.input_names, strict=True)
    kept = [(v, name) for v, name in pairs if v.id != value.id]
    return replace(
        method,
        inputs=tuple(v for v, _ in kept),
        input_names=tuple(name for _, name in kept),
        position="",
    )
