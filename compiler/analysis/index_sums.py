"""Read the arithmetic of indices and positions as sums of values and a number.

`position + arange(n)`, say, is a sum of the position that counts on along its axis. In:
the nodes of a method. Out: for each integer tensor an `IndexSum`, by a closed set
of forms: sums with values and numbers, ranges, views, copies and widening casts. A
tensor of another form is a sum of one term, itself. Nothing here knows of cursors or
caches.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.ops import Keeps, ops_that_keep
from kvc.schema.types import Affine, Dim, TensorType, add_dims

_WHOLE = (DType.BOOL, DType.INT32, DType.INT64)
_PICKING = ("aten::select.int", "aten::slice.Tensor")
_SEEN_THROUGH = ops_that_keep(Keeps.ALL, Keeps.SOME, Keeps.REPEATED)


class Along(Enum):
    """How the elements of a sum differ from each other."""

    ALIKE = "alike"  # not at all
    COUNTING = "counting"  # each is one more than the one before it
    APART = "apart"  # as those of its addends do


@dataclass(frozen=True, slots=True)
class IndexSum:
    """What an integer tensor is the sum of.

    Attributes:
        addends: values, each with one element, or, apart, one for each of the sum's. Of
            one that is known to count on, the first element is meant.
        constant: what is added to them.
        along: how its elements differ.
    """

    addends: tuple[Value, ...]
    constant: Dim
    along: Along


@dataclass(frozen=True, slots=True)
class CarriedSum:
    """A value that a loop carries, to which each turn adds.

    Attributes:
        first: what it is in the first turn.
        own: what it is in any turn.
        given: what a turn hands on.
        end: what it is after the last one.
        step: what a turn adds, beside `within`.
        within: stand for what loops and branches in a turn add.
        turns: how many there are; None where only the loop decides what all add.
        added: stands for what earlier turns have added.
        total: stands for what all turns have, where only the loop decides that.
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
    """A value that branches make, each by adding to the same.

    Attributes:
        cond: id of the first result of what runs them.
        end: what it is after them.
        ways: what each makes.
        total: stands for what the one that is taken has added, beyond what all add.
    """

    cond: int
    end: Value
    ways: tuple[Value, ...]
    total: Value


Open = CarriedSum | Joined  # what adds as much as turns or the branch taken say


class IndexSums:
    """The sums that the integer tensors of one method are, found when asked for.

    Args:
        makers: value id -> the node that makes it.
        joins: what branches make, by its id.
        counting: id of a value that is known to count on -> what stands for its first.
        loops: what loops carry and add to.
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
        """Return the sum that a value is."""
        if value.id not in self._known:
            found = self._in_loop(value)
            if found is None and value.type.dtype in _WHOLE:
                found = self._found(value)
            apart = Along.APART if sides(value.type) else Along.ALIKE
            self._known[value.id] = found or IndexSum((value,), 0, apart)
        return self._known[value.id]

    def _in_loop(self, value: Value) -> IndexSum | None:
        """Return what a loop carries: in a turn, or after the last one."""
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
            case "aten::copy", (_, Value() as source):  # over a value of any kind
                return self._viewed(node, source, value)
        known = node.op in _SEEN_THROUGH and node.outputs == (value,)
        return self._viewed(node, node.inputs[0], value) if known else None

    def _joined(self, one: Joined) -> IndexSum | None:
        """Return what branches make: what all of them do, or that and what one adds."""
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
        addends = (*shared.elements(), one.total)
        return replace(ways[0], addends=addends, constant=min(constants))

    def _added(self, a: Value, b: Value, result: Value) -> IndexSum | None:
        one, other = self.of(a), self.of(b)
        varying = {v: s.along for v, s in ((a, one), (b, other))
                   if s.along is not Along.ALIKE}  # fmt: skip
        along: set[Along] = set(varying.values()) or {Along.ALIKE}
        if any(sides(v.type) != sides(result.type) for v in varying):
            return None
        if len(varying) == 2 and Along.COUNTING in along:  # steps of two, or unknown
            return None
        addends = (*one.addends, *other.addends)
        constant = add_dims(one.constant, other.constant)
        return IndexSum(addends, constant, along.pop())

    def _viewed(self, node: Node, old: Value, result: Value) -> IndexSum | None:
        """Return what elements of a value are, in order, where that can be told."""
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
    """Return the sizes other than 1."""
    return tuple(size for size in kind.dims if size != 1)


def _first_picked(node: Node, old: TensorType, result: TensorType) -> Dim | None:
    """Return the index of the first element that is taken, None where none can be told.

    One that is counted from the end must be there, whatever the sizes.
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
    """Return the sums of a method, in which a position that is filled in counts on."""
    named = zip(method.inputs, method.input_names, strict=True)
    filled = {
        value.id: value
        for value, name in named
        if name == method.position and sides(value.type)
    }
    return IndexSums(makers, counting=filled)


def index_range(value: Value, sums: IndexSums) -> IndexSum | None:
    """Return an index as a range, None where it is not known to be one."""
    found, wide = sums.of(value), sides(value.type)
    counts = found.along is Along.COUNTING or not wide
    known = value.type.dtype in _INTEGERS and len(wide) <= 1
    return found if counts and known else None


def start_of_rows(found: IndexSum, batch: Dim, add: Add) -> Value:
    """Make the start of a range, int64 [batch], with the nodes that it needs."""
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
    kind = TensorType(DType.INT64, (batch,))
    return add("aten::expand", (total, (batch,)), kind)


def _first(addend: Value, add: Add) -> Value:
    """Return the first element of an addend as int64, of as many dims."""
    dims = addend.type.dims
    if any(size != 1 for size in dims):
        kind = TensorType(addend.type.dtype, (1,))
        addend = add("aten::slice.Tensor", (addend, 0, 0, 1, 1), kind)
    if addend.type.dtype is DType.INT64:
        return addend
    kind = TensorType(DType.INT64, addend.type.dims)
    return add("aten::_to_copy", (addend, DType.INT64), kind)


def _sum(a: Value, b: Value, add: Add) -> Value:
    dims = max(a.type.dims, b.type.dims, key=len)
    return add("aten::add.Tensor", (a, b, 1), TensorType(DType.INT64, dims))
