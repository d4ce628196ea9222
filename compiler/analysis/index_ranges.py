"""Find index tensors of the form `start + arange(count)`.

In: the index sums of a method. Out: whether an index tensor is such a range (a single
element is one), and the nodes that compute its start.
"""

from collections.abc import Callable, Mapping

from kvc.compiler.analysis.index_sums import Along, IndexSum, IndexSums, sides
from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Dim, TensorType

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
