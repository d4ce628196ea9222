"""Index tensors that count on from a start: `start + arange(count)`.

In: an index tensor of a method. Out: an `IndexRange`, which says what its start is the
sum of. One element is a range of its own. What is only viewed, cloned or cast
on the way to the index is seen through.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.ops import Keeps, ops_that_keep
from kvc.schema.types import Affine, Dim, TensorType, add_dims

# Ops whose result holds the elements of operand 0 in order, if it has as many.
_SAME = ops_that_keep(Keeps.ALL, Keeps.SOME, Keeps.REPEATED)
_INTEGERS = (DType.INT32, DType.INT64)
Add = Callable[[str, tuple[Argument, ...], TensorType], Value]


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Element i is the sum of the first elements of `addends`, of `constant` and i."""

    addends: tuple[Value, ...]
    constant: Dim


def index_range(
    value: Value, method: Method, makers: Mapping[int, Node]
) -> IndexRange | None:
    """Return an index as a range, None where it is not known to be one."""
    if value.type.dtype not in _INTEGERS or len(_sides(value)) > 1:
        return None
    found = _decomposed(value, method, makers)
    if found is None and not _sides(value):
        return IndexRange((value,), 0)
    return found


def _decomposed(
    value: Value, method: Method, makers: Mapping[int, Node]
) -> IndexRange | None:
    node = makers.get(value.id)
    if node is None:
        return _filled(value, method)
    match node.op, node.arguments:
        case "aten::arange.start_step", (int() | Affine() as start, _, 1, _):
            return IndexRange((), start)
        case "aten::add.Tensor", (Value() as a, Value() as b, 1):
            return _added(a, b, method, makers)
        case "aten::add.Scalar", (Value() as old, int() | Affine() as number, 1):
            return _shifted(index_range(old, method, makers), number)
        case "aten::sub.Scalar", (Value() as old, int() as number, 1):
            return _shifted(index_range(old, method, makers), -number)
        case "aten::_to_copy", (Value() as old, DType() as dtype):
            narrow = dtype.itemsize < old.type.dtype.itemsize
            return None if narrow else index_range(old, method, makers)
    operand = node.inputs[0] if node.inputs else value
    if node.op in _SAME and _sides(operand) == _sides(value):
        return index_range(operand, method, makers)
    return None


def _filled(value: Value, method: Method) -> IndexRange | None:
    """Return the positions that a session fills in: it counts on from the first."""
    named = zip(method.input_names, method.inputs, strict=True)
    if method.position and (method.position, value) in named:
        return IndexRange((value,), 0)
    return None


def _added(
    a: Value, b: Value, method: Method, makers: Mapping[int, Node]
) -> IndexRange | None:
    if _sides(a) and _sides(b):  # two that count on make steps of two
        return None
    one, other = index_range(a, method, makers), index_range(b, method, makers)
    if one is None or other is None:
        return None
    addends = (*one.addends, *other.addends)
    return _shifted(IndexRange(addends, one.constant), other.constant)


def _shifted(found: IndexRange | None, by: Dim) -> IndexRange | None:
    if found is None:
        return None
    return IndexRange(found.addends, add_dims(found.constant, by))


def _sides(value: Value) -> tuple[Dim, ...]:
    """Return the sizes other than 1."""
    return tuple(size for size in value.type.dims if size != 1)


def start_of_rows(found: IndexRange, batch: Dim, add: Add) -> Value:
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
