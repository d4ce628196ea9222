"""What makes a tensor itself, and which tensors share memory without being one."""

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


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte and the byte behind the last one, within the storage."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    if tensor.numel() == 0:
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(stride) for size, stride in steps)
    return begin, begin + (last + 1) * tensor.itemsize
