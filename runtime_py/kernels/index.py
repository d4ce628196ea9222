"""Kernels that pick elements by index tensors; results are fresh."""

import torch
from torch import Tensor

from kvc.runtime.kernels import Kernel
from kvc.runtime.kernels.adapters import into


def _embedding(out: Tensor, weight: Tensor, indices: Tensor) -> None:
    chosen = indices.reshape(-1)
    rows = out.view(chosen.shape[0], weight.shape[1])
    torch.index_select(weight, 0, chosen, out=rows)


def _index(out: Tensor, x: Tensor, indices: tuple[Tensor | None, ...]) -> None:
    # An overload object, since Python's x[...] takes None for a new axis and a 0-d
    # index for a select; no bound function takes None.
    torch.ops.aten.index.Tensor_out(x, indices, out=out)


KERNELS: dict[str, Kernel] = {
    "aten::embedding": _embedding,
    "aten::gather": into(torch.gather),
    "aten::index.Tensor": _index,
    "aten::index_select": into(torch.index_select),
}
