"""Move views around control flow into the blocks, which then take whole memory.

`cond(p, f, g, (cache.view(-1),))` passes a view of the cache to a block, and views the
result again before it becomes the cache. But a result of control flow can use the
cache's memory only if the operand is the whole cache in the cache's own shape. In: a
program with such calls on the path from the old content of a state, or of an input, to
the new content. Out: calls that take and return the cache itself; the views and their
inverses are inside the blocks. Only views of all elements are moved: reshapes and
permutations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.analysis.whole_views import WholeView, whole_view
from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.control import arguments_of, blocks_by_number, control_of, entries
from kvc.compiler.ir.rewrite import NodeList, rename_node, rename_results
from kvc.schema.control import Control
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType

# Remove views that a later view undoes.


Views = tuple[WholeView, ...]


def unviewed(value: Value, makers: Mapping[int, Node]) -> tuple[Value, Views]:
    """Return the base of a chain of views of all elements, and the views.

    The views are in the order in which they are taken of the base.
    """
    views: list[WholeView] = []
    while (node := makers.get(value.id)) and (view := whole_view(node)):
        views.append(view)
        value = node.inputs[0]
    return value, tuple(reversed(views))


def without_undone_views(method: Method) -> Method:
    """Return a method that skips views which undo each other."""
    names: dict[int, Value] = {}
    rebuilt = NodeList(method)
    reads = method.reads()
    for node in method.nodes:
        node = rename_node(node, names)
        made = _undone_by(node, rebuilt) or _done_to_base(node, rebuilt, reads)
        if made is None:
            rebuilt.keep(node)
        else:
            names[node.outputs[0].id] = made
    return rename_results(replace(method, nodes=tuple(rebuilt.nodes)), names)


def _undone_by(node: Node, rebuilt: NodeList) -> Value | None:
    """Return the earlier value that a view node restores, None if it restores none."""
    view = whole_view(node)
    return None if view is None else _base(view, node.inputs[0], rebuilt)


def _base(view: WholeView, value: Value, rebuilt: NodeList) -> Value | None:
    """Return the value before a chain of views that `view` undoes.

    `value` is the last result of the chain. Return None if `view` undoes no chain.
    """
    while (inner := rebuilt.makers.get(value.id)) and (step := whole_view(inner)):
        if step.reorders != view.reorders:
            return None
        value, view = inner.inputs[0], step.then(view)
        if view.is_nothing:
            return value
    return None


def _done_to_base(
    node: Node, rebuilt: NodeList, reads: Mapping[int, int]
) -> Value | None:
    """Remove views around a pointwise node that undo each other.

    `node` is a view of the pointwise node's result, and undoes the views that an
    operand is made by. Add the pointwise node on the base of that operand; return its
    result. Return None if `node` is no such view.
    """
    view = whole_view(node)
    inner = rebuilt.makers.get(node.inputs[0].id) if view else None
    if view is None or inner is None or not _is_even(inner):
        return None
    if reads.get(inner.outputs[0].id, 0) != 1:
        return None
    bases = {v.id: _base(view, v, rebuilt) for v in inner.inputs}
    if not any(bases.values()):
        return None
    names: dict[int, Value] = {}
    for value in inner.inputs:
        kind = TensorType(value.type.dtype, view.after.dims)
        arguments = (value, *view.settings)
        names[value.id] = bases[value.id] or rebuilt.add(
            view.op, arguments, kind, view.source
        )
    done = rename_node(inner, names)
    return rebuilt.add(done.op, done.arguments, view.after, done.source)


def _is_even(node: Node) -> bool:
    """Tell whether a node is pointwise, with operands and a result of equal shapes."""
    sizes = {value.type.dims for value in (*node.inputs, *node.outputs)}
    return OPS[node.op].pointwise and len(node.outputs) == 1 and len(sizes) == 1


# Move views around control flow into the blocks.


@dataclass(frozen=True, slots=True)
class LendWholeMemory:
    """Move views of persistent memory into blocks."""

    name: ClassVar[str] = "lend-whole-memory"

    def run(self, program: Program) -> Program:
        """Return the program whose control nodes take whole persistent memory."""
        hoister = _Hoister(blocks_by_number(program))
        grown = {state.name for state in program.states if state.grows is not None}
        changed = {
            method.name: hoister.hoist(method, _homes(method, grown))
            for method in entries(program)
        }
        changed |= {block.name: block for block in hoister.blocks.values()}
        return replace(
            program,
            methods=tuple(
                method
                if changed[method.name] is method
                else without_undone_views(changed[method.name])
                for method in program.methods
            ),
        )


def _homes(method: Method, grown: set[str]) -> Iterator[tuple[Value, Value]]:
    """Yield (new content, old content) for each state and input of fixed size."""
    states = {name: value for value, name in method.state_in if name not in grown}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    yield from ((new, states[n]) for new, n in method.state_out if n in states)
    yield from ((new, inputs[n]) for new, n in method.input_out)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A result of control flow that should take the memory of an operand.

    Attributes:
        node: the control node.
        result: index of the result among the node's results.
        operand: index of the operand among the node's operands.
        seen: the views between the result and the new content.
    """

    node: Node
    result: int
    operand: int
    seen: Views


