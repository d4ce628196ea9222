"""Where the bytes of constants come from, known before they are read.

A `Source` is a value: two equal sources are the same data, so sharing is found without
reading a byte. `WeightReader` reads one when its blob is written, as blocks of rows.
Until then a checkpoint's weights stay on disk, and afterwards only a few blocks of one
tensor are in memory, whatever its size.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import prod
from typing import Final, Protocol

import torch
from torch import Tensor

from kvc.compiler.computed import Computed
from kvc.compiler.identity import Identity
from kvc.compiler.int4 import quantize_int4
from kvc.compiler.int8 import (
    quantize_channels,
    quantize_int8_blocks,
)
from kvc.compiler.moments import Factors, Moments
from kvc.compiler.regrouping import gathered, in_multiples
from kvc.schema.errors import NotFinite
from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.ops.row_blocks import weight_blocks

# 2 MiB of float32: quantizing blocks that stay in the cache is three times as fast as
# in blocks of 16 MiB (measured 2026-11 on Zen 4). A row of more is one block where a
# transform needs whole rows, and several elsewhere.
BLOCK_ELEMENTS: Final = 1 << 19


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


class StoredTensor(Protocol):
    """A contiguous tensor in a file; equal ones are the same bytes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its sizes."""
        ...

    def elements(self, begin: int, end: int) -> Tensor:
        """Read a range of its elements, in order, as a flat tensor.

        Raises:
            CheckpointChanged: the file is not what it was when it was opened.
        """
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A tensor of a file, cast to the dtype that the model has for it.

    Attributes:
        stored: its values.
        dtype: the model's.
        through: what the model had before, in order: casts that lose something.
    """

    stored: StoredTensor
    dtype: torch.dtype
    through: tuple[torch.dtype, ...] = ()


class Transform(Enum):
    """What is done to a weight before it is stored."""

    INT8 = "int8"  # int8 values, per row of a matrix
    INT8_SCALE = "int8_scale"  # float32 scale of each row
    INT8_BLOCKS = "int8_blocks"  # int8 values, per block of a row
    INT8_BLOCKS_SCALE = "int8_blocks_scale"  # float32 scale of each block of each row
    INT4 = "int4"  # two int4 values a byte, per block of a row, eight rows together
    INT4_SCALE = "int4_scale"  # bfloat16 scale of each block of each row, positive
    INT4_SIGNED = "int4_signed"  # as INT4, with scales that may be negative
    INT4_SIGNED_SCALE = "int4_signed_scale"  # as INT4_SCALE
    BFLOAT16 = "bfloat16"  # rounded to bfloat16
    TRANSPOSED = "transposed"  # the last two axes exchanged


Quantizer = Callable[[Tensor], tuple[Tensor, Tensor]]  # of rows: values, scales

# What quantizes a matrix -> what its scales are.
_SCALES: Final = {
    Transform.INT8: Transform.INT8_SCALE,
    Transform.INT8_BLOCKS: Transform.INT8_BLOCKS_SCALE,
    Transform.INT4: Transform.INT4_SCALE,
    Transform.INT4_SIGNED: Transform.INT4_SIGNED_SCALE,
}
SCALE: Final = "_scale"  # ends the names of scales
INT4: Final = (Transform.INT4, Transform.INT4_SIGNED)
_INT4_SCALES: Final = tuple(_SCALES[one] for one in INT4)
_ORDERED_ELEMENTS: Final = 1 << 22  # 16 MiB of float32


@dataclass(frozen=True, slots=True)
class Derived:
    """A transform of another source.

    Attributes:
        transform: what is done.
        base: to what.
        moments: of the inputs that a weight multiplies, where int4 is chosen by them.
    """

    transform: Transform
    base: "Source"
    moments: Moments | None = None


@dataclass(frozen=True, slots=True)
class Divided:
    """A matrix as `count` matrices, which lie one after another in it."""

    base: "Source"
    count: int


Base = TensorSource | StoredSource
Source = Base | Derived | Divided | Computed


