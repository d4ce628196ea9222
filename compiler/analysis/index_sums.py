"""Read the arithmetic of indices and positions as sums of values and a number.

For example, `position + arange(n)` is the position plus consecutive integers along an
axis. In: the nodes of a method. Out: an `IndexSum` for each integer tensor. Only these
operators are read: sums with values and numbers, ranges, views, copies and widening
casts. The result of any other operator is a sum whose one term is that result. This
module does not use cursors or caches.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from kvc.compiler.ir import Argument, Method, Node, Program, Value, bound_to
from kvc.schema.dtypes import DType
from kvc.schema.ops import Keeps, ops_that_keep
from kvc.schema.types import Affine, Dim, Symbol, TensorType, add_dims, bounds

_WHOLE = (DType.BOOL, DType.INT32, DType.INT64)
_PICKING = ("aten::select.int", "aten::slice.Tensor")
_SEEN_THROUGH = ops_that_keep(Keeps.ALL, Keeps.SOME, Keeps.REPEATED)


class Along(Enum):
    """How the elements of a tensor that equals an `IndexSum` differ from each other."""

    ALIKE = "alike"  # all are equal
    COUNTING = "counting"  # each element is one more than the element before
    APART = "apart"  # they differ like those of the addends


@dataclass(frozen=True, slots=True)
class IndexSum:
    """The sum that an integer tensor equals.

    Attributes:
        addends: values with one element each or, for APART, with one element for each
            element of the sum. A value of consecutive integers stands for its first
            element.
        constant: the number added to the addends.
        along: how the elements of the sum differ.
    """

    addends: tuple[Value, ...]
    constant: Dim
    along: Along


@dataclass(frozen=True, slots=True)
class CarriedSum:
    """A carried value to which each iteration of a loop adds.

    Attributes:
        first: the value before the first iteration.
        own: the value that stands for the carried value in any iteration.
        given: the value that an iteration returns.
        end: the value after the last iteration.
        step: the number that an iteration adds, in addition to `within`.
        within: values that represent the sums which inner loops and branches add.
        turns: the number of iterations; None if the total is known only at run time.
        added: a value that represents the sum that earlier iterations add.
        total: a value that represents the sum that all iterations add, if that sum is
            known only at run time.
    """

    first: Value
    own: Value
    given: Value
    end: Value
    step: int
    within: tuple[Value, ...]
    turns: Dim | None
    added: Value
    total: Value


@dataclass(frozen=True, slots=True)
class Joined:
    """A result of branches that all add to the same value.

    Attributes:
        cond: id of the first result of the node that runs the branches.
        end: the result of the branches.
        ways: the value that each branch returns for that result.
        total: a value that represents the sum that the executed branch adds, beyond the
            part that every branch adds.
    """

    cond: int
    end: Value
    ways: tuple[Value, ...]
    total: Value


Open = CarriedSum | Joined  # a value whose sum is known only at run time


class IndexSums:
    """The sums of the integer tensors of one method, computed on demand.

    Args:
        makers: value id -> the node that computes it.
        joins: the results of branches, by id.
        counting: id of a value of consecutive integers -> a value that represents the
            first of these integers.
        loops: the carried values to which loops add.
    """

    def __init__(
        self,
        makers: Mapping[int, Node] = MappingProxyType({}),
        joins: Mapping[int, Joined] = MappingProxyType({}),
        counting: Mapping[int, Value] = MappingProxyType({}),
        loops: Sequence[CarriedSum] = (),
    ) -> None:
        self._makers, self._joins = makers, joins
        added: tuple[Open, ...] = (*loops, *joins.values())
        self._totals = {one.total for one in added}
        self._carried = {one.own.id: one for one in loops}
        self._ends = {one.end.id: one for one in loops}
        self._known = {
            number: IndexSum((first,), 0, Along.COUNTING)
            for number, first in counting.items()
        }

    def of(self, value: Value) -> IndexSum:
        """Return the sum that a value equals."""
        if value.id not in self._known:
            found = self._in_loop(value)
            if found is None and value.type.dtype in _WHOLE:
                found = self._found(value)
            apart = Along.APART if sides(value.type) else Along.ALIKE
            self._known[value.id] = found or IndexSum((value,), 0, apart)
        return self._known[value.id]

    def _in_loop(self, value: Value) -> IndexSum | None:
        """Return the sum of a carried value of a loop, during or after the loop.

        The result is None if the value is no carried value to which the loop adds.
        """
        if value.id in self._carried:
            one = self._carried[value.id]
            first = self.of(one.first)
            return replace(first, addends=(*first.addends, one.added))
        if value.id in self._ends:
            one = self._ends[value.id]
            first = self.of(one.first)
            if one.turns is None:
                return replace(first, addends=(*first.addends, one.total))
            return _shifted(first, add_dims(0, one.turns, one.step))
        return None

    def _found(self, value: Value) -> IndexSum | None:
        if value.id in self._joins:
            return self._joined(self._joins[value.id])
        node = self._makers.get(value.id)
        if node is None:
            return None
        match node.op, node.arguments:
            case "aten::arange.start_step", (int() | Affine() as first, _, 1, _):
                along = Along.COUNTING if sides(value.type) else Along.ALIKE
                return IndexSum((), first, along)
            case "aten::add.Tensor", (Value() as a, Value() as b, 1):
                return self._added(a, b, value)
            case "aten::add.Scalar", (Value() as old, int() | Affine() as number, 1):
                return _shifted(self.of(old), number)
            case "aten::sub.Scalar", (Value() as old, int() as number, 1):
                return _shifted(self.of(old), -number)
            case "aten::_to_copy", (Value() as old, DType() as dtype):
                narrow = dtype.itemsize < old.type.dtype.itemsize
                kept = old.type.dtype in _WHOLE and not narrow
                return self.of(old) if kept else None
            # A copy over a value of any kind.
            case "aten::copy", (_, Value() as source):
                return self._viewed(node, source, value)
        known = node.op in _SEEN_THROUGH and node.outputs == (value,)
        return self._viewed(node, node.inputs[0], value) if known else None

    def _joined(self, one: Joined) -> IndexSum | None:
        """Return the sum that a result of branches equals, None if it is unknown.

        If the branches return different sums, the result is what these sums share plus
        `one.total`, which stands for what the selected branch adds to that. All that a
        branch adds must be a number, or a total of loops or branches inside it.
        """
        ways = [self.of(way) for way in one.ways]
        if len(set(ways)) == 1:
            return ways[0]
        shared = Counter(ways[0].addends)
        for way in ways:
            shared &= Counter(way.addends)
        added = {v for way in ways for v in Counter(way.addends) - shared}
        constants = [way.constant for way in ways if isinstance(way.constant, int)]
        alike = len({way.along for way in ways}) == 1 and len(constants) == len(ways)
        if not (alike and shared and added <= self._totals):
            return None
        return replace(
            ways[0], addends=(*shared.elements(), one.total), constant=min(constants)
        )

    def _added(self, a: Value, b: Value, result: Value) -> IndexSum | None:
        one, other = self.of(a), self.of(b)
        varying = {v: s.along for v, s in ((a, one), (b, other))
                   if s.along is not Along.ALIKE}  # fmt: skip
        along: set[Along] = set(varying.values()) or {Along.ALIKE}
        if any(sides(v.type) != sides(result.type) for v in varying):
            return None
        # A step of two, or an unknown step.
        if len(varying) == 2 and Along.COUNTING in along:
            return None
        addends = (*one.addends, *other.addends)
        return IndexSum(addends, add_dims(one.constant, other.constant), along.pop())

    def _viewed(self, node: Node, old: Value, result: Value) -> IndexSum | None:
        """Return the sum of a view of a value, None if it is unknown."""
        found = self.of(old)
        if found.along is Along.ALIKE or sides(old.type) == sides(result.type):
            return found
        first = _first_picked(node, old.type, result.type)
        single = not any(sides(addend.type) for addend in found.addends)
        if found.along is Along.APART or first is None or not single:
            return None
        along = Along.COUNTING if sides(result.type) else Along.ALIKE
        return replace(_shifted(found, first), along=along)


def sides(kind: TensorType) -> tuple[Dim, ...]:
    """Return those sizes of a tensor type that are not 1."""
    return tuple(size for size in kind.dims if size != 1)


def _first_picked(node: Node, old: TensorType, result: TensorType) -> Dim | None:
    """Return the index in `old` of a view's first element, None if it is unknown.

    An index that counts from the end is known only if the axis is long enough for it at
    all sizes.
    """
    if node.op not in _PICKING:
        return None
    axis, first, *rest = node.arguments[1:]
    assert isinstance(axis, int)
    first = 0 if first is None else first
    if not isinstance(first, int) or rest[1:] not in ([], [1]):
        return None
    if first >= 0:
        return first
    whole = not rest or result.dims[axis] == -first
    return add_dims(old.dims[axis], first) if whole else None


def _shifted(found: IndexSum, by: Dim) -> IndexSum:
    return replace(found, constant=add_dims(found.constant, by))


# Find index tensors of the form `start + arange(count)`.


_INTEGERS = (DType.INT32, DType.INT64)
Add = Callable[[str, tuple[Argument, ...], TensorType], Value]


def sums_of(method: Method, makers: Mapping[int, Node]) -> IndexSums:
    """Return the sums of a method whose position input holds consecutive integers."""
    named = zip(method.inputs, method.input_names, strict=True)
    filled = {
        value.id: value
        for value, name in named
        if name == method.position and sides(value.type)
    }
    return IndexSums(makers, counting=filled)


def index_range(value: Value, sums: IndexSums) -> IndexSum | None:
    """Return the sum that an index equals, None if it is no range of integers.

    An index with one element is such a range too.
    """
    found, wide = sums.of(value), sides(value.type)
    counts = found.along is Along.COUNTING or not wide
    known = value.type.dtype in _INTEGERS and len(wide) <= 1
    return found if counts and known else None


def start_of_rows(found: IndexSum, batch: Dim, add: Add) -> Value:
    """Add nodes that compute each row's start of a range; return it, int64 [batch]."""
    total: Value | None = None
    for addend in found.addends:
        one = _first(addend, add)
        total = one if total is None else _sum(total, one, add)
    assert total is not None
    if found.constant != 0:
        arguments = (total, found.constant, 1)
        total = add("aten::add.Scalar", arguments, total.type)
    if total.type.dims != (1,):
        total = add("aten::view", (total, (1,)), TensorType(DType.INT64, (1,)))
    if batch == 1:
        return total
    return add("aten::expand", (total, (batch,)), TensorType(DType.INT64, (batch,)))


