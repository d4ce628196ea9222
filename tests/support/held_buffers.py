"""Modules that say their buffers at the top, as words of the class.

`class Sum(Buffers, total=torch.zeros(3))` has a buffer `total`, which begins as a copy.
"""

from typing import ClassVar

from torch import Tensor, nn


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