class WeightReader:
    """Reads sources block by block.

    Whoever reads the quantized values of a matrix to their end gets its scales for
    nothing afterwards, instead of reading the matrix again.
    """

    def __init__(self, names: Mapping[Source, str] | None = None) -> None:
        """Take the names of matrices that are to be quantized, for errors."""
        self._names = names or {}
        self._scales: dict[Derived, Tensor] = {}
        self._factors = Factors()

    def chunks(self, source: Source) -> Iterator[memoryview]:
        """Yield the bytes of a source in order, a few MiB at most at a time."""
        return map(bytes_of, self.blocks(source))

    def blocks(self, source: Source, whole_rows: bool = False) -> Iterator[Tensor]:
        """Yield a source in order, as contiguous tensors of at most BLOCK_ELEMENTS.

        Args:
            source: what to read.
            whole_rows: cut along dim 0 only, however long a row is.

        Raises:
            NotFinite: what is to be quantized has a NaN or an infinity, at the latest
                when it has been read to its end.
        """
        match source:
            case TensorSource():
                return _cut(source.tensor.detach(), whole_rows)
            case StoredSource():
                return _stored_blocks(source, whole_rows)
            case Divided():
                return self._divided(source, whole_rows)
            case Computed():
                return self._computed(source, whole_rows)
            case Derived():
                return self._derived(source, whole_rows)

    def _divided(self, source: Divided, whole_rows: bool) -> Iterator[Tensor]:
        """Yield matrices; with `whole_rows` each is whole."""
        if not whole_rows:
            yield from self.blocks(source.base)
            return
        _, rows, columns = _shape(source)
        parts: list[Tensor] = []
        held = 0
        for block in self.blocks(source.base, whole_rows=True):
            parts.append(block)
            held += len(block)
            whole = torch.cat(parts) if held >= rows else None
            if whole is not None and rows:
                count = held // rows
                yield whole[: count * rows].view(count, rows, columns)
                parts, held = [whole[count * rows :]], held - count * rows

    def _computed(self, source: Computed, whole_rows: bool) -> Iterator[Tensor]:
        first, *others = source.bases
        rest = [read(each) for each in others]
        by_rows = source.make.by_rows
        blocks = self.blocks(first, whole_rows=True) if by_rows else [read(first)]
        for block in blocks:
            yield from _cut(source.make(block, *rest), whole_rows)

    def _derived(self, source: Derived, whole_rows: bool) -> Iterator[Tensor]:
        if source.transform in _SCALES:
            scales = replace(source, transform=_SCALES[source.transform])
            return self._quantized(scales, self._quantizer(scales))
        match source.transform:
            case Transform.BFLOAT16:
                blocks = self.blocks(source.base, whole_rows)
                return (block.to(torch.bfloat16) for block in blocks)
            case Transform.TRANSPOSED:
                blocks = self.blocks(source.base, whole_rows=True)
                if len(_shape(source.base)) == 2:  # one matrix, which is read whole
                    return _cut(torch.cat(list(blocks)).mT, whole_rows)
                return (block.mT.contiguous() for block in blocks)
            case _:
                return self._scales_of(source, self._quantizer(source))

    def _quantizer(self, scales: Derived) -> Quantizer:
        """Return what makes values and some scales of rows."""
        match scales.transform:
            case Transform.INT8_SCALE:
                return quantize_channels
            case Transform.INT8_BLOCKS_SCALE:
                return quantize_int8_blocks
            case transform:
                known = scales.moments
                factor = None if known is None else self._factors.of(known)
                signed = transform is Transform.INT4_SIGNED_SCALE
                return partial(quantize_int4, signed=signed, factor=factor)

    def _quantized(self, kept: Derived, quantize: Quantizer) -> Iterator[Tensor]:
        """Yield the values of a matrix; its scales are kept as the source `kept`."""
        scales = []
        for block in self.rows_to_quantize(kept):
            values, scale = quantize(block)
            scales.append(scale)
            yield values
        self._scales[kept] = torch.cat(scales)

    def _scales_of(self, source: Derived, quantize: Quantizer) -> Iterator[Tensor]:
        known = self._scales.pop(source, None)
        if known is not None:
            yield known
            return
        for block in self.rows_to_quantize(source):
            yield quantize(block)[1]

    def rows_to_quantize(self, source: Derived) -> Iterator[Tensor]:
        """Yield rows as they can be quantized: for int4, eight of them together.

        With moments columns are rounded one by one: more rows share the steps of that.
        """
        blocks = self._finite_blocks(source)
        if source.transform not in (*INT4, *_INT4_SCALES):
            return blocks
        if source.moments is not None:
            blocks = gathered(_ORDERED_ELEMENTS, blocks)
        return in_multiples(QB4_ROWS, blocks)

    def _finite_blocks(self, source: Derived) -> Iterator[Tensor]:
        """Yield the rows of the matrix, or matrices, that a source is quantized from.

        A block that is not finite is not yielded, nor is any after it: they are only
        counted, for the error.
        """
        bad = 0
        for block in self.blocks(source.base, whole_rows=True):
            if bad or not _is_finite(block):
                bad += int(block.isfinite().logical_not().sum())
            else:
                yield block.reshape(-1, block.shape[-1])
        if bad:
            own = self.blocks(base_of(source))  # before what is computed of it
            own_bad = sum(int(b.isfinite().logical_not().sum()) for b in own)
            raise NotFinite(
                weight=self._names.get(source.base, "without a name"),
                dtype=source.transform.value.partition("_")[0],
                count=own_bad or bad,
                total=prod(_shape(source.base)),
            )


