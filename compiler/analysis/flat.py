"""Inline the blocks of a method, for analysis.

In: a program whose writes are proven to be in place. Out: its methods, with each block
inlined just before the node that runs it. The inlined values get new ids; the inputs of
a branch are replaced by the operands, and each carried value of a loop gets one new
value that stands for it in any iteration. A flat method cannot be run, since it
contains all branches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from kvc.compiler.analysis.index_sums import CarriedSum, IndexSums, Joined, Open
from kvc.compiler.ir import Method, Node, Program, Value, bound_to
from kvc.compiler.ir.control import blocks_by_number, control_of, entries
from kvc.compiler.ir.rewrite import rename_node
from kvc.compiler.place.aliasing import analyse
from kvc.schema.control import Control
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Dim

Names = dict[int, Value]
Branches = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FlatMethod(Method):
    """A method with its blocks inlined.

    Attributes:
        writes: (state, node) for every node that writes to a state's memory.
        joins: id of a result of a cond (a node that runs one of several branches) ->
            the value that each branch returns for that result.
        within: id of a value of a branch -> the branches that contain the value, the
            outermost first, as (id of the cond's first result, index of the branch).
        names: number of a block -> value id in the block -> value in the flat method.
        sums: the integers of the method as sums.
        loops: the carried values to which each iteration adds, inner loops first.
        passed: all carried values of loops.
        asked: id of the value that a loop's condition reads for a carried value -> the
            carried value before the first iteration.
    """

    writes: tuple[tuple[str, Node], ...] = ()
    joins: Mapping[int, Joined] = field(default_factory=dict)
    within: Mapping[int, Branches] = field(default_factory=dict)
    names: Mapping[int, Names] = field(default_factory=dict)
    sums: IndexSums = field(default_factory=IndexSums)
    loops: tuple[CarriedSum, ...] = ()
    passed: tuple["Passed", ...] = ()
    asked: Mapping[int, Value] = field(default_factory=dict)

    def counting(self, values: Mapping[int, Value]) -> "FlatMethod":
        """Return the method with some values marked as consecutive integers."""
        return replace(
            self, sums=IndexSums(self.makers(), self.joins, values, self.loops)
        )

    def here(self, value: Value, block: int | None) -> Value | None:
        """Return the value of the flat method that replaces `value`, None if none does.

        `block` is the number of the block that has the value; None for the method
        itself.
        """
        return value if block is None else self.names[block].get(value.id)

    def leaves(self, value: Value) -> list[Value]:
        """Return the values that branches may return for `value`.

        The list has only `value` itself if it is no result of branches.
        """
        one = self.joins.get(value.id)
        return [value] if one is None else [v for w in one.ways for v in self.leaves(w)]

    def totals(self) -> set[Value]:
        """Return the values that represent the sums which loops and branches add."""
        return {one.total for one in self.open()}

    def open(self) -> Iterator[Open]:
        """Yield the carried values of loops, then the results of branches."""
        yield from self.loops
        yield from self.joins.values()


def flatten(program: Program) -> tuple[FlatMethod, ...]:
    """Return the entries of a program with their blocks inlined."""
    blocks = blocks_by_number(program)
    return tuple(_Flattener(method, blocks).run() for method in entries(program))


@dataclass(frozen=True, slots=True)
class Passed:
    """A value that a loop passes from one iteration to the next.

    Attributes:
        loop: id of the loop's first result.
        first: the value before the first iteration.
        own: the value that stands for the passed value in any iteration.
        given: the value that an iteration returns.
        end: the value after the last iteration.
        turns: the number of iterations; None if it is known only at run time.
    """

    loop: int
    first: Value
    own: Value
    given: Value
    end: Value
    turns: Dim | None


class _Flattener:
    """Inlines the blocks of one method."""

    def __init__(self, method: Method, blocks: Mapping[int, Method]) -> None:
        self._method, self._blocks = method, blocks
        self._count = method.next_id()
        self._nodes: list[Node] = []
        self._writes: list[tuple[str, Node]] = []
        self._joins: dict[int, Joined] = {}
        self._within: dict[int, Branches] = {}
        self._branches: Branches = ()  # the branches that are being inlined
        self._names: dict[int, Names] = {}
        self._passed: list[Passed] = []
        self._asked: dict[int, Value] = {}

    def run(self) -> FlatMethod:
        method = self._method
        self._inline(method, {}, bound_to(method.state_in))
        kept = {field.name: getattr(method, field.name) for field in fields(Method)}
        kept |= {"nodes": tuple(self._nodes), "writes": tuple(self._writes)}
        flat = FlatMethod(**kept, joins=self._joins, names=self._names)
        passed, asked = tuple(self._passed), self._asked
        flat = replace(flat, within=self._within, passed=passed, asked=asked)
        # The carried values to which each iteration adds the same amount. The amount
        # is a number, plus the sums of inner loops and branches.
        makers, loops = flat.makers(), list[CarriedSum]()
        # Loop and step -> the value that represents their sum.
        totals: dict[object, Value] = {}
        for one in self._passed:  # inner loops first
            found = IndexSums(makers, flat.joins, loops=loops).of(one.given)
            step, within = (
                found.constant,
                tuple(Counter(found.addends) - Counter((one.own,))),
            )
            known = replace(flat, loops=tuple(loops)).totals()
            if not isinstance(step, int) or step < (0 if within else 1):
                continue
            if one.own in found.addends and set(within) <= known:
                key = one.loop, step, within
                total = totals.setdefault(key, self._fresh(one.own))
                turns = None if within else one.turns
                added = self._fresh(one.own)
                ends = one.first, one.own, one.given, one.end
                loops.append(CarriedSum(*ends, step, within, turns, added, total))
        return replace(flat, loops=tuple(loops)).counting({})

    def _inline(self, method: Method, names: Names, states: Mapping[int, str]) -> None:
        """Add the nodes of a method or block.

        Args:
            method: the method or block.
            names: id of a value of `method` -> the flat value, if it is a different
                one.
            states: id of a value of `method` -> name of the state whose whole memory
                the value is when `method` starts.
        """
        roots = analyse(method).root
        for node in method.nodes:
            control = control_of(node)
            made = self._renamed(node, names, method is self._method)
            self._within |= {value.id: self._branches for value in made.outputs}
            if control is not None:
                self._inline_blocks(control, made, names, states, roots)
            self._nodes.append(made)
            view = OPS[node.op].aliasing is Aliasing.VIEW
            for value in () if view or control else node.outputs:
                if roots[value.id] in states:
                    self._writes.append((states[roots[value.id]], made))

    def _renamed(self, node: Node, names: Names, outermost: bool) -> Node:
        if not outermost:
            names.update((value.id, self._fresh(value)) for value in node.outputs)
        return replace(
            rename_node(node, names),
            outputs=tuple(names.get(value.id, value) for value in node.outputs),
        )

    def _inline_blocks(
        self,
        control: Control[Value],
        made: Node,
        names: Names,
        states: Mapping[int, str],
        roots: Mapping[int, int],
    ) -> None:
        """Inline the blocks of a control node.

        `made` is the same node in the flat method. The other arguments are as for
        `_inline`, except `roots`: id of a value -> id of the value whose memory it
        views.
        """
        given: list[tuple[Value, ...]] = []
        for number in control.blocks:
            block = self._blocks[number]
            inside = self._names[number] = {}
            written: dict[int, str] = {}
            lent = set(control.over)
            for i, (value, operand) in enumerate(
                zip(block.inputs, control.operands, strict=True)
            ):
                passed = i >= control.carried + control.scanned
                known = names.get(operand.id, operand)
                inside[value.id] = known if passed else self._fresh(value)
                if control.tests(len(given)) and not passed:
                    self._asked[inside[value.id].id] = known
                root = roots[operand.id]
                if i in lent and root in states:
                    written[value.id] = states[root]
            inside.update((v.id, self._fresh(v)) for v, _ in block.constants)
            before = self._branches
            if not control.is_loop:
                self._branches = (*before, (made.outputs[0].id, len(given)))
            self._inline(block, inside, written)
            self._branches = before
            given.append(tuple(inside.get(v.id, v) for v in block.outputs))
        if control.is_loop:
            self._pass_on(control, made, names, given[-1])
            return
        for result, ways in zip(made.outputs, zip(*given, strict=True), strict=True):
            total = self._fresh(result)
            self._joins[result.id] = Joined(made.outputs[0].id, result, ways, total)

    def _pass_on(
        self,
        control: Control[Value],
        made: Node,
        names: Names,
        given: Sequence[Value],
    ) -> None:
        """Record the carried values of a loop; its iterations return `given`."""
        body, turns = self._blocks[control.blocks[-1]], None
        if control.scanned:
            turns = control.operands[control.carried].type.dims[0]
        for i, value in enumerate(body.inputs[: control.carried]):
            first = names.get(control.operands[i].id, control.operands[i])
            own = self._names[control.blocks[-1]][value.id]
            end = made.outputs[i]
            one = Passed(made.outputs[0].id, first, own, given[i], end, turns)
            self._passed.append(one)

    def _fresh(self, value: Value) -> Value:
        self._count += 1
        return Value(self._count - 1, value.type)
