"""Read the bytes of constants, as blocks of rows.

`WeightReader` reads a source (`sources.py`) when its blob is written. Until then a
checkpoint's weights stay on disk, and afterwards only a few blocks of one tensor are in
memory, whatever its size.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.weights.int4 import (
    Factors,
    packed_int4,
    quantize_int4,
    side_by_side,
)
from kvc.compiler.weights.int8 import (
    quantize_channels,
    quantize_int8_blocks,
    quantize_outputs,
)
from kvc.compiler.weights.sources import (
    INT4,
    SCALES,
    STORED,
    STORED_SCALES,
    Computed,
    Derived,
    Divided,
    Slot,
    Source,
    StoredSource,
    TensorSource,
    Transform,
    base_of,
    shape_of,
)
from kvc.compiler.weights.stored_layout import QuantizedTensor, StoredRows
from kvc.schema.errors import NotFinite, StoredScalesNotFinite
from kvc.schema.ops.products import QB4_ROWS

# 2 MiB of float32: quantizing blocks that stay in the CPU cache is three times as fast
# as blocks of 16 MiB (measured 2026-11 on Zen 4). A longer row is one block if a
# transform needs whole rows, and several blocks elsewhere.
BLOCK_ELEMENTS: Final = 1 << 19

Quantizer = Callable[[Tensor], tuple[Tensor, Tensor]]  # of rows: values, scales

_INT4_SCALES: Final = tuple(SCALES[one] for one in INT4)
_BY_CHANNEL: Final = (Transform.INT8_CHANNELS, Transform.INT8_CHANNELS_SCALE)
_BY_OUTPUT: Final = (Transform.INT8_OUTPUTS, Transform.INT8_OUTPUTS_SCALE)
_ORDERED_ELEMENTS: Final = 1 << 22  # 16 MiB of float32


class WeightReader:
    """Reads sources block by block.

    After the quantized values of a matrix have been read to the end, its scales are
    returned without reading the matrix again.
    """

    def __init__(self, names: Mapping[Source, str] | None = None) -> None:
        """Create a reader; `names` has the names of weights, which errors mention."""
        self._names = names or {}
        self._scales: dict[Derived, Tensor] = {}
        self._factors = Factors()

    def chunks(self, source: Source) -> Iterator[memoryview]:
        """Yield the bytes of a source in order, a few MiB at most at a time."""
        return map(bytes_of, self.blocks(source))

    def blocks(self, source: Source, whole_rows: bool = False) -> Iterator[Tensor]:
        """Yield a source's values in order, as contiguous tensors.

        A tensor has at most BLOCK_ELEMENTS elements, unless `whole_rows` is set.

        Args:
            source: the source to read.
            whole_rows: whether to cut along dim 0 only, however long a row is.

        Raises:
            NotFinite: a weight to be quantized has a NaN or an infinity; raised at the
                end of the source at the latest.
        """
        match source:
            case TensorSource():
                return _cut(source.tensor.detach(), whole_rows)
            case StoredSource():
                return _stored_blocks(source, whole_rows)
            case Slot():
                return iter(())
            case Divided():
                return self._divided(source, whole_rows)
            case Computed():
                return self._computed(source, whole_rows)
            case Derived():
                return self._derived(source, whole_rows)

    def _divided(self, source: Divided, whole_rows: bool) -> Iterator[Tensor]:
        """Yield a divided matrix in blocks; of whole matrices with `whole_rows`."""
        if not whole_rows:
            yield from self.blocks(source.base)
            return
        _, rows, columns = shape_of(source)
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
        if source.transform in SCALES:
            scales = replace(source, transform=SCALES[source.transform])
            return self._quantized(scales, self._quantizer(scales))
        if source.transform in STORED:
            return self._stored(source)
        match source.transform:
            case Transform.BFLOAT16:
                blocks = self.blocks(source.base, whole_rows)
                return (block.to(torch.bfloat16) for block in blocks)
            case Transform.TRANSPOSED:
                blocks = self.blocks(source.base, whole_rows=True)
                if len(shape_of(source.base)) == 2:  # one matrix, which is read whole
                    return _cut(torch.cat(list(blocks)).mT, whole_rows)
                return (block.mT.contiguous() for block in blocks)
            case _:
                return self._scales_of(source, self._quantizer(source))

    def _stored(self, source: Derived) -> Iterator[Tensor]:
        """Yield values, scales or minimums of a matrix that a checkpoint has quantized.

        Values are read first; scales and minimums are kept from then on.
        """
        known = self._scales.pop(source, None)
        if known is not None:
            yield known
            return
        kept: dict[Transform, list[Tensor]] = {}
        for rows in _stored_rows(source):
            parts = _in_products(rows)
            _check_stored(rows, self._names.get(source.base, "without a name"))
            for transform, part in parts.items():
                if transform is source.transform:
                    yield part
                elif source.transform in STORED_SCALES:
                    kept.setdefault(transform, []).append(part)
        for transform, found in kept.items():
            self._scales[replace(source, transform=transform)] = torch.cat(found)

    def _quantizer(self, scales: Derived) -> Quantizer:
        """Return the function that quantizes rows, for scales as in `scales`."""
        match scales.transform:
            case Transform.INT8_SCALE | Transform.INT8_CHANNELS_SCALE:
                return quantize_channels
            case Transform.INT8_BLOCKS_SCALE:
                return quantize_int8_blocks
            case Transform.INT8_OUTPUTS_SCALE:
                return quantize_outputs
            case transform:
                known = scales.moments
                factor = None if known is None else self._factors.of(known)
                signed = transform is Transform.INT4_SIGNED_SCALE
                return partial(quantize_int4, signed=signed, factor=factor)

    def _quantized(self, kept: Derived, quantize: Quantizer) -> Iterator[Tensor]:
        """Yield the quantized values of a matrix; keep its scales for source `kept`."""
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
        """Yield a source's rows in blocks that can be quantized one by one.

        For int4, a block has a multiple of eight rows. With moments, columns are
        rounded one by one, so larger blocks need fewer steps. By channel, a row is all
        that has one index of the first axis. By output, there is one block, of the
        weight's own shape: what has one index of the second axis is in all rows.
        """
        blocks = self._finite_blocks(source)
        if source.transform in _BY_OUTPUT:
            return iter((torch.cat(list(blocks)),))
        if source.transform in _BY_CHANNEL:
            return (block.flatten(1) for block in blocks)
        blocks = (block.reshape(-1, block.shape[-1]) for block in blocks)
        if source.transform not in (*INT4, *_INT4_SCALES):
            return blocks
        if source.moments is not None:
            blocks = _gathered(_ORDERED_ELEMENTS, blocks)
        return _in_multiples(QB4_ROWS, blocks)

    def _finite_blocks(self, source: Derived) -> Iterator[Tensor]:
        """Yield blocks of whole rows of the weight from which a source is quantized.

        From the first block with a NaN or an infinity on, no blocks are yielded; they
        are only examined to count such numbers for the error.
        """
        bad = 0
        for block in self.blocks(source.base, whole_rows=True):
            if bad or not _is_finite(block):
                bad += int(block.isfinite().logical_not().sum())
            else:
                yield block
        if bad:
            own = self.blocks(base_of(source))  # the original, before any computation
            own_bad = sum(int(b.isfinite().logical_not().sum()) for b in own)
            raise NotFinite(
                weight=self._names.get(source.base, "without a name"),
                dtype=source.transform.value.partition("_")[0],
                count=own_bad or bad,
                total=prod(shape_of(source.base)),
            )


def _is_finite(block: Tensor) -> bool:
    # The minimum and maximum show it, without a mask as long as the block.
    return not block.numel() or bool(torch.stack(block.aminmax()).isfinite().all())


def _stored_rows(source: Derived) -> Iterator[StoredRows]:
    """Yield the rows of a quantized matrix, a multiple of eight at a time."""
    assert isinstance(source.base, StoredSource)
    assert isinstance(source.base.stored, QuantizedTensor)
    rows, columns = shape_of(source.base)
    step = max(1, BLOCK_ELEMENTS // columns // QB4_ROWS) * QB4_ROWS
    for begin in range(0, rows, step):
        yield source.base.stored.stored_rows(begin, min(begin + step, rows))


def _check_stored(rows: StoredRows, name: str) -> None:
    """Check that the scales and minimums of some rows are numbers.

    Raises:
        StoredScalesNotFinite: some are NaN or infinite.
    """
    for part in (rows.scales, rows.minimums):
        if part is not None and not _is_finite(part.float()):
            wrong = int((~part.isfinite()).sum())
            raise StoredScalesNotFinite(weight=name, count=wrong, total=part.numel())


def _in_products(rows: StoredRows) -> dict[Transform, Tensor]:
    """Return values, scales and minimums as products read them."""
    if rows.values.dtype == torch.int8:
        return {
            Transform.STORED_INT8: rows.values.contiguous(),
            Transform.STORED_INT8_SCALE: rows.scales.contiguous(),
        }
    found = {
        Transform.STORED_INT4: packed_int4(rows.values.contiguous()),
        Transform.STORED_INT4_SCALE: side_by_side(rows.scales.contiguous()),
    }
    if rows.minimums is not None:
        minimums = side_by_side(rows.minimums.contiguous())
        found[Transform.STORED_INT4_MINIMUM] = minimums
    return found


def _gathered(least: int, blocks: Iterator[Tensor]) -> Iterator[Tensor]:
    """Join blocks of rows until each, except the last, has `least` elements."""
    held: list[Tensor] = []
    for block in blocks:
        held.append(block)
        if sum(map(Tensor.numel, held)) >= least:
            yield torch.cat(held)
            held = []
    if held:
        yield torch.cat(held)


def _in_multiples(count: int, blocks: Iterator[Tensor]) -> Iterator[Tensor]:
    """Divide the rows of blocks anew, into blocks of a multiple of `count` rows."""
    kept: Tensor | None = None
    for block in blocks:
        rows = block if kept is None else torch.cat((kept, block))
        whole = len(rows) // count * count
        kept = rows[whole:] if whole < len(rows) else None
        if kept is None or whole:
            yield rows[:whole]
    assert kept is None, "weights with other row counts are not quantized to int4"


def _cut(tensor: Tensor, whole_rows: bool) -> Iterator[Tensor]:
    """Yield parts of a tensor in order; each part is made contiguous separately."""
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
    for begin in range(0, max(1, total), step):  # an empty tensor is one empty block
        end = min(begin + step, total)
        part = source.stored.elements(begin, end)
        for dtype in (*source.through, source.dtype):
            part = part.to(dtype)
        rows = (end - begin) // row if total else shape[0]
        yield part.reshape(rows, *shape[1:]) if whole_rows else part


def read(source: Source) -> Tensor:
    """Return the whole tensor of a small source, contiguous."""
    blocks = [block.reshape(-1) for block in WeightReader().blocks(source)]
    flat = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    return flat.reshape(shape_of(source))


def is_zero(source: Source) -> bool:
    """Tell whether all bytes of a source are zero."""
    return not any(_flat_bytes(block).any() for block in WeightReader().blocks(source))


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor of any dtype, without a copy."""
    if not tensor.numel():
        return memoryview(b"")
    return _flat_bytes(tensor).numpy().data


def _flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor: uint8 [nbytes]."""
    # Not by `reshape`: a tensor of one element is contiguous with any stride, and keeps
    # it.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
