"""`PackedTensor`: a matrix that a checkpoint has as several tensors, such as scales.

The tensors are read together when the first row is needed, and forgotten after the
last, so that memory holds one unpacked matrix at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.weights.int8 import quantize_in_blocks
from kvc.compiler.weights.stored_layout import StoredLayout, StoredRows

Parts = Mapping[str, Tensor]
Decode = Callable[[Parts], StoredRows | Tensor]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A matrix of which a checkpoint has integers, scales, and more.

    Attributes:
        name: the name of the matrix, as a checkpoint without quantization has it.
        kind: the format's name.
        shape: the sizes of the matrix.
        parts: the tensors in files, by the ends of their names.
        decode: makes of the parts the rows as `layout` describes them, or float32
            [shape].
        layout: how products can use the matrix; None: only as floats. Of a matrix that
            `decode` makes float32, the rows are quantized to int8 in its blocks.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parts: Mapping[str, FileTensor] = field(compare=False)
    decode: Decode = field(compare=False)
    layout: StoredLayout | None = None
    _read: list[StoredRows | Tensor] = field(default_factory=list, compare=False)

    @property
    def path(self) -> str:
        """Return the path of the file of the first part."""
        return next(iter(self.parts.values())).path

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of `elements`."""
        return torch.float32

    def elements(self, begin: int, end: int) -> Tensor:
        """Return the elements `begin` to `end` - 1, in order, as a flat float32 tensor.

        Raises:
            CheckpointChanged: a file has changed since it was opened.
        """
        width = max(1, prod(self.shape[1:]))
        first, last = begin // width, -(-end // width)
        whole = self._whole()
        if isinstance(whole, StoredRows):
            rows = _some(whole, first, last).widened()
        else:
            rows = whole[first:last]
        flat = rows.reshape(-1)[begin - first * width : end - first * width].float()
        self._forget(end >= prod(self.shape))
        return flat

    def stored_rows(self, begin: int, end: int) -> StoredRows:
        """Return the rows `begin` to `end` - 1 as `layout` describes them.

        Raises:
            CheckpointChanged: a file has changed since it was opened.
        """
        whole = self._whole()
        if isinstance(whole, StoredRows):
            rows = _some(whole, begin, end)
        else:
            assert self.layout is not None, "a matrix without a layout has no rows"
            rows = StoredRows(*quantize_in_blocks(whole[begin:end], self.layout.block))
        self._forget(end >= self.shape[0])
        return rows

    def _whole(self) -> StoredRows | Tensor:
        if not self._read:
            self._read.append(self.decode({k: read(t) for k, t in self.parts.items()}))
        return self._read[0]

    def _forget(self, done: bool) -> None:
        if done:
            self._read.clear()


def read(tensor: FileTensor) -> Tensor:
    """Return a whole tensor of a file."""
    return tensor.elements(0, prod(tensor.shape)).view(tensor.shape)


def _some(rows: StoredRows, begin: int, end: int) -> StoredRows:
    least = None if rows.minimums is None else rows.minimums[begin:end]
    return StoredRows(rows.values[begin:end], rows.scales[begin:end], least)


def unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Return integers of `bits` bits that lie together, the lowest bits first.

    Args:
        words: int32, uint32 or uint8 [rows, n].
        bits: the width of an integer, at most 8.
        count: how many integers each row has.

    Returns:
        uint8 [rows, count].
    """
    raw = words.contiguous().view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return raw[:, :count].clone()
    if bits in (2, 4):
        steps = torch.arange(0, 8, bits, dtype=torch.uint8)
        parts = (raw[..., None] >> steps) & ((1 << bits) - 1)
        return parts.view(len(words), -1)[:, :count].contiguous()
    ones = (raw[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
    taken = ones.view(len(words), -1)[:, : count * bits].view(len(words), count, bits)
    powers = torch.tensor([1 << bit for bit in range(bits)], dtype=torch.uint8)
    return torch.sum(taken * powers, -1, dtype=torch.uint8)
