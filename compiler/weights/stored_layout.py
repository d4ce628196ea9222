"""How a checkpoint stores quantized matrices, if products can use these as they are.

`StoredLayout` is known from a header; `StoredRows` are the numbers of some rows.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

BLOCK: Final = 32  # of a matrix that is quantized again
AGAIN: Final = "quantized again to int8 in blocks of 32"
OFFSET: Final = 8  # what an int4 value without a minimum is stored above itself


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """The integers and scales of a quantized matrix [out, in].

    With 8 bits, a weight is value * scale. With 4 bits, it is (value - 8) * scale, or
    value * scale + minimum where there are minimums.

    Attributes:
        bits: the width of the values.
        block: how many inputs of a row share a scale and a minimum.
        scale: dtype that represents all scales.
        minimum: dtype that represents all minimums; None without minimums.
        loss: what is rounded once more, in words; "" if the matrix is used as it is.
    """

    bits: Literal[4, 8]
    block: int
    scale: torch.dtype = torch.float32
    minimum: torch.dtype | None = None
    loss: str = ""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Some rows of a quantized matrix.

    Attributes:
        values: uint8 [rows, in], 0 to 15, or int8 [rows, in].
        scales: [rows, in / block].
        minimums: [rows, in / block]; None without minimums.
    """

    values: Tensor
    scales: Tensor
    minimums: Tensor | None = None

    def widened(self) -> Tensor:
        """Return the weights, float32 [rows, in]."""
        rows, columns = self.values.shape
        values = self.values.view(rows, self.scales.shape[1], -1).float()
        if self.minimums is not None:
            values.mul_(self.scales.float()[..., None])
            values += self.minimums.float()[..., None]
        else:
            if self.values.dtype == torch.uint8:
                values -= OFFSET
            values.mul_(self.scales.float()[..., None])
        return values.view(rows, columns)


@runtime_checkable
class QuantizedTensor(Protocol):
    """A tensor of a file whose matrix may be quantized."""

    @property
    def layout(self) -> StoredLayout | None:
        """Return how products can use the matrix as it is stored; None: they cannot."""
        ...

    def stored_rows(self, begin: int, end: int) -> StoredRows:
        """Read the rows `begin` to `end` - 1 as `layout` describes them.

        Raises:
            CheckpointChanged: the file has changed since it was opened.
        """
        ...
