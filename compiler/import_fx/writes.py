"""Rules for what is written into part of a tensor: slices and boolean masks."""

from kvc.compiler.import_fx.calls import Call, Made, Named, Unsupported
from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Dim, TensorType, affine

_MASKS = (DType.BOOL, DType.UINT8)


def slice_scatter(named: Named, _: TensorType | None) -> Call:
    """Write slices at regular places: `index_copy` at these places."""
    tensor, source, dim = named["self"], named["src"], named["dim"]
    assert isinstance(tensor, Value)
    assert isinstance(source, Value)
    assert isinstance(dim, int)
    count = source.type.dims[dim]
    if count == 0:
        return Call("aten::clone", {"self": tensor})
    start, end = _ends(named, tensor.type.dims[dim])
    values = {"start": start, "end": end, "step": named["step"], "dtype": DType.INT64}
    index = Made(
        Call("aten::arange.start_step", values), TensorType(DType.INT64, (count,))
    )
    return Call(
        "aten::index_copy",
        {"self": tensor, "dim": dim, "index": index, "source": source},
    )


def _ends(named: Named, whole: Dim) -> tuple[object, object]:
    """Return where a slice starts and ends, counted from 0 and within the axis."""
    start, end = named["start"], named["end"]
    return (
        0 if start is None else _within(start, whole),
        whole if end is None else _within(end, whole),
    )


def _within(place: object, whole: Dim) -> object:
    """Clamp a place as Python does; what depends on sizes is taken to be within."""
    if not isinstance(place, int):
        return place
    if isinstance(whole, int):
        return max(0, min(whole, place + whole if place < 0 else place))
    if place >= 2**62:
        return whole
    return _plus(whole, place) if place < 0 else place


def _plus(size: Affine, number: int) -> Dim:
    return affine(size.constant + number, dict(size.terms))


def refuse_masks(op: str, named: Named) -> None:
    """Refuse to pick elements by a boolean index.

    Raises:
        Unsupported: how many are picked is not known before the call.
    """
    if op == "aten::index.Tensor" and _mask_places(named):
        raise Unsupported(
            "a boolean index picks as many elements as its values say; use "
            "torch.where, or an index of a fixed size"
        )


def _mask_places(named: Named) -> list[int]:
    indices = named["indices"]
    assert isinstance(indices, tuple)
    return [
        i
        for i, index in enumerate(indices)
        if isinstance(index, Value) and index.type.dtype in _MASKS
    ]


def index_put(named: Named, _: TensorType | None) -> Call:
    """Write at a boolean index: `where`; integer indices stay as they are."""
    masks = _mask_places(named)
    if not masks:
        return Call("aten::index_put", named)
    tensor, indices, values = named["self"], named["indices"], named["values"]
    assert isinstance(tensor, Value)
    assert isinstance(indices, tuple)
    assert isinstance(values, Value)
    mask = indices[masks[0]]
    behind = len(tensor.type.dims) - masks[0] - len(mask.type.dims)
    single = sum(index is not None for index in indices) == 1
    if not single or mask.type.dtype is not DType.BOOL or named["accumulate"]:
        raise Unsupported("a boolean index beside another, or one that accumulates")
    if not _fits_behind(values.type, behind, len(tensor.type.dims)):
        raise Unsupported(
            "a boolean index that is given a value for each element it picks; give "
            "it one value, or write torch.where with values of the full shape"
        )
    condition = _with_trailing_ones(mask, behind)
    return Call(
        "aten::where.self", {"condition": condition, "self": values, "other": tensor}
    )


def _fits_behind(values: TensorType, behind: int, rank: int) -> bool:
    """Tell whether all places that a mask picks are given the same values."""
    ahead = values.dims[: max(0, len(values.dims) - behind)]
    return len(values.dims) <= rank and all(size == 1 for size in ahead)


def _with_trailing_ones(mask: Value, count: int) -> Value | Made:
    """Return a mask of leading axes as one that broadcasts over all axes."""
    if count == 0:
        return mask
    dims = (*mask.type.dims, *(1,) * count)
    call = Call("aten::view", {"self": mask, "size": dims})
    return Made(call, TensorType(DType.BOOL, dims))
