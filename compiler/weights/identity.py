"""When two tensors are the same tensor, and when different tensors share memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
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


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes that a tensor reaches: from its first to after its last one.

    Attributes:
        space: what `begin` and `end` count in: 0 for addresses, else a storage without.
    """

    space: int
    begin: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Extent":
        """Return the extent of a tensor; one on the meta device has no address."""
        space, begin = 0, 0
        if tensor.is_meta:
            space = tensor.untyped_storage()._cdata
            begin = int(tensor.storage_offset()) * tensor.itemsize
        elif tensor.numel():
            begin = tensor.data_ptr()
        if not tensor.numel():
            return cls(space, begin, begin)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((int(size) - 1) * int(stride) for size, stride in steps)
        return cls(space, begin, begin + (last + 1) * tensor.itemsize)

    @classmethod
    def of_array(cls, array: np.ndarray) -> "Extent":
        """Return the extent of a numpy array."""
        return cls(0, *np.lib.array_utils.byte_bounds(array))

    def meets(self, other: "Extent") -> bool:
        """Tell whether two extents have bytes in common."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return self.space == other.space and begin < end

    def holds(self, other: "Extent") -> bool:
        """Tell whether all bytes of another extent are in this one."""
        if self.space != other.space:
            return False
        return self.begin <= other.begin and other.end <= self.end


def overlapping(tensor: Tensor, named: Mapping[str, Tensor]) -> list[str]:
    """Return the names of other tensors that share bytes with one."""
    extent, identity = Extent.of(tensor), Identity.of(tensor)
    return [
        name
        for name, other in named.items()
        if extent.meets(Extent.of(other)) and Identity.of(other) != identity
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


def memory_of(tensor: Tensor | None) -> object:
    """Return what tensors that share memory have in common."""
    return None if tensor is None else tensor.untyped_storage()._cdata
