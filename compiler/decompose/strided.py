"""Read and write `as_strided` by indices into a tensor without gaps in memory.

In: the operator's arguments while it is traced. Out: the operator's result; or
NotImplemented, with which torch keeps the call.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def as_strided(
    self: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> object:
    """Gather the strided elements of a tensor whose memory has no gaps."""
    found = _order_and_places(self, size, stride, storage_offset)
    if found is None:
        return NotImplemented
    order, places = found
    return torch.ops.aten.index.Tensor(self.permute(order).reshape(-1), [places])


def as_strided_scatter(
    self: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> object:
    """Write strided elements of a tensor whose memory has no gaps.

    Each element is written at most once.
    """
    found = _order_and_places(self, size, stride, storage_offset)
    if found is None:
        return NotImplemented
    order, places = found
    reach = 0
    for step, n in sorted(zip(stride, size, strict=True)):
        if n > 1 and step <= reach:
            return NotImplemented
        reach += (n - 1) * step
    lying = self.permute(order)
    made = lying.reshape(-1).index_put((places,), src.to(self.dtype))
    back = sorted(range(len(order)), key=order.__getitem__)
    return made.reshape(lying.shape).permute(back)


def _order_and_places(
    self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> tuple[list[int], Tensor] | None:
    """Return the order of a tensor's axes in memory, and indices of strided elements.

    The result is None if one of the two is unknown.
    """
    order, places = _order_in_memory(self), _places(self, size, stride, offset)
    return None if order is None or places is None else (order, places)


def _order_in_memory(self: Tensor) -> list[int] | None:
    """Return the order of axes in which a tensor is contiguous, None if there is none.

    The result is also None if sizes are dynamic.
    """
    if not all(isinstance(n, int) for n in (*self.shape, *self.stride())):
        return None
    steps: Sequence[int] = self.stride()
    order = sorted(range(self.dim()), key=lambda axis: -steps[axis])
    return order if self.permute(order).is_contiguous() else None


def _places(
    self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> Tensor | None:
    """Return the indices of strided elements in a tensor whose memory has no gaps.

    The result is None if sizes are dynamic, or elements lie outside of the tensor.
    """
    if not all(isinstance(n, int) for n in (*size, *stride)) or 0 in size:
        return None
    start = 0 if offset is None else offset - self.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if start < 0 or last >= self.numel():
        return None
    places = torch.full((1,) * len(size), int(start))
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = [n if i == axis else 1 for i in range(len(size))]
        places = places + (torch.arange(n) * step).reshape(along)
    return places
