"""Where the bytes of constants come from, named before they are read.

A `Source` is a value: two equal sources are the same data, so sharing is found
without touching a byte. `read` produces the tensor, one at a time, when its blob is
written; until then a checkpoint's pages stay on disk.
"""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from kvc.compiler.identity import Identity
from kvc.compiler.quantize import quantize_channels


class TensorSource:
    """The bytes of a tensor of the user's model; equal by identity."""

    __slots__ = ("identity", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = (
            tensor  # keeps the storage alive, so that its identity stays valid
        )
        self.identity = Identity.of(tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSource) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


class Transform(Enum):
    """What is done to a weight before it is stored."""

    INT8 = "int8"  # int8 values, per row of a matrix
    INT8_SCALE = "int8_scale"  # float32 scale of each row
    BFLOAT16 = "bfloat16"  # rounded to bfloat16


@dataclass(frozen=True, slots=True)
class Derived:
    """A transform of another source."""

    transform: Transform
    base: "Source"


Source = TensorSource | Derived


def read(source: Source) -> Tensor:
    """Return the tensor that a source stands for, contiguous."""
    if isinstance(source, TensorSource):
        return source.tensor.detach().contiguous()
    base = read(source.base)
    match source.transform:
        case Transform.INT8:
            return quantize_channels(base)[0]
        case Transform.INT8_SCALE:
            return quantize_channels(base)[1]
        case Transform.BFLOAT16:
            return base.to(torch.bfloat16)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor of any dtype, without a copy."""
    if not tensor.numel():
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def base_tensor(source: Source) -> TensorSource:
    """Return the model's own tensor at the end of a chain of transforms."""
    while isinstance(source, Derived):
        source = source.base
    return source
