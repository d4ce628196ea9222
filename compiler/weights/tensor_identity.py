"""Tell whether two tensors are the same tensor, or share memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties that identify a tensor: storage, offset, geometry, dtype.

    A name or an address alone does not identify a tensor: many tensors over one mapped
    file share an address, and every fake tensor has address 0.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Identity":
        """Return the identity of a tensor, valid until its storage is freed."""
        return cls(
            tensor.untyped_storage()._cdata,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of a tensor's bytes, from the first to the end of the last element.

    Attributes:
        space: 0 if `begin` and `end` are addresses, else the id of a storage without an
            address.
    """

    space: int
    begin: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Extent":
        """Return the extent of a tensor; meta tensors have a storage but no address."""
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
        """Tell whether all bytes of another extent are in this extent."""
        if self.space != other.space:
            return False
        return self.begin <= other.begin and other.end <= self.end


def overlapping(tensor: Tensor, named: Mapping[str, Tensor]) -> list[str]:
    """Return the names in `named` of other tensors that share bytes with a tensor."""
    extent, identity = Extent.of(tensor), Identity.of(tensor)
    return [
        name
        for name, other in named.items()
        if extent.meets(Extent.of(other)) and Identity.of(other) != identity
    ]


def overlaps_itself(tensor: Tensor) -> bool:
    """Tell whether elements of a tensor share memory, as after `expand`.

    If strides are interleaved so that only a search could decide, the answer is True.
    """
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    reached = 0  # the last element that the preceding dimensions cover
    for stride, size in sorted((int(a), int(b)) for a, b in steps if b > 1):
        if stride <= reached:
            return tensor.numel() > 0
        reached += stride * (size - 1)
    return False


def memory_of(tensor: Tensor | None) -> object:
    """Return an object that is equal for tensors that share memory."""
    return None if tensor is None else tensor.untyped_storage()._cdata