class _Hoister:
    """Rewrites methods; `blocks` are the current blocks of the program."""

    def __init__(self, blocks: Mapping[int, Method]) -> None:
        self.blocks = dict(blocks)

    def hoist(self, method: Method, roots: Iterable[tuple[Value, Value]]) -> Method:
        """Return a method whose control nodes take whole persistent memory.

        `roots` are (new content, old content) of each memory.
        """
        marks: dict[int, dict[int, _Mark]] = {}  # id of a node -> result -> mark
        for new, old in roots:
            for mark in self._trace(method, new, old) or ():
                marks.setdefault(id(mark.node), {}).setdefault(mark.result, mark)
        if not marks:
            return method
        rebuilt = NodeList(method)
        for node in method.nodes:
            if id(node) in marks:
                self._rewrite(node, tuple(marks[id(node)].values()), rebuilt)
            else:
                rebuilt.keep(node)
        return replace(method, nodes=tuple(rebuilt.nodes))

    def _trace(self, method: Method, new: Value, old: Value) -> list[_Mark] | None:
        """Return a `_Mark` for each control node between an old and a new content.

        Return None if no path leads from the old to the new content.
        """
        makers = method.makers()
        current, seen = unviewed(new, makers)
        if current.id == old.id:
            return []
        node = makers.get(current.id)
        if node is None:
            return None
        match OPS[node.op].aliasing:
            case Aliasing.UPDATE:
                return self._trace(method, node.inputs[0], old)
            case Aliasing.FRESH:
                return []
            case Aliasing.CONTROL:
                return self._through(method, node, current, seen, old)
        return None

    def _through(
        self, method: Method, node: Node, result: Value, seen: Views, old: Value
    ) -> list[_Mark] | None:
        """Continue a trace from a result of a control node to one of its operands.

        Return None if no operand leads to the old content.
        """
        control = control_of(node)
        assert control is not None
        at = [value.id for value in node.outputs].index(result.id)
        for i, operand in enumerate(control.operands):
            if not self._makes(control, at, i):
                continue
            further = self._trace(method, operand, old)
            if further is not None:
                return [_Mark(node, at, i, seen), *further]
        return None

    def _makes(self, control: Control[Value], result: int, operand: int) -> bool:
        """Tell whether result number `result` can take operand `operand`'s memory."""
        if control.is_loop:
            return operand == result and operand < control.carried
        blocks = [self.blocks[number] for number in control.blocks]
        return any(
            self._derives(block, block.outputs[result], block.inputs[operand])
            for block in blocks
        )

    def _derives(self, block: Method, value: Value, root: Value) -> bool:
        """Tell whether `value` of a block can be written over the input `root`."""
        makers = block.makers()
        while True:
            value, _ = unviewed(value, makers)
            node = makers.get(value.id)
            if value.id == root.id or node is None:
                return value.id == root.id
            if OPS[node.op].aliasing is not Aliasing.UPDATE:
                break
            value = node.inputs[0]
        control = control_of(node)
        if control is None:
            return OPS[node.op].pointwise and root in node.inputs
        at = [made.id for made in node.outputs].index(value.id)
        return any(
            self._makes(control, at, i) and self._derives(block, operand, root)
            for i, operand in enumerate(control.operands)
        )

    def _taken_inside(
        self, control: Control[Value], result: int, operand: int
    ) -> Views:
        """Return the inverse of the views that a branch makes its result by.

        Return () if no branch makes the result by views.
        """
        for number in control.blocks:
            block = self.blocks[number]
            core, views = unviewed(block.outputs[result], block.makers())
            if views and core.type == block.inputs[operand].type:
                return _undone(views)
        return ()

    def _rewrite(self, node: Node, marks: tuple[_Mark, ...], rebuilt: NodeList) -> None:
        """Add a control node over whole memory, and views that restore its results.

        The views give the results the shapes that later nodes read.
        """
        control = control_of(node)
        assert control is not None
        operands, outputs = list(control.operands), list(node.outputs)
        passed: dict[int, Views] = {}
        given: dict[int, Views] = {}
        for mark in marks:
            i, j = mark.operand, mark.result
            operands[i], passed[i] = unviewed(control.operands[i], rebuilt.makers)
            result = outputs[j]
            undone = _undone(passed[i])
            given[j] = undone if undone and undone[0].before == result.type else ()
            if not control.is_loop:
                given[j] = mark.seen or given[j] or self._taken_inside(control, j, i)
            outputs[j] = _end(outputs[j], given[j], rebuilt)
        same: _Same = {}
        if not control.is_loop:
            same = _same_memory(operands, passed.keys(), rebuilt.makers)
        kept = tuple(v for i, v in enumerate(operands) if i not in same)
        arguments = arguments_of(replace(control, operands=kept))
        rebuilt.keep(replace(node, arguments=arguments, outputs=tuple(outputs)))
        for j, views in given.items():
            _add_views(outputs[j], _undone(views), node.outputs[j], rebuilt)
        for which, number in enumerate(control.blocks):
            tests = control.tests(which)
            block = _over_whole(
                self.blocks[number], passed, {} if tests else given, same
            )
            roots = [
                (
                    block.outputs[m.result],
                    block.inputs[
                        m.operand - sum(dropped < m.operand for dropped in same)
                    ],
                )
                for m in (() if tests else marks)
            ]
            self.blocks[number] = self.hoist(block, roots)


