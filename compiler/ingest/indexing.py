"""Rules for reads and writes of parts of a tensor: slices, single indices, masks.

A Python slice can have open ends, or ends that count from the back or are clamped. A
write to a slice becomes a write at an index tensor, so that every write is one operator
that can work in place.
"""

from kvc.compiler.ingest.calls import (
    MadeArgument,
    NamedArguments,
    OpCall,
    OpRule,
    Tensor,
    Unsupported,
    cast,
    expanded,
    full,
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
from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Dim, TensorType, add_dims, count_from_front

_MASKS = (DType.BOOL, DType.UINT8)


def slice_scatter(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Write a slice by an `index_copy` at the positions of the slice."""
    tensor, source = given(named, "self", Value), given(named, "src", Value)
    dim = given(named, "dim", int)
    count = source.type.dims[dim]
    if count == 0:
        return OpCall("aten::clone", {"self": tensor})
    if tensor.type == source.type and named["step"] == 1:
        return OpCall("aten::copy", {"self": tensor, "src": source})
    index, checks = slice_places(named, tensor.type.dims[dim], count)
    values = {"self": tensor, "dim": dim, "index": index, "source": source}
    return OpCall("aten::index_copy", values, checks=checks)


def slice_places(
    named: NamedArguments, whole: Dim, count: Dim
) -> tuple[Tensor, tuple[OpCall, ...]]:
    """Return the positions of a slice, int64 [count], and the checks for them.

    Args:
        named: `start`, `end` and `step` of a traced slice.
        whole: size of the sliced axis.
        count: the number of positions.

    Raises:
        Unsupported: the number of positions depends on values.
    """
    step = given(named, "step", int)
    start, end = _ends(named, whole)
    if not isinstance(start, Number) and not isinstance(end, Number):
        assert isinstance(start, int | Affine)
        assert isinstance(end, int | Affine)
        return places(start, end, step, count), ()
    checks = span_checks(start, end, count, whole) if step == 1 else ()
    if step != 1:
        raise Unsupported("a slice with a step between places that depend on values")
    if isinstance(start, Number):
        return plus(places(0, count, 1, count), start.tensor()), checks
    assert isinstance(start, int | Affine)
    return plus(places(0, count, 1, count), start), checks


def select_scatter(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Write at one index of an axis, which can count from the back."""
    tensor, source = given(named, "self", Value), given(named, "src", Value)
    dim, place = given(named, "dim", int), named["index"]
    dims = list(source.type.dims)
    dim %= len(tensor.type.dims)
    dims.insert(dim, 1)
    row = viewed(source, *dims)
    if isinstance(place, Number) and not place.is_non_negative:
        # index_put counts from the back as select does; index_copy would raise.
        indices = (*(None,) * dim, viewed(place.tensor(), 1))
        values = {"self": tensor, "indices": indices, "values": row}
        return OpCall("aten::index_put", {**values, "accumulate": False})
    if isinstance(place, Number):
        index = viewed(place.tensor(), 1)
    else:
        assert isinstance(place, int | Affine)
        first = count_from_front(place, tensor.type.dims[dim])
        index = places(first, add_dims(first, 1), 1, 1)
    values = {"self": tensor, "dim": dim, "index": index, "source": row}
    return OpCall("aten::index_copy", values)


def with_an_axis(op: str) -> OpRule:
    """Return the rule for an operator that works along an axis.

    A tensor without dims is viewed as [1] before the operator, and its result as [].
    """

    def rule(named: NamedArguments, result: TensorType | None) -> OpCall:
        tensor = given(named, "self", Value)
        if tensor.type.dims:
            return OpCall(op, named)
        lifted = {
            name: viewed(value, 1) if isinstance(value, Value) else value
            for name, value in named.items()
        }
        made = MadeArgument(OpCall(op, lifted), TensorType(tensor.type.dtype, (1,)))
        return OpCall("aten::view", {"self": made, "size": ()})

    return rule


def index_fill(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Write one number at several indices of an axis, which can count from the back."""
    tensor, index, value = given(named, "self", Value), named["index"], named["value"]
    dim = given(named, "dim", int)
    dtype, rank = tensor.type.dtype, max(1, len(tensor.type.dims))
    filled = cast(value, dtype) if isinstance(value, Value) else full((), value, dtype)
    indices = (*(None,) * (dim % rank), index)
    row = tensor if tensor.type.dims else viewed(tensor, 1)
    values = {"self": row, "indices": indices, "values": filled}
    call = OpCall("aten::index_put", {**values, "accumulate": False})
    if row is tensor:
        return call
    return OpCall("aten::view", {"self": MadeArgument(call, row.type), "size": ()})


def scatter_reduce(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Write values to a tensor at indices, combined by a reduction.

    A sum that includes the old values becomes `scatter_add`.
    """
    kept = {name: named[name] for name in ("self", "dim", "index", "src")}
    said = given(named, "reduce", str)
    reduce = {"add": "sum", "multiply": "prod"}.get(said, said)
    whole = named.get("include_self", True)
    if reduce == "sum" and whole:
        return OpCall("aten::scatter_add", kept)
    return OpCall(
        "aten::scatter_reduce.two", {**kept, "reduce": reduce, "include_self": whole}
    )


def _ends(named: NamedArguments, whole: Dim) -> tuple[object, object]:
    """Return a slice's start and end, counted from 0 and clamped to the axis.

    `whole` is the size of the axis.
    """
    start, end = named["start"], named["end"]
    return (
        0 if start is None else _within(start, whole),
        whole if end is None else _within(end, whole),
    )


def _within(place: object, whole: Dim) -> object:
    """Count an index of an axis from 0 and clamp it, as Python does for slices.

    An index that depends on sizes stays unchanged. `whole` is the size of the axis.
    """
    if not isinstance(place, int):
        return place
    if isinstance(whole, int):
        return max(0, min(whole, place + whole if place < 0 else place))
    if place >= 2**62:
        return whole
    return count_from_front(place, whole)


def refuse_masks(op: str, named: NamedArguments) -> None:
    """Check that a read selects no elements by a boolean index.

    Raises:
        Unsupported: the number of selected elements is not known before the call.
    """
    if op == "aten::index.Tensor" and _mask_places(named):
        raise Unsupported(
            "a boolean index picks as many elements as its values say; use "
            "torch.where, or an index of a fixed size"
        )


def _mask_places(named: NamedArguments) -> list[int]:
    return [
        i
        for i, index in enumerate(given(named, "indices", tuple))
        if isinstance(index, Value) and index.type.dtype in _MASKS
    ]


def index_put(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Write at a boolean index by `where`; a write at integer indices is kept."""
    masks = _mask_places(named)
    if not masks:
        return OpCall("aten::index_put", named)
    tensor, values = given(named, "self", Value), given(named, "values", Value)
    indices = given(named, "indices", tuple)
    mask = indices[masks[0]]
    trailing = len(tensor.type.dims) - masks[0] - len(mask.type.dims)
    single = sum(index is not None for index in indices) == 1
    if not single or mask.type.dtype is not DType.BOOL:
        raise Unsupported("a boolean index beside another")
    if not _fits_trailing(values.type, trailing, len(tensor.type.dims)):
        raise Unsupported(
            "a write at a boolean index, with a value for each selected element; write "
            "one value, or use torch.where with values of the full shape"
        )
    condition = viewed(mask, *mask.type.dims, *(1,) * trailing)
    new: Tensor = values
    if named["accumulate"]:
        both = {"self": tensor, "other": values, "alpha": 1}
        new = MadeArgument(OpCall("aten::add.Tensor", both), tensor.type)
    return OpCall(
        "aten::where.self", {"condition": condition, "self": new, "other": tensor}
    )


def _fits_trailing(values: TensorType, trailing: int, rank: int) -> bool:
    """Tell whether a write has the same values for all elements that a mask selects.

    `trailing` is the number of the tensor's axes after those of the mask, and `rank` is
    the number of all its axes.
    """
    leading = values.dims[: max(0, len(values.dims) - trailing)]
    return len(values.dims) <= rank and all(size == 1 for size in leading)


# Rules for indexed reads, and for tensors filled with one number.


def slice_(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Take a slice of a tensor; the result is a view if the trace knows the bounds."""
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
    """Select one index of an axis; the result is a view if the trace knows the index.

    Otherwise the element is read at an index that a tensor holds.
    """
    tensor, dim = given(named, "self", Value), given(named, "dim", int)
    place = named["index"]
    assert result is not None
    if not isinstance(place, Number):
        return OpCall("aten::select.int", named)
    dim %= len(tensor.type.dims)
    if not place.is_non_negative:  # may be counted from the end
        indices = (*(None,) * dim, place.tensor())
        return OpCall("aten::index.Tensor", {"self": tensor, "indices": indices})
    values = {"self": tensor, "dim": dim, "index": viewed(place.tensor(), 1)}
    row = TensorType(result.dtype, (*result.dims[:dim], 1, *result.dims[dim:]))
    call = OpCall("aten::index_select", values)
    return OpCall(
        "aten::squeeze.dims", {"self": MadeArgument(call, row), "dim": (dim,)}
    )


def roll(named: NamedArguments, _: TensorType | None) -> OpCall:
    """Rotate a tensor's elements along axes, by reads at positions that wrap around."""
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
        values = {"self": tensor, "dim": dim, "index": MadeArgument(around, ahead.type)}
        tensor = MadeArgument(OpCall("aten::index_select", values), tensor.type)
    assert isinstance(tensor, MadeArgument)
    return tensor.call


def arange(named: NamedArguments, result: TensorType | None) -> OpCall:
    """Make consecutive integers.

    If the start is known only at run time, it is added to integers from 0.
    """
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
    return OpCall(
        whole.call.op, whole.call.named, checks=span_checks(start, end, count)
    )


def filled(value: object, result: TensorType | None) -> OpCall:
    """Make a tensor filled with `value`, with the shape and dtype of `result`."""
    assert result is not None
    if isinstance(value, Value):
        raise Unsupported("a fill value that is a tensor")
    if isinstance(value, Number | Real):
        return expanded(cast(value.tensor(), result.dtype), result.dims)
    values = {"size": result.dims, "fill_value": value, "dtype": result.dtype}
    return OpCall("aten::full", values)
