"""Modules that say their buffers at the top, as words of the class.

`class Sum(Buffers, total=torch.zeros(3))` has a buffer `total`, which begins as a copy.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

ZERO = torch.zeros(1, dtype=torch.int64)  # where counters begin


class Buffers(nn.Module):
    """Registers what its class and the bases of that name, the bases' first."""

    _starts: ClassVar[dict[str, Tensor]] = {}

    def __init_subclass__(cls, **starts: Tensor) -> None:
        super().__init_subclass__()
        cls._starts = cls._starts | starts

    def __init__(self) -> None:
        super().__init__()
        for name, start in self._starts.items():
            self.register_buffer(name, start.clone())