_Same = Mapping[int, tuple[int, Views]]  # operand -> the operand that it is a view of


def _same_memory(
    operands: Sequence[Value], lent: Set[int], makers: Mapping[int, Node]
) -> _Same:
    """Find the operands that are views of operands in `lent`, which are written.

    A branch gets one input for a view and its base, so that reads of the view are put
    before writes of the base.

    Returns:
        Index of a view operand -> index of the base operand, and the views between.
    """
    whole = {operands[i].id: i for i in lent}
    same = {}
    for i, operand in enumerate(operands):
        base, views = unviewed(operand, makers)
        if i not in lent and base.id in whole:
            same[i] = (whole[base.id], views)
    return same


def _undone(views: Views) -> Views:
    return tuple(view.undone() for view in reversed(views))


def _add_views(base: Value, views: Views, last: Value, rebuilt: NodeList) -> None:
    """Add a chain of view nodes of `base`; the last of them computes `last`."""
    for i, view in enumerate(views):
        made = last if i == len(views) - 1 else rebuilt.value(view.after)
        rebuilt.keep(Node(view.op, (base, *view.settings), (made,), view.source))
        base = made


def _over_whole(
    block: Method,
    operands: Mapping[int, Views],
    results: Mapping[int, Views],
    same: _Same,
) -> Method:
    """Return a block that takes whole memory and returns whole memory.

    The block takes the views in `operands` of its inputs first, and the views in
    `results` of its outputs at the end.
    """
    rebuilt = NodeList(block)
    inputs, names = list(block.inputs), dict[int, Value]()
    for i, views in operands.items():
        if views:
            inputs[i] = rebuilt.value(views[0].before)
            _add_views(inputs[i], views, block.inputs[i], rebuilt)
    for i, (lent, views) in same.items():
        _add_views(inputs[lent], views, inputs[i], rebuilt)
        if not views:
            names[inputs[i].id] = inputs[lent]
    for node in block.nodes:
        rebuilt.keep(rename_node(node, names))
    outputs = [names.get(value.id, value) for value in block.outputs]
    for j, views in results.items():
        base, outputs[j] = outputs[j], _end(outputs[j], views, rebuilt)
        _add_views(base, views, outputs[j], rebuilt)
    kept = tuple(value for i, value in enumerate(inputs) if i not in same)
    return replace(
        block,
        inputs=kept,
        input_names=tuple(f"%{value.id}" for value in kept),
        nodes=tuple(rebuilt.nodes),
        outputs=tuple(outputs),
    )


def _end(base: Value, views: Views, rebuilt: NodeList) -> Value:
    """Return a new value of the last view's type, or `base` if there are no views."""
    return rebuilt.value(views[-1].after) if views else base
