"""Kernels that pick elements by index tensors; results are fresh."""

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel
from kvc.runtime.kernels.adapters import into
from kvc.schema.errors import IndexOutOfRange


def _embedding(out: Tensor, weight: Tensor, indices: Tensor) -> None:
    chosen = indices.reshape(-1)
    rows = out.view(chosen.shape[0], weight.shape[1])
    _index_select(rows, weight, 0, chosen)


def _index_select(out: Tensor, x: Tensor, axis: int, indices: Tensor) -> None:
    select(x, axis, indices, out)


def select(x: Tensor, axis: int, indices: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the elements of `x` at `indices` [count] along `axis`.

    Raises:
        IndexOutOfRange: an index is negative, or not less than the axis's size.
    """
    try:
        return torch.index_select(x, axis, indices, out=out)
    except IndexError as error:
        size = x.shape[axis]
        bad = next(i for i in indices.reshape(-1).tolist() if not 0 <= i < size)
        raise IndexOutOfRange(place="", index=bad, size=size) from error


def _index(out: Tensor, x: Tensor, indices: tuple[Tensor | None, ...]) -> None:
    # An overload object, since Python's x[...] takes None for a new axis and a 0-d
    # index for a select; no bound function takes None.
    torch.ops.aten.index.Tensor_out(x, indices, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::embedding": _embedding,
    "aten::gather": into(torch.gather),
    "aten::index.Tensor": _index,
    "aten::index_select": _index_select,
}
