"""Calls of branches and loops, whose bodies may write what they take.

In: a traced call of `torch.cond`, `while_loop`, `scan` or `map`. Out: the same call of
bodies that write nothing. What a body writes is a result of it, and a loop carries it.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeGuard

import torch
from torch import Tensor, fx

from kvc.compiler.functional.memory import Place
from kvc.compiler.functional.recorder import Recorder
from kvc.compiler.functional.views import Unwritable

_ops = torch.ops.higher_order
UPDATE = torch.ops.kvc.cache_update.default
LOST_IN_BODY = (
    "the result of cache_update is unused in the body of a branch or loop, and it "
    "changes none of its arguments; let the body return it, and write it back outside: "
    "new = torch.cond(pred, lambda c, x: torch.ops.kvc.cache_update(c, x, ...), "
    "lambda c, x: c.clone(), (self.cache, x)); self.cache.copy_(new)"
)
_CARRIED = (
    "the body of a loop writes into a tensor that the loop carries or goes along; let "
    "it return the new value instead"
)
_TWICE = (
    "the body of a loop writes into a tensor that the loop carries, or goes along, "
    "too; let the body take the tensor once"
)
_TEST = "the condition of a loop writes into a tensor; let the body of the loop write"
_HANDED_BACK = (
    "it writes into an input or a result of a branch, and these are one tensor if the "
    "branch returns its input; let the branch return .clone() of that"
)


@dataclass(frozen=True, slots=True)
class Within:
    """An operand that lies in the memory of others, of which the whole is passed.

    Attributes:
        whole: the tensor that made the memory.
        path: the places that lead from it to the operand.
    """

    whole: Tensor
    path: Sequence[Place]


@dataclass(frozen=True, slots=True)
class _Form:
    """How the arguments of an operator are ordered.

    Attributes:
        bodies: the indices of the bodies.
        operands: the indices of the groups of operands, the last of which is what the
            bodies only read.
        writes: the index, among the bodies, of the first that may write.
    """

    bodies: Sequence[int]
    operands: Sequence[int]
    writes: int = 0


_FORMS: Mapping[object, _Form] = {
    _ops.cond: _Form((1, 2), (3,)),
    _ops.while_loop: _Form((0, 1), (2, 3), writes=1),
    _ops.scan: _Form((0,), (1, 2, 3)),
    _ops.map_impl: _Form((0,), (1, 2)),
}


class Run(Protocol):
    """A run of a traced graph, of which the call is a part."""

    recorder: Recorder

    def through(self, given: Sequence[object]) -> tuple[object, Sequence[object]]:
        """Run all nodes, for inputs of the given layouts; return results and inputs."""

    def known(self, given: object) -> object:
        """Return the tensor or number that a traced node has."""

    def content(self, given: object) -> object:
        """Return the node with the current content of a tensor."""

    def body(self, name: str) -> Self:
        """Return a run of a body of the module."""

    def add_body(self, name: str, body: Self, results: Sequence[object]) -> str:
        """Add a body that has run, with its results, to the module; return its name."""


def control(run: Run, node: fx.Node) -> object:
    """Record a call of a branch or loop; return its results.

    Raises:
        Unwritable: a body writes what it must not.
    """
    form = _FORMS.get(node.target)
    if form is None:
        raise Unwritable(f"torch.{node.target} is an operator that kvc does not have")
    return _Call(run, node, form).record()


class _Call:
    """One call, and its bodies after they have run."""

    def __init__(self, run: Run, node: fx.Node, form: _Form) -> None:
        self._run, self._node, self._form = run, node, form
        self._is_cond = node.target is _ops.cond
        self._is_map = node.target is _ops.map_impl
        self._groups = [
            [run.known(each) for each in _items(node.args[place])]
            for place in form.operands
        ]
        given = self._given()
        self._groups[-1] = self._passed()
        self._operands = [each for group in self._groups for each in group]
        is_loop = not self._is_cond and not self._is_map
        self._carried = len(self._groups[0]) if is_loop else 0
        self._names = [str(_node(node.args[place]).target) for place in form.bodies]
        self._bodies = [run.body(name) for name in self._names]
        self._inputs: list[list[object]] = []
        self._results: list[list[object]] = []
        for body in self._bodies:
            returned, inputs = body.through(given)
            self._inputs.append([*inputs])
            self._results.append([body.known(each) for each in _items(returned)])

    def _given(self) -> list[object]:
        """Return what the bodies take, of which some are rows or parts of operands."""
        along = 1 if self._node.target is _ops.scan else 0 if self._is_map else None
        given: list[object] = []
        for number, group in enumerate(self._groups):
            for each in group:
                taken = each
                if number == along and isinstance(each, Tensor):
                    select = torch.ops.aten.select.int
                    taken = self._run.recorder.computed(select, (each, 0, 0), {})
                elif number == len(self._groups) - 1 and self._is_shared(each):
                    path = self._run.recorder.place(each).path()
                    taken = Within(self._whole_of(each), path)
                given.append(taken)
        return given

    def _passed(self) -> list[object]:
        """Return the operands of the last group; shared memory is passed once."""
        passed: list[object] = []
        for each in self._groups[-1]:
            if not self._is_shared(each):
                passed.append(each)
            elif not self._run.recorder.is_within(each, passed):
                passed.append(self._whole_of(each))
        return passed

    def _whole_of(self, tensor: Tensor) -> Tensor:
        """Return the tensor that made the memory of another."""
        place = self._run.recorder.place(tensor)
        while place.parent is not None:
            place = place.parent
        return place.tensor

    def _is_shared(self, given: object) -> TypeGuard[Tensor]:
        """Tell whether an operand of the last group shares its memory with others."""
        if not isinstance(given, Tensor):
            return False
        is_within = self._run.recorder.is_within
        others = [each for each in self._groups[-1] if each is not given]
        before = [each for group in self._groups[:-1] for each in group]
        twice = sum(each is given for each in self._groups[-1]) > 1
        return (twice or is_within(given, others)) and not is_within(given, before)

    def record(self) -> object:
        """Record the call, and write outside what the bodies have written."""
        written, values = self._written(), [*self._node.meta["val"]]
        if not self._is_cond:
            self._carry(written)
        self._pass_constants()
        extra = [self._operands[i] for i in written]
        at = len(values) if self._is_cond else self._carried
        self._add_bodies(written, at)
        self._check_updates()
        made = self._called([*values[:at], *extra, *values[at:]])
        results = self._operands_of([*made[:at], *made[at + len(extra) :]])
        for tensor, new in zip(extra, made[at:], strict=False):
            assert isinstance(tensor, Tensor)
            # Results have been read after the writes, even if they are one tensor.
            self._run.recorder.store(tensor, new, same=True)
        return results

    def _written(self) -> list[int]:
        """Return the indices of the operands that a body writes."""
        found: set[int] = set()
        for number, body in enumerate(self._bodies):
            inputs = enumerate(self._inputs[number])
            some = {i for i, each in inputs if body.recorder.is_written(each)}
            if some and number < self._form.writes:
                raise Unwritable(_TEST)
            found |= some
        recorder = self._run.recorder
        for i in found:
            others = [x for n, x in enumerate(self._operands) if n != i]
            if recorder.is_within(self._operands[i], others):
                raise Unwritable(_TWICE)
        return sorted(found)

    def _carry(self, written: Sequence[int]) -> None:
        """Let a loop carry the operands that its body writes."""
        first = len(self._operands) - len(self._groups[-1])
        if written and written[0] < first:
            raise Unwritable(_CARRIED)
        kept = [i for i in range(first, len(self._operands)) if i not in written]
        moved = [self._operands[i] for i in written]
        self._groups[-1] = [self._operands[i] for i in kept]
        if self._is_map:
            self._groups.insert(0, [])
        self._groups[0] = [*self._groups[0], *moved]
        order = [*range(self._carried), *written, *range(self._carried, first), *kept]
        for body in self._bodies:
            body.recorder.order_inputs(order)

    def _pass_constants(self) -> None:
        """Pass constants that the bodies have made from outside."""
        made = [[*body.recorder.constants.values()] for body in self._bodies]
        for number, body in enumerate(self._bodies):
            before = sum(map(len, made[:number]))
            body.recorder.add_unread(before, sum(map(len, made[number + 1 :])))
        constants = [each for some in made for each in some]
        self._groups[-1] += map(self._run.recorder.constant, constants)

    def _add_bodies(self, written: Sequence[int], at: int) -> None:
        """Add the bodies to the module; they return what they have written too."""
        for number, (name, body) in enumerate(
            zip(self._names, self._bodies, strict=True)
        ):
            results = [body.content(each) for each in self._results[number]]
            if number >= self._form.writes:
                inputs = [self._inputs[number][i] for i in written]
                results[at:at] = map(body.content, inputs)
            self._names[number] = self._run.add_body(name, body, results)

    def _check_updates(self) -> None:
        """Check that no cache update is a result of a branch that nothing reads."""
        taken = {
            user.args[1]
            for user in self._node.users
            if user.target is operator.getitem and user.users
        }
        for body, results in zip(self._bodies, self._results, strict=True):
            for index, result in enumerate(results if self._is_cond else ()):
                made = body.content(result)
                is_update = isinstance(made, fx.Node) and made.target is UPDATE
                if index not in taken and is_update and not _is_shared(made):
                    raise Unwritable(LOST_IN_BODY)

    def _called(self, values: Sequence[object]) -> list[Tensor]:
        recorder, target = self._run.recorder, self._node.target
        groups = self._groups
        if self._is_map:
            target = _ops.scan if groups[0] else target
            groups = groups if groups[0] else groups[1:]
        head = [self._run.known(self._node.args[0])] if self._is_cond else []
        bodies = [recorder.graph.get_attr(name) for name in self._names]
        made = [recorder.alike(each) for each in values if isinstance(each, Tensor)]
        args = [*head, *bodies, *map(tuple, groups)]
        return recorder.record(target, args, {}, made)

    def _operands_of(self, results: Sequence[Tensor]) -> list[object]:
        """Replace results that all bodies give back of what they take by the operands.

        What only some of them give back may be one tensor with an operand, or not.
        """
        found: list[object] = [*results]
        link = self._run.recorder.link
        for index, result in enumerate(results[: self._returned()]):
            bodies = range(self._form.writes, len(self._bodies))
            given = [self._given_back(body, index) for body in bodies]
            same = {place for each in given for place in each}
            if self._is_cond and len(same) == 1 and all(map(_is_itself, given)):
                found[index] = self._operands[same.pop()]
            for place in same:
                operand = self._operands[place]
                assert isinstance(operand, Tensor)
                link(result, operand, _HANDED_BACK)
            for other in range(index):
                if self._are_one(index, other):
                    link(result, results[other], _HANDED_BACK)
        return found

    def _are_one(self, one: int, other: int) -> bool:
        """Tell whether two results of a body may lie in the same memory."""
        for body, results in zip(self._bodies, self._results, strict=True):
            both = [results[i] for i in (one, other) if i < len(results)]
            tensors = [each for each in both if isinstance(each, Tensor)]
            memories = [body.recorder.place(each).memory for each in tensors]
            if len(memories) == 2 and memories[0] in memories[1].related():
                return True
        return False

    def _returned(self) -> int:
        """Return how many results the bodies may give back of what they take.

        What the steps of a scan or map return is copied.
        """
        return len(self._results[-1]) if self._is_cond else self._carried

    def _given_back(self, number: int, index: int) -> Mapping[int, bool]:
        """Return the operands that a body's result may lie in, and which are it."""
        recorder, result = self._bodies[number].recorder, self._results[number][index]
        found: dict[int, bool] = {}
        for i, each in enumerate(self._inputs[number]):
            if isinstance(each, Tensor) and isinstance(result, Tensor):
                one, other = recorder.place(result), recorder.place(each)
                if one.memory in other.memory.related():
                    found[i] = one.memory is other.memory and one.view is None
        return found


def _is_shared(made: object) -> bool:
    return isinstance(made, fx.Node) and len(made.users) > 1


def _is_itself(given: Mapping[int, bool]) -> bool:
    """Tell whether a result is the one operand that it may lie in."""
    return [*given.values()] == [True]


def _items(given: object) -> Sequence[object]:
    return given if isinstance(given, list | tuple) else [given]


def _node(given: object) -> fx.Node:
    assert isinstance(given, fx.Node)
    return given
