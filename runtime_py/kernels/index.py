"""Kernels that gather elements by index tensors; results are fresh."""

import torch
from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel, into
from kvc.schema.errors import IndexOutOfRange


def _embedding(out: Tensor, weight: Tensor, indices: Tensor) -> None:
    chosen = indices.reshape(-1)
    _index_select(out.view(chosen.shape[0], weight.shape[1]), weight, 0, chosen)


def _index_select(out: Tensor, x: Tensor, axis: int, indices: Tensor) -> None:
    select(x, axis, indices, out)


def select(x: Tensor, axis: int, indices: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the elements of `x` at `indices` [count] along `axis`.

    Raises:
        IndexOutOfRange: an index is negative, or not less than the axis's size.
    """
    _check(indices, x.shape[axis])  # torch writes rows before it meets a wrong index
    return torch.index_select(x, axis, indices, out=out)


def _check(indices: Tensor, size: int) -> None:
    if not indices.numel():
        return
    for index in map(int, torch.aminmax(indices)):
        if not 0 <= index < size:
            raise IndexOutOfRange(place="", index=index, size=size)


def _embedding_bag(
    out: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    mode: int,
    factors: Tensor | None,
    ended: bool,
    padding: int,
) -> None:
    # torch reads both as if their elements lay side by side.
    indices, offsets = indices.contiguous(), offsets.contiguous()
    first, last = int(offsets[:1].sum()), int(offsets[-1:].sum())
    if first != 0 or last > len(indices) or bool((offsets.diff() < 0).any()):
        raise ValueError(f"offsets must rise from 0 to at most {len(indices)}")
    _check(indices, len(weight))
    if not out.numel():  # no bags: torch would write to a first one
        return
    run = torch.ops.aten._embedding_bag_forward_only
    given = (weight, indices, offsets, False, mode, False, factors, ended, padding)
    out.copy_(run(*given)[0])


def _index(out: Tensor, x: Tensor, indices: tuple[Tensor | None, ...]) -> None:
    # An overload object, since Python's x[...] takes None for a new axis and a 0-d
    # index for a select; no bound function takes None.
    torch.ops.aten.index.Tensor_out(x, indices, out=out)


def _bucketize(out: Tensor, x: Tensor, ends: Tensor, _: bool, right: bool) -> None:
    torch.bucketize(x, ends, out_int32=out.dtype is torch.int32, right=right, out=out)


def _search_sorted(out: Tensor, rows: Tensor, x: Tensor, _: bool, right: bool) -> None:
    narrow = out.dtype is torch.int32
    torch.searchsorted(rows, x, out_int32=narrow, right=right, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::_embedding_bag_forward_only": _embedding_bag,
    "aten::bucketize.Tensor": _bucketize,
    "aten::embedding": _embedding,
    "aten::gather": into(torch.gather),
    "aten::index.Tensor": _index,
    "aten::index_select": _index_select,
    "aten::searchsorted.Tensor": _search_sorted,
}
