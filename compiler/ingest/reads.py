"""Rules for indexed reads, and for tensors filled with one number.

With numbers known only at run time, a slice or a single index is no longer a view but a
read at an index tensor; `arange` and `full` compute with the tensor that holds the
number.
"""

from kvc.compiler.ingest.calls import (
    MadeArgument,
    NamedArguments,
    OpCall,
    Tensor,
    Unsupported,
    cast,
    expanded,
    given,
    places,
    plus,
    viewed,
)
from kvc.compiler.ingest.read_numbers import (
    SIZE_FROM_VALUES,
    Number,
    Real,
    span_checks,
)
from kvc.compiler.ingest.writes import slice_places
from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, TensorType, add_dims


def slice_(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Take a slice: a view if the trace knows its positions."""
    tensor, dim = given(named, "self", Value), given(named, "dim", int)
    start, end = named["start"], named["end"]
    assert result is not None
    if isinstance(start, Number) or isinstance(end, Number):
        index, checks = slice_places(named, tensor.type.dims[dim], result.dims[dim])
        values = {"self": tensor, "dim": dim, "index": index}
        return OpCall("aten::index_select", values, checks=checks)
    if isinstance(end, int) and end >= 2**62:
        end = None
    return OpCall("aten::slice.Tensor", {**named, "start": start or 0, "end": end})


def select(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Select one index: a view if the trace knows it."""
    tensor, dim = given(named, "self", Value), given(named, "dim", int)
    place = named["index"]
    assert result is not None
    if not isinstance(place, Number):
        return OpCall("aten::select.int", named)
    dim %= len(tensor.type.dims)
    if not place.is_non_negative:  # may be counted from the end
        indices = (*(None,) * dim, place.tensor())
        return OpCall("aten::index.Tensor", {"self": tensor, "indices": indices})
    index = viewed(place.tensor(), 1)
    values = {"self": tensor, "dim": dim, "index": index}
    row = TensorType(result.dtype, (*result.dims[:dim], 1, *result.dims[dim:]))
    call = OpCall("aten::index_select", values)
    return OpCall(
        "aten::squeeze.dims", {"self": MadeArgument(call, row), "dim": (dim,)}
    )


def roll(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Rotate axes: read at positions that wrap around at the end."""
    tensor: Tensor = given(named, "self", Value)
    shifts, dims = given(named, "shifts", tuple), given(named, "dims", tuple)
    if not dims:  # no dims: rotate the flattened tensor
        return OpCall("aten::roll", named)
    for shift, dim in zip(shifts, dims, strict=True):
        if not isinstance(shift, int | Affine):
            raise Unsupported(SIZE_FROM_VALUES)
        whole = tensor.type.dims[dim]
        ahead = plus(places(0, whole, 1, whole), add_dims(0, shift, -1))
        around = OpCall("aten::remainder.Scalar", {"self": ahead, "other": whole})
        index = MadeArgument(around, ahead.type)
        values = {"self": tensor, "dim": dim, "index": index}
        tensor = MadeArgument(OpCall("aten::index_select", values), tensor.type)
    assert isinstance(tensor, MadeArgument)
    return tensor.call


def arange(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Count; a start known only at run time is added to a range from 0."""
    assert result is not None
    start, step, end = named.get("start", 0), named.get("step", 1), named["end"]
    if not isinstance(start, Number) and not isinstance(end, Number):
        values = {"start": start, "end": end, "step": step, "dtype": result.dtype}
        return OpCall("aten::arange.start_step", values)
    if step != 1 or result.dtype is not DType.INT64:
        raise Unsupported("arange between values, other than int64 in steps of 1")
    (count,) = result.dims
    if not isinstance(start, Number):
        raise Unsupported(SIZE_FROM_VALUES)
    whole = plus(places(0, count, 1, count), start.tensor())
    assert isinstance(whole, MadeArgument)
    checks = span_checks(start, end, count)
    return OpCall(whole.call.op, whole.call.named, checks=checks)


def filled(value: object, result: TensorType | None) -> OpCall:
    """Make a tensor filled with one number; shape and dtype are the result's."""
    assert result is not None
    if isinstance(value, Value):
        raise Unsupported("a fill value that is a tensor")
    if isinstance(value, Number | Real):
        return expanded(cast(value.tensor(), result.dtype), result.dims)
    values = {"size": result.dims, "fill_value": value, "dtype": result.dtype}
    return OpCall("aten::full", values)
