"""Matrices of small floats, or of int8 rows: FP8, bitsandbytes, MXFP4."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.checkpoints.microscaled import e2m1, powers
from kvc.compiler.checkpoints.packed_tensor import PackedTensor, Parts, read
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.weights.stored_layout import (
    AGAIN,
    BLOCK,
    StoredLayout,
    StoredRows,
)
from kvc.schema.checkpoints.problems import bad_checkpoint
from kvc.schema.errors import BadCheckpoint, UnsupportedModel

Files = Mapping[str, FileTensor]
Settings = Mapping[str, object]

_SIDE: Final = 128  # of FP8's blocks, unless settings say otherwise
_NESTED: Final = "weight.nested_absmax"
_ZEROS: Final = "weight_zero_point"
_TOGETHER: Final = 1 << 18  # bytes that are widened at a time


def fp8(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of float8 with a scale for each block of rows and inputs.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    own = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    rows, columns = parts["weight"].shape
    scales = parts[own].shape
    if prod(scales) == 1:
        return int8_rows(name, parts, settings)
    high, wide = _sides(name, settings)
    if scales != (-(-rows // high), -(-columns // wide)):
        wrong = f"scales {list(scales)} of blocks {[high, wide]} of {[rows, columns]}"
        raise _bad(parts, f"{name}: {wrong}")

    def widened(found: Parts) -> Tensor:
        scale = _floats(found[own])
        each = scale.repeat_interleave(wide, 1)[:, :columns]
        weight = found["weight"].float()
        for begin in range(0, rows, high):
            weight[begin : begin + high] *= each[begin // high]
        return weight

    return PackedTensor(name, "FP8", (rows, columns), parts, widened)


def _sides(name: str, settings: Settings) -> tuple[int, int]:
    """Return the rows and the columns of a block of FP8.

    Raises:
        UnsupportedModel: the settings have no two sizes.
    """
    found = settings.get("weight_block_size") or [_SIDE, _SIDE]
    if isinstance(found, list) and len(found) == 2:
        high, wide = found
        if isinstance(high, int) and isinstance(wide, int) and high > 0 and wide > 0:
            return high, wide
    reason = f"its weight_block_size is {found!r}, not two sizes"
    raise UnsupportedModel(model=name, reason=reason)


def int8_rows(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of int8 or float8 with scales for groups of a row's inputs.

    Scales are [out, groups], or one for each row, or one for all. Zeros are int8 of the
    same sizes. bitsandbytes' scales, SCB, are 127 times as large.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    rows, columns = parts["weight"].shape
    own = next(
        end for end in ("SCB", "weight_scale", "weight_scale_inv") if end in parts
    )
    shape = parts[own].shape
    groups = shape[1] if len(shape) == 2 and shape[0] == rows else 1
    is_int8 = parts["weight"].dtype == torch.int8
    whole = shape in ((), (1,), (1, 1), (rows,), (rows, groups))
    if not whole or groups < 1 or columns % groups:
        if len(shape) == 2 and not is_int8:
            return fp8(name, parts, settings)
        raise _bad(parts, f"{name}: scales {list(shape)} of {rows} rows")
    zeros = _ZEROS in parts
    if zeros and (not is_int8 or parts[_ZEROS].shape != shape):
        wrong = f"zeros {list(parts[_ZEROS].shape)} of scales {list(shape)}"
        raise _bad(parts, f"{name}: {wrong}")
    unit = 127.0 if own == "SCB" else 1.0

    def integers(found: Parts) -> StoredRows | Tensor:
        scales = _spread(_floats(found[own]) / unit, rows, groups)
        if is_int8 and not zeros:
            return StoredRows(found["weight"], scales)
        values = found["weight"].float().view(rows, groups, -1)
        if zeros:
            values -= _spread(found[_ZEROS].float(), rows, groups)[..., None]
        return (values * scales[..., None]).view(rows, columns)

    layout = StoredLayout(8, columns // groups) if is_int8 else None
    if zeros:
        layout = StoredLayout(8, BLOCK, loss=AGAIN)
    kind = "int8" if is_int8 else "FP8"
    return PackedTensor(name, kind, (rows, columns), parts, integers, layout)


def _spread(found: Tensor, rows: int, groups: int) -> Tensor:
    """Return numbers for all, for each row, or for each group as [rows, groups]."""
    columns = groups if found.numel() == rows * groups else 1
    return found.reshape(-1, columns).expand(rows, groups).clone()


@dataclass(frozen=True, slots=True)
class _State:
    """The description that bitsandbytes stores beside a matrix.

    Attributes:
        shape: sizes of the matrix.
        block: how many weights share a scale.
        nested: how many scales of 8 bits share an outer scale; 0: none are of 8 bits.
        offset: what is added to scales of 8 bits.
    """

    shape: tuple[int, ...]
    block: int
    nested: int
    offset: float


def _state(name: str, parts: Files) -> _State:
    """Return the description of a matrix, after a check of the sizes of its parts.

    Raises:
        BadCheckpoint: the description is damaged, or sizes do not fit.
    """
    end = next(end for end in parts if "quant_state" in end)
    try:
        told = json.loads(bytes(read(parts[end]).tolist()))
        state = _State(
            tuple(int(size) for size in told["shape"]),
            int(told["blocksize"]),
            int(told.get("nested_blocksize") or 0) if _NESTED in parts else 0,
            float(told.get("nested_offset") or 0),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _bad(parts, f"{name}: its quant_state is damaged: {error}") from error
    whole = len(state.shape) == 2 and min(state.shape) > 0 and state.block > 0
    if not whole or prod(state.shape) != 2 * prod(parts["weight"].shape):
        wrong = f"{list(state.shape)} in blocks of {state.block}"
        raise _bad(parts, f"{name}: its quant_state is damaged: {wrong}")
    count = -(-prod(state.shape) // state.block)
    expected = {"weight.absmax": count, "weight.quant_map": 16}
    if _NESTED in parts or "weight.nested_quant_map" in parts:
        outer = -(-count // state.nested) if state.nested > 0 else 0
        expected |= {_NESTED: outer, "weight.nested_quant_map": 256}
    for part, size in expected.items():
        found = prod(parts[part].shape) if part in parts else 0
        if found != size or not size:
            raise _bad(parts, f"{name}: {part} has {found} numbers, not {size}")
    return state


def table4(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of bitsandbytes': the file's table of 16, and blocks of inputs.

    The first value of a byte is in its high half. Scales may be 8 bits themselves.

    Raises:
        BadCheckpoint: the description of the state is damaged, or sizes do not fit.
    """
    state = _state(name, parts)
    shape, block, nested, offset = state.shape, state.block, state.nested, state.offset

    def widened(found: Parts) -> Tensor:
        packed, table = found["weight"].reshape(-1), found["weight.quant_map"].float()
        values = torch.empty(len(packed), 2)
        for begin in range(0, len(packed), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            values[some, 0] = table[(packed[some] >> 4).int()]
            values[some, 1] = table[(packed[some] & 15).int()]
        values = values.view(-1)
        scales = found["weight.absmax"].reshape(-1)
        if "weight.nested_absmax" in found:
            known = found["weight.nested_quant_map"].float()[scales.long()]
            outer = found["weight.nested_absmax"].float().reshape(-1)
            scales = known * outer.repeat_interleave(nested)[: len(known)] + offset
        values *= scales.float().repeat_interleave(block)[: len(values)]
        return values.view(shape)

    layout = StoredLayout(8, BLOCK, loss=AGAIN)
    return PackedTensor(name, "bitsandbytes", shape, parts, widened, layout)


@dataclass(frozen=True, slots=True)
class _Experts:
    """Matrices of experts in MXFP4, of which one at a time is widened.

    blocks is uint8 [experts, out, in / 32, 16], the first value of a byte in its low
    half; scales uint8 [experts, out, in / 32], powers of two. The parameter is
    [experts, in, out].
    """

    name: str
    blocks: FileTensor
    scales: FileTensor
    shape: tuple[int, int, int]
    _kept: dict[int, Tensor] = field(default_factory=dict, compare=False)

    @property
    def path(self) -> str:
        return self.blocks.path

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def kind(self) -> str:
        return "MXFP4"

    def elements(self, begin: int, end: int) -> Tensor:
        each = self.shape[1] * self.shape[2]
        first, last = begin // each, -(-end // each)
        found = [self._expert(i).reshape(-1) for i in range(first, last)]
        flat = torch.cat(found) if found else torch.empty(0)
        flat = flat[begin - first * each : end - first * each].clone()
        if end >= prod(self.shape):
            self._kept.clear()
        return flat

    def _expert(self, index: int) -> Tensor:
        """Return an expert's matrix, float32 [in, out]; the last one is kept."""
        if index not in self._kept:
            self._kept.clear()
            self._kept[index] = self._widened(index)
        return self._kept[index]

    def _widened(self, index: int) -> Tensor:
        _, columns, rows = self.shape
        count = rows * columns
        packed = self.blocks.elements(index * count // 2, (index + 1) * count // 2)
        scales = self.scales.elements(index * count // 32, (index + 1) * count // 32)
        weight = e2m1(packed.view(-1, 16)) * powers(scales)[:, None]
        return weight.view(rows, columns).T.contiguous()


def mxfp4(name: str, parts: Files, settings: Settings) -> _Experts:
    """Return matrices of experts in MXFP4, as gpt-oss has them.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    blocks, scales = parts["_blocks"], parts["_scales"]
    if 0 in blocks.shape:
        raise _bad(parts, f"{name}: blocks are {list(blocks.shape)}")
    if (
        len(blocks.shape) != 4
        or scales.shape != blocks.shape[:3]
        or blocks.shape[3] != 16
    ):
        wrong = f"blocks {list(blocks.shape)} and scales {list(scales.shape)}"
        raise _bad(parts, f"{name}: {wrong}")
    experts, rows, fours, _ = blocks.shape
    return _Experts(name, blocks, scales, (experts, 32 * fours, rows))


def _floats(scales: Tensor) -> Tensor:
    """Return scales as float32; bytes are powers of two, E8M0."""
    return powers(scales) if scales.dtype == torch.uint8 else scales.float()


def _bad(parts: Files, wrong: str) -> BadCheckpoint:
    return bad_checkpoint([wrong], next(iter(parts.values())).path)
