"""What makes a tensor itself, and where memory is shared by what is not one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a tensor itself: storage object, place in it, geometry, dtype.

    Never a name and never an address alone: many tensors over one mapped file share
    an address, and every fake tensor has address 0.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Identity":
        """Return the identity of a tensor; valid while its storage lives."""
        return cls(
            tensor.untyped_storage()._cdata,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
        )


def overlapping(tensor: Tensor, named: Mapping[str, Tensor]) -> list[str]:
    """Return the names of other tensors that share bytes with one."""
    begin, end = _extent(tensor)
    return [
        name
        for name, other in named.items()
        if other.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        and Identity.of(other) != Identity.of(tensor)
        and max(begin, _extent(other)[0]) < min(end, _extent(other)[1])
    ]


def overlaps_itself(tensor: Tensor) -> bool:
    """Tell whether elements of a tensor share memory, as `expand` makes them.

    Strides so interleaved that only a search could tell count as overlapping.
    """
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    reached = 0  # the last element that the dimensions before this one reach
    for stride, size in sorted((int(a), int(b)) for a, b in steps if b > 1):
        if stride <= reached:
            return tensor.numel() > 0
        reached += stride * (size - 1)
    return False


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte and the byte behind the last one, within the storage."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    if tensor.numel() == 0:
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(stride) for size, stride in steps)
    return begin, begin + (last + 1) * tensor.itemsize
