"""Replace index arithmetic by the fields of cursors.

In: a program whose cursors have been found, and a view of its methods for each cursor.
Out: the same program, in which cache operators take the start, end and row lengths of
cursors directly. The method input that held the position is removed; nodes that read
that input read the cursor instead. A block has an additional input for each field that
it uses, and the node that runs the block passes the fields. All other arithmetic stays.
For each replacement, the old value and the field are evaluated and compared
(`evaluate.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvc.compiler.analysis.cursor_fields import CursorView
from kvc.compiler.analysis.evaluate import check_equal
from kvc.compiler.analysis.updates import cache_write
from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.arguments import named, with_named
from kvc.compiler.ir.control import arguments_of, blocks_by_number, control_of, entries
from kvc.schema.graph import CursorField as Field
from kvc.schema.graph import CursorSlot
from kvc.schema.model import CursorKind
from kvc.schema.ops import AFTER
from kvc.schema.types import Dim, TensorType

_Field = tuple[CursorSlot, TensorType]
# A Value is a mark of a loop or branch, in the flat method.
_Wanted = _Field | Value
# The operands of cache operators that can be fields of a cursor.
_OPERANDS: Mapping[str, Mapping[str, Field]] = {
    "kvc::cache_update": {"write_indices": Field.START, "row_lengths": Field.LENGTHS},
    "kvc::attention": {"valid_length": Field.END, "row_lengths": Field.LENGTHS},
}


def use_cursors(program: Program, views: Mapping[str, Sequence[CursorView]]) -> Program:
    """Return the program whose cache operators take fields of cursors.

    Args:
        program: the program, whose `cursors` have been found.
        views: method name -> one view for each cursor of the program.

    Raises:
        PassFailed: a field differs from the value that it replaces, which is a bug.
    """
    done: dict[str, Method] = {}
    for method in entries(program):
        _Rewriter(program, views[method.name], done).run(method)
    return replace(program, methods=tuple(done[m.name] for m in program.methods))


@dataclass(slots=True)
class _Lent:
    """The values that hold fields of cursors, or marks, in a method or block."""

    method: Method
    count: int
    values: dict[_Wanted, Value] = field(default_factory=dict)

    def value(self, wanted: _Wanted) -> Value:
        if wanted not in self.values:
            kind = wanted.type if isinstance(wanted, Value) else wanted[1]
            self.values[wanted] = self.fresh(kind)
        return self.values[wanted]

    def fresh(self, kind: TensorType) -> Value:
        """Return a new value with an unused id."""
        self.count += 1
        return Value(self.count - 1, kind)


class _Rewriter:
    """Replaces the index arithmetic of one entry and the blocks that it runs."""

    def __init__(
        self, program: Program, views: Sequence[CursorView], done: dict[str, Method]
    ) -> None:
        self._program, self._views, self._done = program, views, done
        self._blocks = blocks_by_number(program)
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        # block -> output -> (cursor, flat value): outputs that follow the cursor's
        # start
        self._handed: dict[str, dict[int, tuple[int, Value]]] = {}

    def run(self, method: Method) -> None:
        """Replace operands by cursor fields in the entry and the blocks it runs."""
        given: dict[_Wanted, Value] = {}
        for number, view in enumerate(self._views):
            filled = self._program.cursors[number].kind is CursorKind.SESSION
            if view.start is not None and filled:
                field = Field.PLACES if view.places else Field.START
                given[CursorSlot(number, field), view.start.type] = view.start
        lent = self._rewrite(method, dict(given))
        slots = tuple(
            (value, wanted[0])
            for wanted, value in lent.values.items()
            if not isinstance(wanted, Value)  # an entry computes marks itself
        )
        changed = replace(lent.method, cursor_in=method.cursor_in + slots)
        values = given.values()
        pairs = zip(changed.inputs, changed.input_names, strict=True)
        kept = [(v, name) for v, name in pairs if v not in values]
        names = tuple(name for _, name in kept)
        position = changed.position if changed.position in names else ""
        self._done[method.name] = replace(
            changed,
            inputs=tuple(v for v, _ in kept),
            input_names=names,
            position=position,
        )

    def _rewrite(self, method: Method, given: dict[_Wanted, Value]) -> _Lent:
        """Replace operands in a method or block by fields of cursors.

        `given`: field or mark -> the value of the method or block that already holds
        it.
        """
        lent, nodes = _Lent(method, method.next_id(), given), list[Node]()
        for node in method.nodes:
            if control_of(node) is not None:
                self._join(node, method)
                *before, loop = self._carry(node, method, lent)
                nodes += [*before, self._through(loop, method, lent)]
            else:
                nodes += self._with_fields(node, method, lent)
        outputs = list(method.outputs)
        for i, (number, value) in self._handed.get(method.name, {}).items():
            made = self._placed(number, value, method, lent, nodes)
            own = nodes[-1:] and made in nodes[-1].outputs and nodes[-1].op == AFTER
            outputs[i] = made if own else _after(made, 0, nodes, lent)
        new = [self._counted(pair, method, lent, nodes) for pair in method.state_out]
        lent.method = replace(
            method, nodes=tuple(nodes), outputs=tuple(outputs), state_out=tuple(new)
        )
        self._done[method.name] = lent.method
        return lent

    def _with_fields(self, node: Node, method: Method, lent: _Lent) -> list[Node]:
        """Return a node whose operands are fields of cursors where they can be.

        The returned nodes that precede it compute its new operands.
        """
        changes: dict[str, Value] = {}
        arguments, made = named(node) if node.op in _OPERANDS else {}, list[Node]()
        symbols = self._program.symbols
        for name, wanted in _OPERANDS.get(node.op, {}).items():
            given = arguments[name]
            if not isinstance(given, Value):
                continue
            for number, view in enumerate(self._views):
                value = view.method.here(given, method.block)
                if value is None or name in changes:
                    continue
                if self._is_after(wanted, view, node, value, method.block):
                    changes[name] = self._placed(number, value, method, lent, made)
                elif view.field(value) is wanted:
                    check_equal(value, wanted, view, symbols)
                    changes[name] = lent.value((CursorSlot(number, wanted), given.type))
        return [*made, with_named(node, changes) if changes else node]

    def _is_after(
        self,
        wanted: Field,
        view: CursorView,
        node: Node,
        value: Value,
        block: int | None,
    ) -> bool:
        """Tell whether an operand is a position that `_placed` can compute.

        There are two such operands, both only in calls without row lengths: the index
        of a cache write that covers only tokens that the call adds; and the number of
        valid tokens in a ring, if it is at least the position at the start of the call
        and no field of the cursor.

        Args:
            wanted: the field of the cursor that the operand usually is.
            view: the view of the method for the cursor.
            node: the cache operator.
            value: the operand, as a value of the flat method.
            block: the number of the block that has the node, None for the entry.
        """
        if wanted is Field.START:
            # Whether a write covers tokens that a call without row lengths adds.
            here = view.method.here(node.outputs[0], block)
            assert here is not None
            write = cache_write("", replace(node, outputs=(here,)), view.method)
            write = replace(write, index=value, counted=None)
            return view.step.lengths is None and view.covers(write, self._symbols)
        circular = wanted is Field.END and named(node)["layout"] == "circular"
        on = circular and view.field(value) is None and view.step.lengths is None
        return on and view.reaches(value, self._symbols)

    def _placed(
        self, number: int, value: Value, method: Method, lent: _Lent, made: list[Node]
    ) -> Value:
        """Compute a value from the start or from a mark; return the result.

        Args:
            number: the number of the cursor.
            value: the position to compute, as a value of the flat method.
            method: the entry or block that needs the position.
            lent: the cursor values of the method.
            made: list to which the added nodes are appended.
        """
        view, symbols = self._views[number], self._program.symbols
        after = view.after_mark(value)
        if after is None:
            offset, mark = view.offset(value), None
            base = lent.value((CursorSlot(number, Field.START), value.type))
        else:
            offset, mark = after.offset, after.mark
            base = self._given(mark, method, lent)
        assert offset is not None
        check_equal(value, Field.START, view, symbols, offset, mark)
        return base if offset == 0 else _after(base, offset, made, lent)

    def _join(self, node: Node, method: Method) -> None:
        """Record which outputs of a node's branches are positions of a cursor."""
        control = control_of(node)
        assert control is not None
        for number, view in enumerate(self._views):
            for i, result in enumerate(node.outputs):
                here = view.method.here(result, method.block)
                one = None if here is None else view.method.joins.get(here.id)
                after = None if one is None else view.after_mark(here)
                if one is None or after is None or after.mark != here:
                    continue
                if view.follows(one, self._symbols):
                    for block, way in zip(control.blocks, one.ways, strict=True):
                        handed = self._handed.setdefault(self._blocks[block].name, {})
                        handed[i] = number, way

    def _carry(self, node: Node, method: Method, lent: _Lent) -> list[Node]:
        """Return a loop that carries positions computed from cursors.

        The returned nodes that precede the loop compute the positions before the first
        iteration. A node that is no loop stays unchanged.
        """
        control = control_of(node)
        assert control is not None
        operands, made = list(control.operands), list[Node]()
        body = self._blocks[control.blocks[-1]]
        for number, view in enumerate(self._views):
            for i, own in enumerate(body.inputs[: control.carried]):
                here = view.method.here(own, body.block)
                one = next((o for o in view.method.loops if o.own == here), None)
                if one is None or not view.carries(one, self._symbols):
                    continue
                operands[i] = self._placed(number, one.first, method, lent, made)
                self._handed.setdefault(body.name, {})[i] = number, one.given
        changed = replace(control, operands=tuple(operands))
        return [*made, replace(node, arguments=arguments_of(changed))]

    def _counted(
        self, pair: tuple[Value, str], method: Method, lent: _Lent, made: list[Node]
    ) -> tuple[Value, str]:
        """Return a state's new value and the state's name.

        `pair` is (new value, name) before the replacement. The new value of a counter
        that loops or branches advance is computed from the position after the last of
        them.
        """
        new, name = pair
        for number, cursor in enumerate(self._program.cursors):
            if cursor.state is None or not self._views[number].step.totals:
                continue
            if self._program.states[cursor.state].name == name:
                return self._placed(number, new, method, lent, made), name
        return pair

    def _given(self, wanted: _Wanted, method: Method, lent: _Lent) -> Value:
        """Return the value in a method that holds a field or a mark."""
        made = (value for node in method.nodes for value in node.outputs)
        for value in (*method.inputs, *made) if isinstance(wanted, Value) else ():
            if self._views[0].method.here(value, method.block) == wanted:
                return value
        return lent.value(wanted)

    def _through(self, node: Node, method: Method, lent: _Lent) -> Node:
        """Replace operands in a node's blocks, and pass needed fields to the blocks."""
        control = control_of(node)
        assert control is not None
        blocks = [self._blocks[number] for number in control.blocks]
        inside = [self._rewrite(block, {}) for block in blocks]
        wanted = list(dict.fromkeys(w for one in inside for w in one.values))
        for one in inside:
            added = tuple(one.value(w) for w in wanted)
            labels = tuple(f"%{value.id}" for value in added)
            self._done[one.method.name] = replace(
                one.method,
                inputs=(*one.method.inputs, *added),
                input_names=(*one.method.input_names, *labels),
            )
        given = (self._given(one, method, lent) for one in wanted)
        changed = replace(control, operands=(*control.operands, *given))
        return replace(node, arguments=arguments_of(changed))


def _after(start: Value, offset: Dim, nodes: list[Node], lent: _Lent) -> Value:
    """Add a node that computes the position `offset` after a start; return it."""
    result = lent.fresh(start.type)
    nodes.append(Node(AFTER, (start, offset), (result,)))
    return result