def _first(addend: Value, add: Add) -> Value:
    """Return the first element of an addend as int64.

    An addend with one element keeps its rank; the result of any other addend is [1].
    """
    if any(size != 1 for size in addend.type.dims):
        kind = TensorType(addend.type.dtype, (1,))
        addend = add("aten::slice.Tensor", (addend, 0, 0, 1, 1), kind)
    if addend.type.dtype is DType.INT64:
        return addend
    kind = TensorType(DType.INT64, addend.type.dims)
    return add("aten::_to_copy", (addend, DType.INT64), kind)


def _sum(a: Value, b: Value, add: Add) -> Value:
    dims = max(a.type.dims, b.type.dims, key=len)
    return add("aten::add.Tensor", (a, b, 1), TensorType(DType.INT64, dims))


# Find the integers of a program that are never negative.


_COUNTABLE = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
# Operators whose result is never negative if their tensors are not.
_KEEPING = {
    *ops_that_keep(*Keeps), "aten::mul.Tensor", "aten::minimum", "aten::maximum",
    "aten::cat", "aten::stack", "aten::copy", "aten::flip", "aten::amax",
    "aten::sum.dim_IntList", "aten::cumsum",
}  # fmt: skip
# Such operators whose number arguments must not be negative either.
_WITH_NUMBER = {"aten::add.Tensor", "aten::add.Scalar", "aten::mul.Scalar"}


