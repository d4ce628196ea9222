"""Modules that declare their buffers as keyword arguments of the class statement.

`class Sum(Buffers, total=torch.zeros(3))` has a buffer `total`. The buffer of each
instance begins as a copy of the given tensor.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

ZERO = torch.zeros(1, dtype=torch.int64)  # where counters begin


class Buffers(nn.Module):
    """Base class that registers the declared buffers of a class and its bases.

    Buffers of the bases come first.
    """

    _starts: ClassVar[dict[str, Tensor]] = {}

    def __init_subclass__(cls, **starts: Tensor) -> None:
        super().__init_subclass__()
        cls._starts = cls._starts | starts

    def __init__(self) -> None:
        super().__init__()
        for name, start in self._starts.items():
            self.register_buffer(name, start.clone())
