"""Convert between torch tensors and numpy memory; the only module that does.

torch is imported inside the functions, on first need. A tensor made from an array has a
storage of exactly the array's extent, so that a kernel that resizes its `out` cannot
overwrite its neighbour's memory.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.memory.arrays import Array, tensor_as_array
from kvc.schema.dtypes import DType

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["array_as_tensor", "tensor_as_array", "torch_dtype"]


def array_as_tensor(array: Array) -> "Tensor":
    """Return a tensor over a writable array's memory."""
    import torch

    if array.dtype.kind == "V":  # bfloat16, the only one that numpy does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_dtype(dtype: DType) -> "torch.dtype":
    """Return torch's name of an element type."""
    import torch

    found: torch.dtype = getattr(torch, dtype.label)
    return found