class NonNegative:
    """Tells whether values of a program's methods are never negative."""

    def __init__(self, program: Program) -> None:
        self._symbols: Mapping[str, Symbol] = {s.name: s for s in program.symbols}
        self._makers = {method.name: method.makers() for method in program.methods}
        self._states = {
            s.name
            for s in program.states
            if s.initial is None and s.type.dtype in _COUNTABLE
        }
        while negative := self._possibly_negative(program.methods):
            self._states -= negative

    def holds(self, method: Method, value: Value) -> bool:
        """Tell whether no element of a method's value can be negative."""
        if value.type.dtype is DType.BOOL or self._starts_non_negative(method, value):
            return True
        node = self._makers[method.name].get(value.id)
        return node is not None and self._makes_non_negative(method, node)

    def _possibly_negative(self, methods: Sequence[Method]) -> set[str]:
        return {
            name
            for method in methods
            for value, name in method.state_out
            if name in self._states and not self.holds(method, value)
        }

    def _starts_non_negative(self, method: Method, value: Value) -> bool:
        named = zip(method.input_names, method.inputs, strict=True)
        filled = any(v.id == value.id and n == method.position for n, v in named)
        return filled or bound_to(method.state_in).get(value.id) in self._states

    def _makes_non_negative(self, method: Method, node: Node) -> bool:
        match node.op, node.arguments:
            case "aten::arange.start_step", (start, _, step, _):
                return self._is_non_negative(start) and self._is_non_negative(step)
            case "aten::full", (_, number, _):
                return self._is_non_negative(number)
            case "aten::remainder.Scalar", (_, divisor):
                return self._is_non_negative(divisor)
            case "aten::div.Scalar_mode", (Value() as divided, divisor, "floor"):
                return self._is_non_negative(divisor) and self.holds(method, divided)
            case "aten::clamp", (_, least, _):
                return self._is_non_negative(least)
            case "aten::index_select" | "aten::index.Tensor", (Value() as picked, *_):
                return self.holds(method, picked)
            case "aten::_to_copy", (Value() as old, DType() as dtype):
                whole = dtype in _COUNTABLE and old.type.dtype in _COUNTABLE
                wide = dtype.itemsize >= old.type.dtype.itemsize
                return whole and wide and self.holds(method, old)
        numbers = [a for a in node.arguments if not isinstance(a, Value)]
        added = node.op in _WITH_NUMBER and all(map(self._is_non_negative, numbers))
        return (added or node.op in _KEEPING) and all(
            self.holds(method, value) for value in node.inputs
        )

    def _is_non_negative(self, number: Argument) -> bool:
        """Tell whether an argument is a size or an integer that is not negative."""
        if isinstance(number, bool) or not isinstance(number, int | Affine):
            return False
        return bounds(number, self._symbols)[0] >= 0