def _is_finite(block: Tensor) -> bool:
    # Its ends tell, and are found without a mask as long as the block.
    return not block.numel() or bool(torch.stack(block.aminmax()).isfinite().all())


def _cut(tensor: Tensor, whole_rows: bool) -> Iterator[Tensor]:
    """Yield a tensor in parts, each made contiguous on its own."""
    if tensor.numel() <= BLOCK_ELEMENTS:
        yield tensor.contiguous()
        return
    row = tensor.numel() // tensor.shape[0]
    if row > BLOCK_ELEMENTS and not whole_rows:
        for part in tensor:
            yield from _cut(part, whole_rows)
        return
    step = max(1, BLOCK_ELEMENTS // row)
    for begin in range(0, tensor.shape[0], step):
        yield tensor[begin : begin + step].contiguous()


def _stored_blocks(source: StoredSource, whole_rows: bool) -> Iterator[Tensor]:
    shape = source.stored.shape
    total, row = prod(shape), max(1, prod(shape[1:]))
    step = max(1, BLOCK_ELEMENTS // row) * row
    if not whole_rows:
        step = min(step, BLOCK_ELEMENTS)
    for begin in range(0, max(1, total), step):  # an empty one is one empty block
        end = min(begin + step, total)
        part = source.stored.elements(begin, end)
        for dtype in (*source.through, source.dtype):
            part = part.to(dtype)
        rows = (end - begin) // row if total else shape[0]
        yield part.reshape(rows, *shape[1:]) if whole_rows else part


def read(source: Source) -> Tensor:
    """Return the whole tensor that a small source stands for, contiguous."""
    blocks = [block.reshape(-1) for block in WeightReader().blocks(source)]
    flat = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    return flat.reshape(_shape(source))


def _shape(source: Source) -> tuple[int, ...]:
    match source:
        case TensorSource():
            return tuple(source.tensor.shape)
        case StoredSource():
            return source.stored.shape
        case Computed():
            return source.shape
        case Divided():
            rows, columns = _shape(source.base)
            return source.count, rows // source.count, columns
        case Derived():
            return _derived_shape(source)


def _derived_shape(source: Derived) -> tuple[int, ...]:
    match source:
        case Derived(Transform.INT8_SCALE, base):
            return _shape(base)[:-1]
        case Derived(Transform.INT8_BLOCKS_SCALE, base):
            *lead, columns = _shape(base)
            return *lead, weight_blocks(columns)
        case Derived(Transform.TRANSPOSED, base):
            *count, rows, columns = _shape(base)
            return *count, columns, rows
        case Derived(Transform.INT4 | Transform.INT4_SIGNED, base):
            rows, columns = _shape(base)
            values = 2 * QB4_BYTES
            return rows // QB4_ROWS, columns // values, QB4_ROWS, QB4_BYTES
        case Derived(Transform.INT4_SCALE | Transform.INT4_SIGNED_SCALE, base):
            rows, columns = _shape(base)
            return rows // QB4_ROWS, columns // QB4_BLOCK, QB4_ROWS
        case _:
            return _shape(source.base)


def is_zero(source: Source) -> bool:
    """Tell whether all bytes of a source are zero."""
    blocks = WeightReader().blocks(source)
    return not any(_flat_bytes(block).any() for block in blocks)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor of any dtype, without a copy."""
    if not tensor.numel():
        return memoryview(b"")
    return _flat_bytes(tensor).numpy().data


def _flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor: uint8 [nbytes]."""
    # Not by `reshape`: one element is contiguous whatever its stride, and keeps it.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def base_of(source: Source) -> Base:
    """Return the model's own tensor, the first, at the end of a chain of sources."""
    while not isinstance(source, TensorSource | StoredSource):
        source = source.bases[0] if isinstance(source, Computed) else source.base
    return source


def nbytes_of(base: Base) -> int:
    """Return the bytes that a tensor of the model takes."""
    match base:
        case TensorSource():
            return base.tensor.numel() * base.tensor.itemsize
        case StoredSource():
            return prod(base.stored.shape) * base.dtype.itemsize
